"""Parameters: tying, number, and the dtypes of parameters and computation."""

from dataclasses import replace
from functools import partial
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.errors import FlaxError

from seq2seq.configs import base, big
from seq2seq.model.config import CHOICES, num_parameters
from seq2seq.model.parameters import parameter
from seq2seq.model.transformer import Stack, Transformer
from seq2seq.training.parameters import parameter_shapes
from tests.support.models.small_transformer import (
    BATCH,
    ONES,
    POSITIONS,
    SMALL,
    V,
    jitted,
    variables_of,
)


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def draw(key, shape):
    """An initialiser that counts its calls."""
    draw.calls += 1
    return jax.random.normal(key, shape)


class OneParameter(nn.Module):
    """A parameter of shape [2, 3], of `parameter` or of Flax."""

    ours: bool

    @nn.compact
    def __call__(self):
        read = partial(parameter, self) if self.ours else self.param
        return read("weight", draw, (2, 3))


def test_a_parameter_is_that_of_flax_without_a_trace_of_its_initialiser():
    draw.calls = 0
    ours, flax = (OneParameter(which).init(jax.random.key(3)) for which in (True, False))
    assert jax.tree.map(np.array_equal, ours, flax) == {"params": {"weight": True}}
    assert draw.calls == 2
    np.testing.assert_array_equal(OneParameter(True).apply(ours), ours["params"]["weight"])
    assert draw.calls == 2
    OneParameter(False).apply(ours)
    assert draw.calls == 3  # Flax traces it: without that, `parameter` would be superfluous


@pytest.mark.parametrize(
    "tree", [{"params": {"weight": jnp.ones((3, 2))}}, {"params": {"other": jnp.ones(1)}}, {}]
)
def test_a_parameter_that_does_not_fit_raises_the_error_of_flax(tree):
    def error(which):
        class Outer(nn.Module):
            def setup(self):
                self.inner = OneParameter(which)

            def __call__(self):
                return self.inner()

        with pytest.raises(FlaxError) as caught:
            Outer().apply({name: {"inner": inner} for name, inner in tree.items()})
        return type(caught.value), str(caught.value)

    assert error(True) == error(False)


@pytest.mark.parametrize(
    "tied, tables",
    [
        ("three-way", {"target_embedding"}),
        ("two-way", {"target_embedding", "source_embedding"}),
        ("inputs", {"target_embedding", "output_embedding"}),
        ("none", {"target_embedding", "source_embedding", "output_embedding"}),
    ],
)
def test_tying_shares_the_tables_it_names(tied, tables):
    shared = tied in ("three-way", "inputs")
    config = replace(SMALL, source_vocab_size=V if shared else 37, tied_embeddings=tied)
    tree = parameter_shapes(config)
    assert {name for name in tree if name.endswith("embedding")} == tables
    assert set(tree) - tables == {"encoder", "decoder"}
    for name in tables:
        rows = 37 if name == "source_embedding" else V
        assert jax.tree.map(jnp.shape, tree[name]) == {"table": (rows, 30)}
    # The rows of a table that are read are those with a gradient. Without layers, it is faster.
    ones, model = jnp.asarray(np.ones((1, 2), np.int32)), Transformer(config)
    source, target = (jnp.asarray(np.array(x)) for x in ([[5, 7]], [[11, 7]]))

    def without_layers(following, args, kwargs, context):
        """A decoder adds the projected memory to its input."""
        if not isinstance(context.module, Stack) or context.method_name != "__call__":
            return following(*args, **kwargs)
        memory = args[3][0].keys_values.values if len(args) > 3 else jnp.zeros(1)
        return args[0] + memory.sum(), ()

    @jax.jit
    @jax.jacrev
    def gradients(variables):
        with nn.intercept_methods(without_layers):
            hidden = model.apply(variables, source, target, ones, ones, method="hidden")
        logits = model.apply(variables, jnp.ones((1, 1, 30)), method="to_logits")
        return jnp.stack([(hidden**3).sum(), (logits**2).sum()])

    gradient = jax.device_get(gradients(variables_of(config)))["params"]
    inputs, outputs = (
        {name: set(np.flatnonzero(gradient[name]["table"][i].any(axis=1))) for name in tables}
        for i in (0, 1)
    )

    everything, embedded = (
        set(range(V)),
        {
            "three-way": {"target_embedding": {5, 7, 11}},
            "two-way": {"target_embedding": {11, 7}, "source_embedding": {5, 7}},
            "inputs": {"target_embedding": {5, 7, 11}, "output_embedding": set()},
            "none": {
                "target_embedding": {11, 7},
                "source_embedding": {5, 7},
                "output_embedding": set(),
            },
        }[tied],
    )
    assert inputs == embedded
    scores = "output_embedding" if "output_embedding" in tables else "target_embedding"
    assert outputs == {name: everything if name == scores else set() for name in tables}


CHOSEN = "tied_embeddings", "positions", "attention_bias", "output_bias", "norm"
# Every pair of values of two fields, except tables and positions: their numbers are two terms.
PAIRWISE = [
    (
        CHOICES["tied_embeddings"][i % 4],
        POSITIONS[i % 6],
        bool(i // 6),
        bool((i // 6 + i // 3) & 1),
        CHOICES["norm"][(i // 6 + i) & 1],
    )
    for i in range(12)
]


def test_the_selection_of_combinations_has_every_pair_of_values():
    every = product(CHOICES["tied_embeddings"], POSITIONS, (False, True), (False, True))
    combined = [(*values, norm) for values in every for norm in CHOICES["norm"]]
    for places in set(combinations(range(len(CHOSEN)), 2)) - {(0, 1)}:
        pairs = [{tuple(c[i] for i in places) for c in cases} for cases in (PAIRWISE, combined)]
        assert pairs[0] == pairs[1], places


def test_num_parameters_is_the_size_of_the_initialised_model_for_every_pair_of_choices():
    for choices in PAIRWISE:
        config = replace(SMALL, **dict(zip(CHOSEN, choices, strict=True)))
        if config.shares_inputs:
            config = replace(config, source_vocab_size=V)
        config.validate()
        assert count(parameter_shapes(config)) == num_parameters(config), config
    for depths in ((3, 0), (1, 2), (2, 1)):
        config = replace(SMALL, num_layers=depths[0], num_decoder_layers=depths[1])
        assert count(parameter_shapes(config)) == num_parameters(config), config


@pytest.mark.parametrize("module, parameters", [(base, 63_045_632), (big, 214_171_648)])
def test_models_of_the_paper_have_the_sizes_of_the_paper(module, parameters):
    config = replace(module.get_config().model, source_vocab_size=37_000, target_vocab_size=37_000)
    config.validate()
    assert num_parameters(config) == parameters
    config = replace(config, num_layers=1)  # the test above has other depths
    assert num_parameters(config) == count(parameter_shapes(config))


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_parameters_and_logits_are_float32_for_every_dtype(dtype):
    config = replace(SMALL, dtype=dtype, output_bias=True, positions="learned")
    params = parameter_shapes(config)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    model = Transformer(config)

    def run(variables):
        hidden = model.apply(variables, *BATCH, method="hidden")
        return hidden, model.apply(variables, hidden, method="to_logits")

    hidden, logits = jax.eval_shape(run, {"params": params})
    assert (hidden.dtype, logits.dtype) == (config.values_dtype, jnp.float32)


def test_mixed_is_float32_except_for_products_with_weights():
    """It is closer to float32 than bfloat16 is, since sums and activations are float32."""
    exact = np.asarray(jitted(SMALL)(*BATCH))
    distance = {
        dtype: np.abs(jitted(replace(SMALL, dtype=dtype))(*BATCH) - exact).max() / exact.std()
        for dtype in ("mixed", "bfloat16")
    }
    assert 1e-4 < distance["mixed"] < distance["bfloat16"] < 0.2
    mixed = jitted(replace(SMALL, dtype="mixed"))
    text = mixed.func.lower(*mixed.args, *BATCH).as_text()
    dots = [line.rpartition(" : ")[2] for line in text.splitlines() if "dot_general" in line]
    attentions = 1 + 2
    assert sum("bf16" not in operands for operands in dots) == 2 * attentions  # Q Kᵀ, weights V
    assert (
        sum(operands.count("xbf16>") == 2 and operands.endswith("xf32>") for operands in dots)
        == 4 * attentions + 2 * 2 + 1
    )  # projections, feed-forward, logits


def test_logits_are_hidden_states_times_target_embeddings_plus_bias():
    config = replace(SMALL, output_bias=True)
    model, variables = Transformer(config), variables_of(config)

    @jax.jit
    def run(variables):
        return [model.apply(variables, *BATCH, method=name) for name in ("hidden", "__call__")]

    hidden, logits = run(variables)
    params = jax.device_get(variables["params"])
    expected = hidden @ params["target_embedding"]["table"].T + params["output_bias"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_scaled_embeddings_equal_those_of_a_table_times_the_root_of_d_model():
    scaled, flat = SMALL, replace(SMALL, scale_embeddings=False)
    encode = lambda config, variables: jax.jit(  # noqa: E731
        partial(Transformer(config).apply, method="encode")
    )(variables, BATCH[0], ONES[0])
    larger = jax.tree.map(np.array, variables_of(SMALL))
    larger["params"]["source_embedding"]["table"] *= np.float32(30**0.5)
    expected = encode(scaled, variables_of(SMALL))
    np.testing.assert_allclose(encode(flat, larger), expected, atol=1e-5)
    assert np.abs(encode(flat, variables_of(SMALL)) - expected).max() > 1e-2

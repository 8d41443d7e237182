"""Parameters prepared for inference give the same bits, but for the rounding of the logits, and no
program casts a weight; a bias that is part of the table gives the same logits up to rounding."""

import re
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.engine import Engine
from seq2seq.model import platforms
from seq2seq.model.config import ModelConfig
from seq2seq.model.inference import inference_variables, original_params
from seq2seq.model.kinds import make_model
from tests.support.marks import slow_except
from tests.support.models.small_transformer import variables_of

# Sizes that tell weights from activations: [B, T] = [2, 3], widths of at least 6.
SIZES = dict(d_model=8, d_ff=24, num_heads=2, num_layers=1, max_length=16)
MODELS = {
    "tied": {},
    "learned": {"positions": "learned", "norm": "pre", "output_bias": True},
    "two-way": {"tied_embeddings": "two-way", "source_vocab_size": 9},
    "untied": {"tied_embeddings": "none", "source_vocab_size": 9},
    "gated": {
        "positions": "relative",
        "gated_feed_forward": True,
        "feed_forward_bias": False,
        "d_k": 7,
        "scale_logits": True,
        "tied_embeddings": "inputs",
    },
    "rnn": {"kind": "rnn"},
    "rnn_attention": {"kind": "rnn_attention", "tied_embeddings": "none"},
}
DTYPES = ["mixed", "bfloat16", "float32"]


def prepared(options, dtype):
    """(model, its inputs, float32 variables, prepared variables)."""
    sizes = {"source_vocab_size": 11, "target_vocab_size": 11} | SIZES
    if "kind" in options:
        del sizes["d_ff"], sizes["num_heads"]
    config = ModelConfig(**sizes | options, dtype=dtype)
    model, tokens = make_model(config), np.array([[5, 6, 7], [8, 4, 2]])
    inputs = tuple(map(jnp.asarray, (tokens, tokens, np.ones_like(tokens), np.ones_like(tokens))))
    variables = variables_of(config)
    params = jax.device_get(variables["params"])
    return model, inputs, variables, inference_variables(config, params)


FAST = {"learned": "bfloat16", "gated": "mixed", "rnn_attention": "mixed"}


@pytest.mark.parametrize("name, dtype", slow_except(FAST.items(), product(MODELS, DTYPES)))
def test_the_values_are_those_of_the_original_parameters_and_no_weight_is_cast(name, dtype):
    model, inputs, variables, converted = prepared(MODELS[name], dtype)

    @jax.jit
    def run(variables):
        hidden = model.apply(variables, *inputs, method="hidden")
        return hidden, model.apply(variables, hidden, method="to_logits")

    programs = [run.lower(x) for x in (converted, variables)]
    (hidden, logits), (same_hidden, expected) = (
        program.compile()(x) for program, x in zip(programs, (converted, variables), strict=True)
    )
    np.testing.assert_array_equal(hidden, same_hidden)
    tolerance = 2**-7 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(logits, expected, tolerance, tolerance)

    # In bfloat16, values of one axis are cast too.
    axes = 1 if dtype == "mixed" else 2
    weights = {
        "x".join(map(str, x.shape))
        for x in jax.tree.leaves(converted)
        if x.dtype == jnp.bfloat16 and x.ndim >= axes
    }

    def cast(program):
        text = program.as_text()
        shapes = re.findall(r"convert .*tensor<([0-9x]+)xf32>\) -> tensor<[0-9x]+xbf16>", text)
        return set(shapes) & weights

    assert not cast(programs[0])
    assert bool(cast(programs[1])) == (dtype != "float32")


def test_lookups_and_norms_keep_float32():
    converted = prepared(MODELS["learned"], "bfloat16")[-1]
    kept = {
        path[-1].key
        for path, x in jax.tree.leaves_with_path(converted["params"])
        if x.dtype == np.float32
    }
    assert kept - {"table", "scale"} and all(
        name in ("table", "scale") or name.endswith("bias") for name in kept
    )
    tables = converted["params"]["target_embedding"]["table"], converted["params"]["decoder"]
    assert tables[0].dtype == np.float32 and "layers_0" in tables[1]


def test_arrays_that_do_not_change_are_not_copied():
    model, _, variables, _ = prepared({}, "float32")
    params = jax.device_get(variables["params"])
    converted = inference_variables(model.config, params)
    same = jax.tree.map(np.shares_memory, original_params(model.config, converted), params)
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["learned", "untied"])
def test_the_table_of_the_logits_is_stored_twice_only_for_lookups_in_another_dtype(name, dtype):
    model, _, variables, _ = prepared(MODELS[name], dtype)
    params = jax.device_get(variables["params"])
    converted = inference_variables(model.config, params, bias_in_table=True)
    output = "output_embedding" if name == "untied" else "target_embedding"
    assert (output in converted["params"]) == (name == "learned" and dtype != "float32")
    restored = original_params(model.config, converted)
    assert restored.keys() == params.keys()
    for module, tree in params.items():
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2**-8), restored[module], tree)
    if dtype == "float32":
        jax.tree.map(np.testing.assert_array_equal, restored, params)


def test_narrow_weights_are_refused_by_a_model_of_float32():
    config = prepared({}, "float32")[0].config
    narrow = prepared({}, "mixed")[-1]["params"]
    with pytest.raises(ValueError, match="dtype=float32 is not supported by weights .* bfloat16"):
        inference_variables(config, narrow)


OUTPUTS = "tied", "gated", "rnn"


@pytest.mark.parametrize(
    "name, dtype", slow_except(zip(OUTPUTS, DTYPES, strict=True), product(OUTPUTS, DTYPES))
)
def test_a_bias_in_the_table_is_added_with_16_bits(name, dtype):
    """Biases of all sizes, −inf, and the least float32, which is −inf in bfloat16. Rounded to
    bfloat16 alone they would have 8 bits."""
    least = np.finfo(np.float32).min
    bias = np.array([least, 1e-3, -0.7, 3.3, -12.1, 101.3, -997.0, 1e6, -1e9, -np.inf, 1.0])
    model, _, variables, _ = prepared(MODELS[name] | {"output_bias": True}, dtype)
    with np.errstate(over="ignore"):
        params = variables["params"] | {"output_bias": jnp.asarray(bias.astype(np.float32))}
    converted = inference_variables(model.config, jax.device_get(params), bias_in_table=True)
    table = "output_embedding" if name == "gated" else "target_embedding"
    shape = converted["inference"][table]["table"].shape
    assert shape == (len(bias), model.config.d_model + 2)
    run = jax.jit(partial(model.apply, method="to_logits"))
    hidden = np.random.default_rng(0).normal(size=(2, 3, model.config.d_model))
    hidden = jnp.asarray(hidden.astype(jnp.dtype(model.config.values_dtype)))
    logits, expected = jax.device_get((run(converted, hidden), run({"params": params}, hidden)))
    finite = bias > least
    difference = np.abs(logits[..., finite] - expected[..., finite])
    assert (difference <= 1e-5 + np.abs(bias[finite]) * 2.0**-16).all()
    assert (logits[..., ~finite] < 0.9 * least).all()


@pytest.mark.parametrize("in_table", [True, False])
def test_the_platform_decides_where_an_engine_adds_the_bias(monkeypatch, in_table):
    monkeypatch.setattr(platforms, "CPU", platforms.CPU._replace(bias_in_table=in_table))
    model, _, variables, _ = prepared(MODELS["learned"], "float32")
    engine = Engine([model.config], DecodingConfig())
    engine.use(variables["params"])
    (table,) = jax.tree.leaves(engine.variables[0]["inference"])
    assert table.shape[1] == model.config.d_model + 2 * in_table

"""The choices of published models, all at once, against NumPy; and each of them in a training.

Axes: B batch · S source · T target · V vocabulary.
"""

from collections import Counter
from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from seq2seq.model.config import CHOICES, ModelConfig, num_parameters
from seq2seq.model.encoder_decoder import DecoderState
from seq2seq.model.positions import RelativePositions, alibi_slopes, relative_rows
from seq2seq.model.transformer import Stack, Transformer
from seq2seq.training.parameters import parameter_shapes
from tests.support.models.random_parameters import random_params
from tests.support.models.small_transformer import BATCH, SMALL
from tests.support.oracles.numpy_transformer import bucket, numpy_logits, slopes

V = 29
SIZES = dict(
    source_vocab_size=V, target_vocab_size=V, d_model=16, d_ff=19, num_heads=3, num_layers=1,
    dropout=0.0,
)  # fmt: skip
NO_FACTORS = dict(scale_scores=False, scale_embeddings=False)
# The epsilons are large enough to change the logits.
FORMS = {
    "T5": ModelConfig(
        **SIZES, **NO_FACTORS, num_decoder_layers=2, d_k=7, norm="pre",
        norm_function="rms", positions="relative", activation="gelu_tanh", gated_feed_forward=True,
        feed_forward_bias=False, scale_logits=True, layer_norm_epsilon=1e-2,
    ),
    "umT5": ModelConfig(
        **SIZES, **NO_FACTORS, num_decoder_layers=2, d_k=4,
        norm_function="rms", positions="relative", relative_buckets=10, relative_distance=9,
        relative_tables="layer", activation="silu", gated_feed_forward=True,
        tied_embeddings="none", embedding_norm=True,
    ),
    "M2M": ModelConfig(
        **SIZES, d_k=6, norm="pre", sinusoid_layout="fairseq", activation="gelu",
        attention_bias=True, output_bias=True, embedding_norm=True, layer_norm_epsilon=1e-2,
        scale_logits=True,
    ),
    "BART": ModelConfig(
        **SIZES, d_k=5, positions="learned", activation="relu", attention_bias=True,
        embedding_norm=True, feed_forward_bias=False, scale_embeddings=False,
    ),
    "ALiBi": ModelConfig(**SIZES, d_k=5, positions="alibi", gated_feed_forward=True),
}  # fmt: skip
LENGTHS = {"T5": ((150, 131, 3), (140, 4, 129))}  # beyond the largest distance, with padding
SHORT = (13, 5, 1), (12, 1, 7)


def padded(lengths, seed):
    ids = np.random.default_rng(seed).integers(0, V, (len(lengths), max(lengths)), np.int32)
    return ids, (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)


@pytest.mark.parametrize("form", FORMS)
def test_logits_equal_those_of_numpy_with_every_parameter_random(form):
    config = FORMS[form]
    config.validate()
    params = random_params(config, deviation=0.3, mean_scale=1.0)
    assert sum(x.size for x in jax.tree.leaves(params)) == num_parameters(config)
    lengths = LENGTHS.get(form, SHORT)
    (source, segments), (target, target_segments) = (padded(x, i) for i, x in enumerate(lengths))
    apply = jax.jit(Transformer(config).apply)
    logits = np.asarray(apply({"params": params}, source, target, segments, target_segments))
    exact = jax.tree.map(np.float64, params)
    for row, (s, t) in enumerate(zip(*lengths, strict=True)):
        expected = numpy_logits(config, exact, source[row, :s], target[row, :t])
        assert expected.std() > 0.1
        np.testing.assert_allclose(logits[row, :t], expected, atol=1e-5, rtol=1e-5)


def test_the_forms_have_every_choice_that_is_not_the_paper_s():
    seen = {(f.name, getattr(c, f.name)) for c in FORMS.values() for f in fields(c)}
    for name in ("norm_function", "relative_tables", "activation"):
        assert {(name, choice) for choice in CHOICES[name]} <= seen
    for f in fields(ModelConfig):
        if f.type is bool and f.name not in ("remat", "attention_kernels"):
            assert {(f.name, True), (f.name, False)} <= seen, f.name


def operations(jaxpr):
    """The number of each operation with a result of floating values, inner ones included."""
    count = Counter()
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if not inner and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
            count[equation.primitive.name] += 1
        count += sum(map(operations, inner), Counter())
    return count


def test_the_paper_s_model_has_no_operation_of_a_choice_that_it_does_not_make():
    config = replace(SMALL, num_layers=1, num_decoder_layers=2)
    model, variables = Transformer(config), {"params": parameter_shapes(config)}
    attentions, feed_forwards, embeddings = 1 + 2 * 2, 1 + 2, 2
    sublayers = attentions + feed_forwards
    count = operations(jax.make_jaxpr(model.apply)(variables, *BATCH).jaxpr)
    # Residual connections, ε and bias of norms, biases, positions.
    assert count["add"] == 3 * sublayers + 2 * feed_forwards + embeddings
    # Norms, factors on scores and embeddings.
    assert count["mul"] == 2 * sublayers + attentions + embeddings
    assert count["sub"] == count["exp"] + count["rsqrt"] == attentions + sublayers
    assert count["dot_general"] == 6 * attentions + 2 * feed_forwards + 1
    assert count["gather"] == 2 * embeddings

    caches = model.empty_caches(1, 64, 2)
    memory = tuple(layer.blocks[0] for layer in caches)
    ones, ancestry = jnp.ones((1, 2), jnp.int32), jnp.ones((1, 2, 64), jnp.int32)
    state = DecoderState(memory, ones[0, :1], caches)
    step = partial(model.apply, method="step")
    arguments = ones, state, ones[0, :1], ones, ancestry
    count = operations(jax.make_jaxpr(step)(variables, *arguments).jaxpr)
    sums = 2 * (0 + 1 + 2 + 3)  # over the blocks of a cache, in each branch of `attend_to_cache`
    assert count["add"] == 2 * (3 * 3 + 2 + sums) + 1
    assert count["gather"] == 2


# Distances.

TWO_SIDES = {
    -200: 15, -128: 15, -127: 15, -91: 15, -64: 14, -16: 10, -15: 9, -12: 9, -11: 8, -9: 8, -8: 8,
    -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 11: 24, 12: 25, 16: 26, 127: 31, 200: 31,
}  # fmt: skip
CAUSAL = {
    0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 20: 17, 21: 18, 31: 21, 32: 21, 63: 26, 64: 26,
    90: 29, 112: 30, 113: 31, 127: 31, 128: 31, 500: 31,
}  # fmt: skip


def test_relative_rows_are_the_buckets_of_t5():
    """Values of transformers 5.23; and the scalar formula for tables of other sizes."""
    assert relative_rows(np.array([*TWO_SIDES]), 32, 128, False).tolist() == [*TWO_SIDES.values()]
    assert relative_rows(-np.array([*CAUSAL]), 32, 128, True).tolist() == [*CAUSAL.values()]
    assert not relative_rows(np.arange(300), 32, 128, True).any()
    distances = np.arange(-300, 301)
    for rows, longest, causal in ((4, 3, False), (9, 7, True), (9, 7, False), (64, 200, True)):
        c = ModelConfig(positions="relative", relative_buckets=rows, relative_distance=longest)
        expected = [bucket(c, int(r), causal) for r in distances]
        assert relative_rows(distances, rows, longest, causal).tolist() == expected
        assert max(expected) < rows


def test_slopes_are_those_of_the_code_of_the_paper():
    for heads in (1, 2, 3, 8, 12, 16, 20):
        np.testing.assert_allclose(alibi_slopes(heads), slopes(heads), rtol=1e-6)
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_in_a_search_is_the_row_of_each_lane_s_step(causal):
    config = ModelConfig(num_heads=3, positions="relative", relative_buckets=8, relative_distance=6)
    module, t, beams = RelativePositions(config, causal), np.array([4, 0, 2, 8]), 2

    @jax.jit
    def run(key, t):
        at_once, variables = module.init_with_output(key, jnp.ones((1, 9), int), method="bias")
        positions = jnp.repeat(t[:, None], beams, axis=1)
        return at_once, module.apply(variables, positions, 9 * beams, method="bias")

    at_once, in_steps = jax.device_get(run(jax.random.key(0), t))
    assert at_once.shape == (1, 3, 9, 9) and in_steps.shape == (4, 3, 1, 18)
    for lane, step in enumerate(t):
        expected = np.repeat(at_once[0, :, step], beams, axis=-1)
        np.testing.assert_array_equal(in_steps[lane, :, 0], expected)


# Training.


def test_a_training_learns_and_has_a_gradient_for_every_parameter():
    ranges = dict(relative_buckets=10, relative_distance=9)
    config = replace(FORMS["T5"], num_layers=1, num_decoder_layers=1, embedding_norm=True, **ranges)
    model, (source, ones) = Transformer(config), map(jnp.asarray, padded((12,) * 4, 3))

    def loss(params):
        logits = model.apply({"params": params}, source, source, ones, ones)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), source[..., None], -1).mean()

    @jax.jit
    def train(params):
        def step(params, _):
            value, gradients = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), (value, gradients)

        return jax.lax.scan(step, params, length=20)[1]

    params = random_params(config, deviation=0.25, mean_scale=1.0)
    losses, gradients = jax.device_get(train(params))
    assert losses[-1] < 0.9 * losses[0]
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.abs(gradient[0]).max() > 0, path


def test_queries_and_tables_of_relative_positions_begin_as_in_t5():
    """Without the factor 1/√d_k on scores, the queries have it."""
    config = replace(FORMS["T5"], d_model=96, num_heads=8, d_k=16, relative_tables="layer")
    x, mask, positions = jnp.zeros((1, 2, 96)), None, jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(Stack(config, 1).init)(jax.random.key(0), x, mask, positions)["params"]
    layer = jax.device_get(params["layers_0"])
    attention, table = layer["self_attention"], layer["relative_bias"]["table"]
    assert attention["query"].std() * 4 == pytest.approx(attention["key"].std(), rel=0.05)
    assert attention["key"].std() == pytest.approx((2 / (96 + 8 * 16)) ** 0.5, rel=0.05)
    assert table.shape == (32, 8) and table.std() == pytest.approx(96**-0.5, rel=0.15)

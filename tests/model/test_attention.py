"""Attention against equation 1 and section 3.2.2 in NumPy, masks, and the module against it.

Axes: B batch · T queries · S keys · D model width · H heads · K head width.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from seq2seq.model.attention import (
    PLAIN,
    AttentionOptions,
    AttentionParams,
    HeadOptions,
    KeysValues,
    MultiHeadAttention,
    attention_scores,
    dot_product_attention,
    multi_head_attention,
    project_keys_values,
)
from seq2seq.model.config import ModelConfig
from seq2seq.model.matmul import FULL, cast_weights
from seq2seq.model.positions import rotate

B, H, T, S, K = 2, 3, 5, 7, 11
D = H * K

attend = jax.jit(dot_product_attention)


def standard_normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def normal(*shape, seed=0):
    return jax.device_put(standard_normal(*shape, seed=seed))


def queries_keys_values():
    return normal(B, H, T, K, seed=1), normal(B, H, S, K, seed=2), normal(B, H, S, K, seed=3)


def random_mask(*shape):
    """About half True, and at least one key for every query."""
    mask = np.random.default_rng(shape).random(shape) < 0.5
    mask[..., 2] = True
    return mask


def numpy_attention(queries, keys, values, mask=True):
    """softmax(Q Kᵀ / √d_k + M) V in float64, with M = 0 where the mask is True, −∞ elsewhere."""
    queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
    scores = queries @ np.swapaxes(keys, -1, -2) / np.sqrt(queries.shape[-1])
    scores = scores + np.where(mask, 0.0, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ values, weights


def random_params(bias, d=D, h=H, k=K):
    shapes = [(d, h, k)] * 3 + [(h, k, d)] + ([(h, k)] * 3 + [(d,)] if bias else [])
    values = (standard_normal(*shape, seed=i) / 4 for i, shape in enumerate(shapes))
    return AttentionParams(*map(jax.device_put, values))


def test_attention_equals_equation_1_for_every_broadcast_mask():
    shapes = (B, H, T, S), (B, 1, T, S), (1, 1, T, S), (1, H, 1, S), (B, 1, 1, S)
    inputs, masks = queries_keys_values(), [None, *(random_mask(*shape) for shape in shapes)]

    @jax.jit
    def attend_all(inputs, masks):
        return [dot_product_attention(*inputs, mask) for mask in masks]

    for mask, (output, weights) in zip(masks, attend_all(inputs, masks), strict=True):
        case = "no mask" if mask is None else f"{mask.shape}"
        expected, expected_weights = numpy_attention(*inputs, True if mask is None else mask)
        np.testing.assert_allclose(output, expected, atol=2e-6, err_msg=case)
        np.testing.assert_allclose(weights, expected_weights, atol=1e-6, err_msg=case)


def test_scores_of_bfloat16_are_summed_in_float32():
    """Which a CPU does in any case: the program says so."""
    inputs = [x.astype(jnp.bfloat16) for x in queries_keys_values()]
    text = attend.lower(*inputs).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2 and products[0].endswith("xf32>")


def test_a_bias_of_the_scores_is_added_in_float32():
    queries, keys, values = (x.astype(jnp.bfloat16) for x in queries_keys_values())
    bias, function = (
        normal(1, H, T, S),
        partial(dot_product_attention, options=AttentionOptions(scale=False)),
    )
    _, weights = jax.jit(function)(queries, keys, values, bias=bias)
    q, k = (np.asarray(x, np.float64) for x in (queries, keys))
    expected = np.exp(q @ np.swapaxes(k, -1, -2) + np.asarray(bias, np.float64))
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_weights_sum_to_one_and_to_zero_for_fully_masked_queries():
    mask = random_mask(B, H, T, S)
    mask[0, 1, 3] = mask[1, :, 0] = False
    _, weights = jax.device_get(attend(*queries_keys_values(), mask))
    np.testing.assert_allclose(weights.sum(axis=-1), mask.any(axis=-1), atol=1e-6)
    assert np.all(weights >= 0) and np.all(weights[~mask] == 0.0)


def test_attention_to_no_keys_is_0():
    nothing = np.zeros((B, H, 0, K), np.float32)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def summed(queries):
        output, weights = dot_product_attention(queries, *map(jnp.asarray, (nothing, nothing)))
        return output.sum(), (output, weights)

    queries = queries_keys_values()[0]
    gradient, (output, weights) = jax.device_get(summed(queries))
    assert not gradient.any() and not output.any() and output.shape == queries.shape
    assert weights.shape == (B, H, T, 0)


def test_large_scores_do_not_overflow():
    queries, keys, values = map(np.asarray, queries_keys_values())
    large = queries * np.float32(1e3), keys * np.float32(1e3), values
    output, weights = attend(*large)
    np.testing.assert_allclose(output, numpy_attention(*large)[0], rtol=1e-4, atol=1e-4)
    assert np.all(np.isfinite(weights))


def test_a_fully_masked_query_gives_exact_zeros_and_finite_gradients():
    mask = random_mask(B, H, T, S)
    mask[0, 1, 3] = mask[1, :, 0] = False
    empty = ~mask.any(axis=-1)
    inputs = queries_keys_values()

    def loss(queries, keys, values):
        output, weights = dot_product_attention(queries, keys, values, jnp.asarray(mask))
        return (jnp.cos(output) + output).sum() + (weights**2).sum(), (output, weights)

    gradients, (output, weights) = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)
    assert np.all(np.asarray(output)[empty] == 0.0)
    assert np.all(np.asarray(weights)[empty] == 0.0)
    assert all(np.all(np.isfinite(g)) for g in gradients)
    assert np.all(np.asarray(gradients[0])[empty] == 0.0)
    assert np.all(np.asarray(gradients[0])[~empty].any(axis=-1))


def test_masked_keys_and_values_have_exactly_zero_gradient():
    mask = np.zeros((B, 1, 1, S), bool)
    mask[0, ..., :3] = mask[1, ..., 2:6] = True

    def loss(keys, values):
        output, _ = dot_product_attention(normal(B, H, T, K), keys, values, jnp.asarray(mask))
        return jnp.sin(output).sum()

    for gradient in jax.jit(jax.grad(loss, (0, 1)))(*queries_keys_values()[1:]):
        nonzero = np.asarray(gradient != 0.0)
        assert np.array_equal(nonzero, np.broadcast_to(mask[:, :, 0, :, None], nonzero.shape))


def test_the_softmax_of_bfloat16_inputs_is_float32():
    size = 16  # 1 / √16 is a power of two, so scaling the queries does not round
    shapes = (B, H, T, size), (B, H, S, size), (B, H, S, size)
    inputs = [np.asarray(normal(*s, seed=i)).astype(jnp.bfloat16) for i, s in enumerate(shapes)]
    output, weights = attend(*inputs)
    expected, expected_weights = numpy_attention(*inputs)
    assert weights.dtype == jnp.float32 and output.dtype == jnp.bfloat16
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), expected, atol=2e-2)


def lowered_gradient(loss, *arguments):
    """The lowered program of the gradient with respect to all arguments."""
    return jax.jit(jax.grad(loss, tuple(range(len(arguments))))).lower(*arguments).as_text()


def test_products_of_float32_have_full_precision_unless_another_is_given():
    """Two products forward, and two gradients of each."""

    def loss(*arguments, options=PLAIN):
        return jnp.square(dot_product_attention(*arguments, options=options)[0]).sum()

    text = lowered_gradient(loss, *queries_keys_values())
    assert text.count("dot_general") == text.count("[HIGHEST, HIGHEST]") == 6
    options = AttentionOptions(precision=jax.lax.Precision.DEFAULT)
    text = lowered_gradient(partial(loss, options=options), *queries_keys_values())
    assert text.count("dot_general") == text.count("[DEFAULT, DEFAULT]") == 6


@pytest.mark.parametrize("dtype, full", [("float32", 12), ("bfloat16", 0)])
def test_attention_beside_bfloat16_weights_has_the_default_precision(dtype, full):
    """Two products with weights and two of activations, and two gradients of each."""
    params = cast_weights(random_params(bias=False), dtype)

    def loss(x, query, output, *keys_values):
        changed = params._replace(query=query, output=output)
        return jnp.square(multi_head_attention(changed, x, KeysValues(*keys_values))[0]).sum()

    arguments = normal(B, T, D), params.query, params.output, *queries_keys_values()[1:]
    text = lowered_gradient(loss, *arguments)
    assert text.count("dot_general") == 12 and text.count("[HIGHEST, HIGHEST]") == full


@cache
def initial_params():
    """The initial parameters of an attention of eight heads with biases."""
    config = ModelConfig(d_model=512, num_heads=8, attention_bias=True)
    init = partial(MultiHeadAttention(config).init, method="keys_values")
    return jax.jit(init)(jax.random.key(1), normal(1, 2, 512))["params"]


def test_scores_have_variance_near_one_at_initialisation_because_of_the_scale():
    x = normal(4, 61, 512)

    @jax.jit
    def scores_variance(params, factor):
        """The variance of the scores, which are log weights up to a constant per query."""
        params = AttentionParams(**params)
        params = params._replace(query=params.query * factor)
        _, weights = multi_head_attention(params, x, project_keys_values(params, x))
        return jnp.log(weights).var(axis=-1, ddof=1).mean()

    params = initial_params()
    assert 0.8 < scores_variance(params, 1.0) < 1.25
    # Without the division by √d_k the variance is d_k = 64 (footnote 4).
    assert 0.8 * 64 < scores_variance(params, 64**0.5) < 1.25 * 64


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("d", [D, 12])
def test_multi_head_attention_concatenates_heads_and_projects_them(d, bias):
    params = random_params(bias, d)
    x, memory, mask = normal(B, T, d, seed=5), normal(B, S, d, seed=6), random_mask(B, 1, T, S)
    output, weights = jax.jit(
        lambda: multi_head_attention(
            params, x, project_keys_values(params, memory), jnp.asarray(mask)
        )
    )()
    p = AttentionParams(*(0.0 if a is None else np.asarray(a, np.float64) for a in params))
    inputs, memory = np.asarray(x, np.float64), np.asarray(memory, np.float64)
    heads, head_weights = [], []
    for h in range(H):
        b = [bias_of[h] if bias else 0.0 for bias_of in (p.query_bias, p.key_bias, p.value_bias)]
        head, weight = numpy_attention(
            inputs @ p.query[:, h] + b[0],
            memory @ p.key[:, h] + b[1],
            memory @ p.value[:, h] + b[2],
            mask[:, 0],
        )
        heads.append(head), head_weights.append(weight)
    expected = np.concatenate(heads, axis=-1) @ p.output.reshape(D, d) + p.output_bias
    np.testing.assert_allclose(output, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(weights, np.stack(head_weights, axis=1), atol=1e-6)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_the_module_equals_the_function_bit_for_bit_and_sows_its_weights(bias):
    config = ModelConfig(d_model=30, num_heads=3, attention_bias=bias)
    module, params = MultiHeadAttention(config), random_params(bias, 30, 3, 10)
    x, memory, mask = normal(B, T, 30), normal(B, S, 30), jnp.asarray(random_mask(B, 1, T, S))
    positions, memory_positions = (
        jnp.asarray(np.tile(np.arange(first, first + n), (B, 1))) for first, n in ((10, T), (0, S))
    )
    variables = {"params": {n: p for n, p in params._asdict().items() if p is not None}}

    turn_keys, turn_queries = (partial(rotate, positions=p) for p in (memory_positions, positions))
    options = HeadOptions(turn_queries)

    @jax.jit
    def by_module():
        keys_values = module.apply(variables, memory, turn_keys, method="keys_values")
        apply = partial(module.apply, mutable=["intermediates"])
        return apply(variables, x, keys_values, mask, None, options)

    @jax.jit
    def by_function():
        keys_values = project_keys_values(params, memory, turn_keys)
        return multi_head_attention(params, x, keys_values, mask, None, options)

    output, sown = by_module()
    expected, weights = by_function()
    assert np.array_equal(output, expected)
    assert np.array_equal(sown["intermediates"]["weights"][0], weights)
    declared = jax.eval_shape(lambda k: module.init(k, x, method="keys_values"), jax.random.key(0))
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, declared)


def test_projections_are_initialised_xavier_uniform_and_biases_zero():
    params = jax.device_get(initial_params())
    limit = (6 / (512 + 512)) ** 0.5
    for name in ("query", "key", "value", "output"):
        assert 0.99 * limit < np.abs(params[name]).max() <= limit
        assert abs(params[name].std() - limit / 3**0.5) < 0.02 * limit
        assert not params[f"{name}_bias"].any()


def test_rotary_positions_rotate_keys_and_queries_but_not_values():
    params, x = random_params(False, 30, 3, 10), normal(B, T, 30)
    positions = np.random.default_rng(0).integers(0, 97, (B, T))

    @jax.jit
    def run(params, x, positions):
        turn = partial(rotate, positions=positions)
        plain, rotated = project_keys_values(params, x), project_keys_values(params, x, turn)
        queries = jnp.einsum("btd,dhk->bhtk", x, params.query)
        heads, _ = dot_product_attention(rotate(queries, positions), *rotated)
        output, _ = multi_head_attention(params, x, rotated, options=HeadOptions(turn))
        return plain, rotated, rotate(plain.keys, positions), heads, output

    plain, rotated, expected, heads, output = run(params, x, positions)
    assert np.array_equal(rotated.keys, expected)
    assert np.array_equal(rotated.values, plain.values)
    np.testing.assert_allclose(output, np.einsum("bhtk,hkd->btd", heads, params.output), atol=1e-5)


def test_shape_annotations_are_checked_in_tests():
    pytest.importorskip("beartype")
    queries, keys, _ = queries_keys_values()
    with pytest.raises(TypeCheckError, match="keys"):
        attention_scores(queries, jnp.asarray(np.asarray(keys)[..., 1:]), None, FULL)

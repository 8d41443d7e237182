"""The small layers in NumPy, module = function, and dropout's masks: honest, independent, per row.

Axes: B batch · T time · D model width · F feed-forward width · V vocabulary.
"""

import math
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from model.config import CHOICES, ModelConfig
from model.layers import (
    ACTIVATIONS,
    Dropout,
    Embedding,
    FeedForward,
    FeedForwardParams,
    LayerNorm,
    dropout,
    embed,
    feed_forward,
    layer_norm,
    logits,
    random_bits,
)

B, T, D, F, V = 2, 5, 13, 17, 23
CONFIG = ModelConfig(d_model=D, d_ff=F, num_heads=1)

NUMPY_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), jnp.float32)


def float64(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def feed_forward_params():
    return FeedForwardParams(normal(D, F), normal(F), normal(F, D), normal(D))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_layer_norm_is_the_formula(epsilon):
    x, scale, bias = 3.0 * normal(B, T, D) + 7.0, normal(D, seed=1), normal(D, seed=2)
    a, s, b = float64(x, scale, bias)
    expected = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + epsilon)
    np.testing.assert_allclose(
        jax.jit(layer_norm, static_argnums=3)(x, scale, bias, epsilon), expected * s + b, atol=1e-5
    )


def test_layer_norm_of_bfloat16_has_float32_statistics():
    x = (normal(B, T, 257) + 3.0).astype(jnp.bfloat16)
    a = np.asarray(x, np.float64)
    expected = (a - a.mean(-1, keepdims=True)) / a.std(-1, keepdims=True)
    got = jax.jit(layer_norm, static_argnums=3)(x, jnp.ones(257), jnp.zeros(257), 1e-6)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=2**-8, atol=1e-5)


def test_every_activation_on_offer_exists():
    assert set(ACTIVATIONS) == set(CHOICES["activation"]) == set(NUMPY_ACTIVATIONS)


@pytest.mark.parametrize("activation", CHOICES["activation"])
def test_feed_forward_is_equation_2_with_each_activation(activation):
    params, x = feed_forward_params(), normal(B, T, D, seed=5)
    (inner, inner_bias, outer, outer_bias), (a,) = float64(*params), float64(x)
    expected = NUMPY_ACTIVATIONS[activation](a @ inner + inner_bias) @ outer + outer_bias
    got = jax.jit(feed_forward, static_argnums=2)(params, x, activation)
    np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("scale", [True, False])
def test_embeddings_are_rows_times_the_root_of_d_model(scale):
    table, ids = normal(V, D), jnp.asarray([[3, 0, 22, 3, 1], [7, 7, 2, 19, 4]])
    got = jax.jit(embed, static_argnums=2)(table, ids, scale)
    expected = np.asarray(table)[ids] * (math.sqrt(13) if scale else 1.0)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert embed(table, ids, scale, "bfloat16").dtype == jnp.bfloat16


def test_logits_are_products_with_the_embeddings_in_float32():
    x, table, bias = normal(B, T, D), normal(V, D), normal(V)
    a, e, b = float64(x, table, bias)
    np.testing.assert_allclose(jax.jit(logits)(x, table), a @ e.T, atol=1e-5)
    np.testing.assert_allclose(jax.jit(logits)(x, table, bias), a @ e.T + b, atol=1e-5)
    short = x.astype(jnp.bfloat16), table.astype(jnp.bfloat16)
    got = jax.jit(logits)(*short)
    assert got.dtype == jnp.float32
    a, e = float64(*short)
    np.testing.assert_allclose(got, a @ e.T, atol=1e-5)


def test_modules_are_their_functions_bit_for_bit():
    x, ids = normal(B, T, D), jnp.asarray([[3, 0, 22, 3, 1], [7, 7, 2, 19, 4]])
    scale, shift, table, bias = normal(D, seed=1), normal(D, seed=2), normal(V, D), normal(V)
    params = feed_forward_params()
    embedding = Embedding(CONFIG, V)
    cases = [
        (LayerNorm(CONFIG), {"scale": scale, "bias": shift}, (x,), "__call__",
         lambda x: layer_norm(x, scale, shift, CONFIG.layer_norm_epsilon)),
        (FeedForward(CONFIG), params._asdict(), (x,), "__call__",
         lambda x: feed_forward(params, x, "relu")),
        (embedding, {"table": table}, (ids,), "__call__", lambda ids: embed(table, ids, True)),
        (embedding, {"table": table}, (x, bias), "logits",
         lambda x, bias: logits(x, table, bias)),
    ]
    for module, params_of, inputs, method, function in cases:
        variables = {"params": params_of}
        got = jax.jit(partial(module.apply, variables, method=method))(*inputs)
        assert np.array_equal(got, jax.jit(function)(*inputs))
        init = partial(module.init, jax.random.key(0), method=method)
        assert jax.tree.map(jnp.shape, variables) == jax.tree.map(
            jnp.shape, jax.eval_shape(init, *inputs)
        )


def test_layers_start_as_the_paper_and_its_libraries_do():
    config = ModelConfig(d_model=101, d_ff=211, num_heads=1)
    modules = LayerNorm(config), FeedForward(config), Embedding(config, 997)
    x, ids = jnp.zeros((1, 1, 101)), jnp.zeros((1, 1), jnp.int32)
    norm, feed, embedding = jax.jit(lambda key: [
        module.init(key, inputs)["params"]
        for module, inputs in zip(modules, (x, x, ids), strict=True)
    ])(jax.random.key(0))
    assert np.all(norm["scale"] == 1.0) and np.all(norm["bias"] == 0.0)
    table = embedding["table"]
    assert abs(table.std() * 101**0.5 - 1.0) < 0.02 and abs(table.mean()) < 0.002
    limit = (6 / (101 + 211)) ** 0.5  # Xavier uniform
    for name in ("inner", "outer"):
        assert 0.99 * limit < np.abs(feed[name]).max() <= limit
        assert np.all(feed[f"{name}_bias"] == 0.0)


# Dropout. Statistical bounds are five standard deviations wide: about one in two million.

KEYS = [jax.random.key(7), jax.random.PRNGKey(8), jax.random.fold_in(jax.random.PRNGKey(8), 1),
        jax.random.fold_in(jax.random.PRNGKey(8), 2)]
SHAPE = (61, 67)
bits_of = jax.jit(random_bits, static_argnums=2)
drop = jax.jit(dropout, static_argnums=1)


def kept(rate, key, rows, shape=SHAPE):
    """The mask dropout applies, [len(rows), *shape]."""
    return np.asarray(drop(jnp.ones((len(rows), *shape)), rate, key, jnp.asarray(rows)) != 0.0)


def correlation(a, b):
    """In standard deviations of independent samples."""
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    return abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size)


def test_no_key_and_no_rate_mean_no_dropout():
    x = normal(B, T, D)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEYS[0]) is x
    assert Dropout(CONFIG).apply({}, x) is x


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.3, 0.5, 0.9])
def test_dropout_keeps_its_share_and_rescales_what_it_keeps(rate):
    x = jnp.full((31, 101, 103), 3.0)
    got = np.asarray(drop(x, rate, KEYS[0]))
    mask = got != 0.0
    bound = 5 * math.sqrt(rate * (1 - rate) / x.size)
    assert abs(mask.mean() - (1 - rate)) < bound
    np.testing.assert_allclose(got[mask], 3.0 / (1 - rate), rtol=1e-6)
    assert abs(got.mean() / 3.0 - 1.0) < bound / (1 - rate)
    # Each row and each position keeps its share too.
    for axes, count in (((1, 2), 101 * 103), ((0, 2), 31 * 103), ((0, 1), 31 * 101)):
        off = mask.mean(axis=axes) - (1 - rate)
        assert np.abs(off).max() < 6 * math.sqrt(rate * (1 - rate) / count)


def test_a_row_s_mask_depends_on_the_key_and_its_index_alone():
    whole = kept(0.3, KEYS[0], range(11))
    for rows in ([7], [7, 3], [10, 9, 8, 7, 0], [2] * 3):
        assert np.array_equal(kept(0.3, KEYS[0], rows), whole[rows])
    assert np.array_equal(drop(jnp.ones((11, *SHAPE)), 0.3, KEYS[0]) != 0.0, whole)


def test_masks_of_different_rows_and_keys_are_uncorrelated():
    rows = [0, 1, 2, 3, 64, 1024, 65536, 2**31 - 1]
    masks = [mask for key in KEYS for mask in kept(0.3, key, rows)]
    worst = max(correlation(a, b) for a, b in combinations(masks, 2))
    assert worst < 5.5  # 496 pairs
    # Nor is one row the other, shifted or put in another order by exclusive or.
    one, other = (mask.ravel() for mask in masks[:2])
    places = np.arange(4000)
    assert max(correlation(one[places], other[places + s]) for s in range(1, 87)) < 5
    assert max(correlation(one[places[:2048]], other[places[:2048] ^ s])
               for s in 1 << np.arange(11)) < 5


def test_neighbouring_elements_of_a_mask_are_uncorrelated():
    mask = kept(0.3, KEYS[0], range(8))
    for axis in (0, 1, 2):
        for lag in (1, 2, 4):
            size = mask.shape[axis]
            before, after = np.arange(size - lag), np.arange(lag, size)
            assert correlation(mask.take(before, axis), mask.take(after, axis)) < 5


def test_every_one_of_the_32_bits_is_fair_and_independent_of_the_others():
    bits = np.asarray(bits_of(KEYS[1], jnp.arange(16), (127, 131)))
    assert bits.dtype == np.uint32 and bits.shape == (16, 127, 131)
    each = ((bits.ravel()[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64)
    assert np.abs(each.mean(axis=0) - 0.5).max() < 5 * 0.5 / math.sqrt(len(each))
    together = np.corrcoef(each, rowvar=False) - np.eye(32)
    assert np.abs(together).max() * math.sqrt(len(each)) < 5.5  # 496 pairs
    for shift in (0, 8, 16, 24):  # bytes are uniform: χ² with 255 degrees of freedom
        counts = np.bincount((bits.ravel() >> shift) & 255, minlength=256)
        expected = bits.size / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * math.sqrt(2 * 255)


class TwoLayers(nn.Module):
    """Two dropouts with paths of their own, the first of them used twice."""

    def setup(self):
        config = ModelConfig(dropout=0.3)
        self.first, self.second = Dropout(config), Dropout(config)

    def __call__(self, x, rows=None):
        return self.first(x, rows), self.first(x, rows), self.second(x, rows)


def test_layers_drop_independently_of_each_other():
    apply = jax.jit(lambda key: TwoLayers().apply({}, jnp.ones((3, *SHAPE)), rngs={"dropout": key}))
    masks = [np.asarray(y != 0.0) for key in KEYS for y in apply(key)]
    assert max(correlation(a, b) for a, b in combinations(masks, 2)) < 5


def test_the_dropout_module_is_the_function_with_the_key_it_fetches():
    class Peek(nn.Module):
        """Gives the key instead of using it."""

        @nn.compact
        def __call__(self, x):
            return self.make_rng("dropout")

    x, rows = normal(3, T, D), jnp.asarray([5, 2, 3])
    rngs = {"dropout": KEYS[0]}
    key = Peek().apply({}, x, rngs=rngs)
    got = Dropout(ModelConfig(dropout=0.3)).apply({}, x, rows, rngs=rngs)
    assert np.array_equal(got, dropout(x, 0.3, key, rows))
    assert not np.array_equal(got, x)

"""Dropout: its masks have the right rate, are independent, and depend on the row id.

Statistical bounds are five standard deviations: about one failure in two million.
"""

import math
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from seq2seq.model.attention import AttentionOptions, dot_product_attention
from seq2seq.model.layers import Dropout, FeedForwardParams, dropout, feed_forward, random_bits
from tests.model.test_layers import normal

B, T, D = 2, 5, 13

KEYS = [
    jax.random.key(7),
    jax.random.PRNGKey(8),
    jax.random.fold_in(jax.random.PRNGKey(8), 1),
    jax.random.fold_in(jax.random.PRNGKey(8), 2),
]
SHAPE = (61, 67)
bits_of = jax.jit(random_bits, static_argnums=2)
drop = jax.jit(dropout, static_argnums=1)


@partial(jax.jit, static_argnums=0)
def kept_rows(rate, key, *row_ids):
    """The masks that dropout applies to several batches, [len(row_ids), *SHAPE]."""
    return [dropout(jnp.ones((len(rows), *SHAPE)), rate, key, rows) != 0.0 for rows in row_ids]


def kept(rate, key, *row_ids):
    return [np.asarray(mask) for mask in kept_rows(rate, key, *map(np.asarray, row_ids))]


def correlation(a, b):
    """The correlation in standard deviations of independent samples."""
    a, b = (np.asarray(x, np.float64).ravel() for x in (a, b))
    return abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size)


def test_no_two_places_of_a_row_have_the_same_bits():
    """The hash of a place is a bijection of its number."""
    for shape in ((101, 103), (103, 101), (3, 61, 67)):
        for row in np.asarray(bits_of(KEYS[0], jnp.arange(2), shape)):
            assert len(np.unique(row)) == row.size


def test_without_a_key_or_a_rate_there_is_no_dropout():
    x = normal(B, T, D)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEYS[0]) is x
    assert Dropout(0.5).apply({}, x) is x
    assert Dropout(0.0).apply({}, x, rngs={"dropout": KEYS[0]}) is x


@pytest.mark.parametrize("rate", [0.03, 0.3, 0.9])
def test_dropout_keeps_the_expected_share_and_rescales_it(rate):
    x = np.full((31, 101, 103), 3.0, np.float32)
    got = np.asarray(drop(x, rate, KEYS[0]))
    mask = got != 0.0
    bound = 5 * math.sqrt(rate * (1 - rate) / x.size)
    assert abs(mask.mean() - (1 - rate)) < bound
    np.testing.assert_allclose(got[mask], 3.0 / (1 - rate), rtol=1e-6)
    assert abs(got.mean() / 3.0 - 1.0) < bound / (1 - rate)
    # So do each row and each position.
    for axes, count in (((1, 2), 101 * 103), ((0, 2), 31 * 103), ((0, 1), 31 * 101)):
        off = mask.mean(axis=axes) - (1 - rate)
        assert np.abs(off).max() < 6 * math.sqrt(rate * (1 - rate) / count)


def test_the_mask_of_a_row_depends_on_the_key_and_the_row_id_only():
    several = [7], [7, 3], [10, 9, 8, 7, 0], [2] * 3
    whole, *masks = kept(0.3, KEYS[0], range(11), *several)
    for rows, mask in zip(several, masks, strict=True):
        assert np.array_equal(mask, whole[rows]), rows
    assert np.array_equal(np.asarray(drop(np.ones((11, *SHAPE)), 0.3, KEYS[0])) != 0.0, whole)


def test_masks_of_different_rows_and_keys_are_uncorrelated():
    rows = [0, 1, 2, 3, 64, 1024, 65536, 2**31 - 1]
    masks = [mask for key in KEYS for mask in kept(0.3, key, rows)[0]]
    worst = max(correlation(a, b) for a, b in combinations(masks, 2))
    assert worst < 5.5  # 496 pairs
    # No row is another one shifted or permuted by exclusive or.
    first, second = (mask.ravel() for mask in masks[:2])
    places = np.arange(4000)
    assert max(correlation(first[places], second[places + s]) for s in range(1, 87)) < 5
    assert (
        max(
            correlation(first[places[:2048]], second[places[:2048] ^ s]) for s in 1 << np.arange(11)
        )
        < 5
    )


def test_neighbouring_elements_of_a_mask_are_uncorrelated():
    (mask,) = kept(0.3, KEYS[0], range(8))
    for axis in (0, 1, 2):
        for lag in (1, 2, 4):
            size = mask.shape[axis]
            before, after = np.arange(size - lag), np.arange(lag, size)
            assert correlation(mask.take(before, axis), mask.take(after, axis)) < 5


def test_all_32_bits_are_fair_and_independent():
    bits = np.asarray(bits_of(KEYS[1], np.arange(6), (127, 131)))
    assert bits.dtype == np.uint32 and bits.shape == (6, 127, 131)
    bit_columns = ((bits.ravel()[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float64)
    assert np.abs(bit_columns.mean(axis=0) - 0.5).max() < 5 * 0.5 / math.sqrt(len(bit_columns))
    together = np.corrcoef(bit_columns, rowvar=False) - np.eye(32)
    assert np.abs(together).max() * math.sqrt(len(bit_columns)) < 5.5  # 496 pairs
    for shift in (0, 8, 16, 24):  # bytes are uniform: χ² with 255 degrees of freedom
        counts = np.bincount((bits.ravel() >> shift) & 255, minlength=256)
        expected = bits.size / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * math.sqrt(2 * 255)


def check_dropped(dropped, full, rate):
    """Each element is 0 or 1 / (1 − rate) times that of `full`; their mean over rows is `full`."""
    dropped, full = np.asarray(dropped), np.broadcast_to(full, dropped.shape)
    kept = dropped != 0.0
    np.testing.assert_allclose(dropped[kept], full[kept] / (1 - rate), rtol=1e-5)
    assert abs(kept.mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / kept.size)
    error = dropped.mean(axis=0) / full[0] - 1.0
    assert np.abs(error).max() < 6 * math.sqrt(rate / (1 - rate) / len(dropped))


def test_dropout_of_attention_weights_is_unbiased_and_leaves_the_returned_weights():
    """The values are an identity matrix, so that the output is the weights that multiply them."""
    rows, heads, size = 2000, 2, 5
    queries, keys = (normal(1, heads, size, size, seed=s) for s in (1, 2))
    values = jnp.broadcast_to(jnp.eye(size), (1, heads, size, size))

    @jax.jit
    def attend(key):
        several = [jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in (queries, keys, values)]
        options = AttentionOptions(partial(dropout, rate=0.3, key=key))
        full, _ = dot_product_attention(queries, keys, values)
        return full, *dot_product_attention(*several, options=options)

    full, output, weights = map(np.asarray, attend(KEYS[0]))
    check_dropped(output, full, 0.3)
    np.testing.assert_allclose(weights, np.broadcast_to(full, weights.shape), rtol=1e-5)


def test_dropout_of_activations_is_unbiased():
    """The outer matrix is an identity, so that the output is the activations."""
    x = normal(1, T, D)

    @jax.jit
    def run(key):
        eye, five, zero = jnp.eye(D), jnp.full(D, 5.0), jnp.zeros(D)
        params = FeedForwardParams(eye, five, eye, zero)  # relu is the identity
        several = jnp.broadcast_to(x, (3000, T, D))
        return feed_forward(params, several, "relu", partial(dropout, rate=0.4, key=key))

    check_dropped(run(KEYS[1]), np.asarray(x) + 5.0, 0.4)


class TwoLayers(nn.Module):
    """Two dropout modules with different paths; the first is used twice."""

    def setup(self):
        self.first, self.second = Dropout(0.3), Dropout(0.3)

    def __call__(self, x, row_ids=None):
        return self.first(x, row_ids), self.first(x, row_ids), self.second(x, row_ids)


def test_dropout_modules_have_independent_masks():
    apply = jax.jit(lambda key: TwoLayers().apply({}, jnp.ones((3, *SHAPE)), rngs={"dropout": key}))
    masks = [np.asarray(y != 0.0) for key in KEYS for y in apply(key)]
    assert max(correlation(a, b) for a, b in combinations(masks, 2)) < 5


def test_the_dropout_module_equals_the_function_with_its_key():
    class Peek(nn.Module):
        """Returns the key."""

        @nn.compact
        def __call__(self, x):
            return self.make_rng("dropout")

    x, rows = normal(3, T, D), jnp.asarray(np.array([5, 2, 3]))

    @jax.jit
    def run(key):
        rngs = {"dropout": key}
        expected = dropout(x, 0.3, Peek().apply({}, x, rngs=rngs), rows)
        return Dropout(0.3).apply({}, x, rows, rngs=rngs), expected

    got, expected = run(KEYS[0])
    assert np.array_equal(got, expected)
    assert not np.array_equal(got, x)

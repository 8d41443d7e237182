"""Attention masks, and the cache to which keys and values are appended.

Axes: B batch · T queries · S keys · H heads · K head width.
"""

import jax
import jax.numpy as jnp
import numpy as np
from test_attention import normal

from model.attention import KeysValues, causal_mask, extend_cache, segment_mask, to_cache

B, H, T, S, K = 2, 3, 5, 7, 11


def test_the_causal_mask_allows_the_past_and_the_present():
    mask = causal_mask(T)
    assert mask.shape == (1, 1, T, T) and mask.dtype == bool
    for t in range(T):
        assert mask[0, 0, t].tolist() == [s <= t for s in range(T)]


def test_the_segment_mask_allows_equal_segments_but_no_padding():
    queries, keys = np.array([[1, 1, 2, 3, 0], [2, 0, 1, 1, 0]]), np.array([[1, 2, 0], [1, 0, 2]])
    mask = segment_mask(jnp.asarray(queries), jnp.asarray(keys))
    assert mask.shape == (2, 1, 5, 3)
    for (b, t, s), got in np.ndenumerate(mask[:, 0]):
        assert got == (queries[b, t] == keys[b, s] != 0)


def test_extending_the_cache_writes_at_the_index_of_each_row_only():
    old = KeysValues(normal(B, H, S, K, seed=1), normal(B, H, S, K, seed=2))
    new = KeysValues(normal(B, H, 2, K, seed=3), normal(B, H, 2, K, seed=4))
    index = np.arange(B) % (S - 1)
    assert len(set(index.tolist())) > 1
    cache = jax.jit(extend_cache)(to_cache(old), new, jnp.asarray(index))
    assert cache.keys.shape == (B, H, K, S)
    for before, part, got in zip(old, new, cache.keys_values, strict=True):
        expected = np.array(before)
        for row, at in enumerate(index):
            expected[row, :, at : at + 2] = part[row]
        assert np.array_equal(got, expected)

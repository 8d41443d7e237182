"""Attention masks. Axes: B batch · T queries · S keys."""

import jax.numpy as jnp
import numpy as np

from seq2seq.model.attention import causal_mask, segment_mask

T = 5


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

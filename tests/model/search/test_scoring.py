"""Alignment of given targets by attention; tests/decoding compares their scores with a search's."""

import jax.numpy as jnp
import numpy as np

from seq2seq.model.search.scoring import attended_tokens


def test_a_target_token_is_aligned_with_a_source_token_before_the_end():
    attention = np.random.default_rng(0).random((3, 4, 6)).astype(np.float32)
    lengths = np.array([6, 2, 4])
    attention[0, :, 5] = attention[1, :, 1:] = attention[2, :, 3:] = 2.0  # ends and padding
    expected = [
        [max(range(length - 1), key=lambda s: weights[s]) for weights in rows]
        for rows, length in zip(attention.tolist(), lengths, strict=True)
    ]
    aligned = attended_tokens(jnp.asarray(attention), jnp.asarray(lengths))
    np.testing.assert_array_equal(aligned, expected)
    assert len(set(expected[0])) > 1

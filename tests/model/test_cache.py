"""The cache of a search: blocks of slots that are appended to, and attention to them.

Axes: B rows · S slots · H heads · K head width.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_transformer import SMALL
from test_attention import normal

from model.attention import KeysValues, dot_product_attention
from model.cache import (
    BLOCKS,
    Cache,
    attend_to_cache,
    blockwise_attention,
    empty_caches,
    extend_cache,
    stored,
)

B, H, K = 3, 2, 11


def random_keys_values(slots, seed):
    return KeysValues(normal(B, H, slots, K, seed=seed), normal(B, H, slots, K, seed=seed + 1))


def random_blocks(sizes):
    """Queries [B, H, 2, K], blocks of keys and values, and a mask with one row that is False."""
    blocks = [random_keys_values(n, 2 * i + 10) for i, n in enumerate(sizes)]
    mask = np.random.default_rng(7).random((B, 1, 2, sum(sizes))) < 0.5
    mask[0, :, 1] = False
    return normal(B, H, 2, K, seed=9), blocks, mask


def joined(blocks):
    return KeysValues(*(jnp.concatenate(x, axis=2) for x in zip(*blocks, strict=True)))


@pytest.mark.parametrize("drop", [None, lambda weights: weights * 3.0])
def test_attention_to_blocks_equals_attention_to_all_their_keys_at_once(drop):
    queries, blocks, mask = random_blocks([4, 4, 3])
    mask = jnp.asarray(mask)
    expected = dot_product_attention(queries, *joined(blocks), mask, drop)
    found = blockwise_attention(queries, blocks, mask, drop)
    cache = Cache(tuple(map(stored, blocks)), jnp.array(10))
    for output, weights in (found, attend_to_cache(queries, *cache, mask, drop)):
        np.testing.assert_allclose(output, expected[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(weights, expected[1], atol=1e-6, rtol=1e-5)
        assert not np.asarray(output)[0, :, 1].any() and np.asarray(output)[0, :, 0].all()


def test_hidden_blocks_change_no_bit_and_blocks_after_the_last_slot_are_not_read():
    queries, blocks, mask = random_blocks([16, 16, 16, 9])
    mask[..., 32:] = False
    caches = tuple(map(stored, blocks))
    attend = jax.jit(attend_to_cache)
    results = [attend(queries, caches, jnp.array(last), mask) for last in (31, 32, 56, 57)]
    assert len({output.tobytes() for output, _ in results}) == 1
    assert len({weights.tobytes() for _, weights in results}) == 1
    broken = caches[:2] + jax.tree.map(lambda x: x * jnp.nan, caches[2:])
    assert attend(queries, broken, jnp.array(31), mask)[0].tobytes() == results[0][0].tobytes()
    assert np.isnan(attend(queries, broken, jnp.array(32), mask)[0]).any()


def test_keys_and_values_are_written_at_the_slot_of_each_row_only():
    sizes, beams = [4, 4, 2], 2
    old, new = random_keys_values(10, 1), random_keys_values(beams, 3)
    starts = zip((0, 4, 8), sizes, strict=True)
    blocks = [jax.tree.map(lambda x, a=a, n=n: x[:, :, a : a + n], old) for a, n in starts]
    cache = Cache(tuple(map(stored, blocks)), jnp.array(0))
    for shift in range(6):
        index = (np.arange(B) + shift) % 6 * beams  # 10 is after the last slot
        extended = jax.jit(extend_cache)(cache, new, jnp.asarray(index))
        found = joined([block.keys_values for block in extended.blocks])
        for before, part, got in zip(old, new, found, strict=True):
            expected = np.array(before)
            for row, at in enumerate(index):
                expected[row, :, at : at + beams] = part[row][:, : 10 - at]
            assert np.array_equal(got, expected)
        assert extended.last == index.max()


def test_a_sentence_whose_values_are_nan_does_not_change_the_next_one_in_its_row():
    """Its slots remain in the cache, masked."""
    queries, blocks, mask = random_blocks([4, 4, 3])
    mask[..., :2] = False
    cache, index = Cache(tuple(map(stored, blocks)), jnp.array(10)), jnp.zeros(B, int)
    mask = jnp.asarray(mask)
    expected, _ = attend_to_cache(queries, *cache, mask)
    broken = jax.tree.map(lambda x: x[:, :, :2] * jnp.nan, blocks[0])
    cache = extend_cache(cache, broken, index)._replace(last=jnp.array(10))
    found, _ = attend_to_cache(queries, *cache, mask)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 23])
def test_an_empty_cache_has_whole_steps_in_its_blocks_and_a_slot_for_each_hypothesis(steps):
    caches = empty_caches(SMALL, 2, steps, beams=3)
    assert len(caches) == SMALL.decoder_layers
    for cache in caches:
        shapes = [block.values.shape for block in cache.blocks]
        sizes = [slots for *_, slots, _ in shapes]
        assert {(rows, heads, width) for rows, heads, _, width in shapes} == {
            (2, SMALL.num_heads, SMALL.head_size)
        }
        assert sum(sizes) == 3 * steps and len(sizes) <= BLOCKS
        assert all(size % 3 == 0 for size in sizes) and len(set(sizes[:-1])) <= 1
        assert sizes[-1] <= sizes[0]

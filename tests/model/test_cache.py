"""The cache of a search: blocks of slots that are appended to, and attention to them.

Axes: B rows · S slots · H heads · K head width.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model import platforms
from seq2seq.model.attention import AttentionOptions, KeysValues, dot_product_attention
from seq2seq.model.cache import (
    Cache,
    attend_to_cache,
    blockwise_attention,
    empty_caches,
    extend_cache,
    stored,
)
from tests.model.test_attention import normal
from tests.support.models.small_transformer import SMALL

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


stored_blocks = jax.jit(lambda blocks: tuple(map(stored, blocks)))
attend = jax.jit(attend_to_cache)


@pytest.mark.parametrize("drop", [None, lambda weights: weights * 3.0])
def test_attention_to_blocks_equals_attention_to_all_their_keys_at_once(drop):
    queries, blocks, mask = random_blocks([4, 4, 3])
    bias = None if drop is None else normal(B, H, 1, 11, seed=8)

    @jax.jit
    def run(queries, blocks, mask):
        cache = Cache(tuple(map(stored, blocks)), jnp.array(10))
        options = AttentionOptions(drop, scale=drop is None)
        return (
            dot_product_attention(queries, *joined(blocks), mask, bias, options),
            blockwise_attention(queries, blocks, mask, bias, options),
            attend_to_cache(queries, cache, mask, bias, options),
        )

    expected, *results = run(queries, blocks, mask)
    for output, weights in results:
        np.testing.assert_allclose(output, expected[0], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(weights, expected[1], atol=1e-6, rtol=1e-5)
        assert not np.asarray(output)[0, :, 1].any() and np.asarray(output)[0, :, 0].all()


def test_hidden_blocks_change_no_bit_and_blocks_after_the_last_slot_are_not_read():
    queries, blocks, mask = random_blocks([16, 16, 16, 9])
    mask[..., 32:] = False
    caches = jax.device_get(stored_blocks(blocks))
    results = [attend(queries, Cache(caches, np.array(last)), mask) for last in (31, 32, 56, 57)]
    assert len({output.tobytes() for output, _ in results}) == 1
    assert len({weights.tobytes() for _, weights in results}) == 1
    broken = caches[:2] + jax.tree.map(lambda x: x * jnp.nan, caches[2:])
    assert (
        attend(queries, Cache(broken, np.array(31)), mask)[0].tobytes() == results[0][0].tobytes()
    )
    assert np.isnan(attend(queries, Cache(broken, np.array(32)), mask)[0]).any()


@pytest.mark.parametrize("scatter", [True, False], ids=["scatter", "select"])
def test_keys_and_values_are_written_at_the_slot_of_each_row_only(monkeypatch, scatter):
    monkeypatch.setattr(platforms, "CPU", platforms.CPU._replace(cache_by_scatter=scatter))
    sizes, beams = [4, 4, 2], 2
    old, new = random_keys_values(10, 1), random_keys_values(beams, 3)
    starts = list(zip((0, 4, 8), sizes, strict=True))

    @jax.jit
    def run(old, new, index):
        """The keys and values of the extended cache, and its last slot."""
        blocks = [jax.tree.map(lambda x, a=a, n=n: x[:, :, a : a + n], old) for a, n in starts]
        extended = extend_cache(Cache(tuple(map(stored, blocks)), jnp.array(0)), new, index)
        assert [block.values.shape[2] for block in extended.blocks] == sizes
        return joined([block.keys_values for block in extended.blocks]), extended.last

    for shift in range(11):  # 3 and 7 are the last slots of blocks, 10 is after the last slot
        index = (np.arange(B) + shift) % 11
        written, last = run(old, new, index)
        for before, part, got in zip(old, new, written, strict=True):
            expected = np.array(before)
            for row, at in enumerate(index):
                expected[row, :, at : at + beams] = part[row][:, : 10 - at]
            assert np.array_equal(got, expected)
        assert last == min(index.max() + beams, 10) - 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_do_not_change_the_next_sentence_in_their_row(bad):
    """Their slots remain in the cache, masked. A query that may attend to them gets NaN."""
    queries, blocks, mask = random_blocks([4, 4, 3])
    mask[..., :2] = False
    blocks = jax.device_get(stored_blocks(blocks))
    expected, _ = attend(queries, Cache(blocks, np.array(10)), mask)
    values = np.array(normal(B, H, 2, K, seed=4))
    values[..., 3] = bad
    broken = KeysValues(normal(B, H, 2, K, seed=5), values)
    cache = jax.jit(extend_cache)(Cache(blocks, np.array(0)), broken, np.zeros(B, int))
    output, _ = attend(queries, cache._replace(last=np.array(10)), mask)
    assert np.isnan(cache.blocks[0].keys[..., :2]).all()
    assert output.tobytes() == expected.tobytes()
    mask[1, :, 1, 0] = True
    output, _ = attend(queries, cache._replace(last=np.array(10)), mask)
    assert np.isnan(output[1, :, 1]).all()
    assert np.isfinite(np.delete(np.asarray(output), 1, axis=0)).all()


@pytest.mark.parametrize(
    "steps, number, dtype, stored_as",
    [
        (1, 1, "float32", "float32"),
        (16, 1, "mixed", "float32"),
        (17, 2, "bfloat16", "bfloat16"),
        (48, 3, "float32", "float32"),
        (70, 4, "bfloat16", "bfloat16"),
    ],
)
def test_an_empty_cache_has_whole_steps_in_its_blocks_and_a_slot_for_each_hypothesis(
    steps, number, dtype, stored_as
):
    config = replace(SMALL, dtype=dtype)
    caches = jax.eval_shape(lambda: empty_caches(config, 2, steps, beams=3))
    whole = jax.eval_shape(lambda: empty_caches(config, 2, steps, beams=3, blocks=1))
    assert all(cache.blocks[0].values.shape[2] == 3 * steps == cache.ends[-1] for cache in whole)
    assert len(caches) == SMALL.decoder_layers
    blocks = jax.tree.leaves([cache.blocks for cache in caches])
    assert {block.dtype for block in blocks} == {jnp.dtype(stored_as)}
    for cache in caches:
        shapes = [block.values.shape for block in cache.blocks]
        sizes = [slots for *_, slots, _ in shapes]
        assert {(rows, heads, width) for rows, heads, _, width in shapes} == {
            (2, SMALL.num_heads, SMALL.head_size)
        }
        assert sum(sizes) == 3 * steps and len(sizes) == number
        assert all(size % 3 == 0 for size in sizes) and len(set(sizes[:-1])) <= 1
        assert sizes[-1] <= sizes[0]

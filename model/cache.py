"""The cache of self-attention in a search: append-only, in blocks of entries, masked by ancestry.

Axes: B rows · H heads · K head width · T queries · N hypotheses, one new entry each · S entries.
Beams are reordered without moving keys and values: `ancestry_mask` hides the entries of hypotheses
that are not ancestors. A step reads only the blocks up to the last entry in use. Each block has
products of its own, and the sums over blocks are taken in their order, so a row's bits do not
depend on how many blocks the other rows need.
"""

from collections.abc import Sequence
from functools import partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .attention import PLAIN, AttentionOptions, KeysValues, attention_scores, masked_softmax
from .checks import check_shape, checked
from .config import ModelConfig
from .platforms import by_platform

# Entries outside a block are dropped, also those before it.
DROPPED_OUTSIDE: Any = dict(unique_indices=True, mode="drop", wrap_negative_indices=False)
MIN_STEPS = 16  # of a block but the last: branches for shorter ones cost more than they save


class StoredKeysValues(NamedTuple):
    """Keys and values that are read many times; keys are stored transposed, as Q Kᵀ reads them
    (4 × as fast on a CPU)."""

    keys: Float[Array, "B H K S"]
    values: Float[Array, "B H S K"]

    @property
    def keys_values(self) -> KeysValues:
        return KeysValues(jnp.swapaxes(self.keys, 2, 3), self.values)


class Cache(NamedTuple):
    """The S entries of a layer, in blocks of equal size except the last one, and the last entry
    that a row may attend to.

    The blocks are arrays of their own: XLA would copy a slice before it multiplies it.
    """

    blocks: tuple[StoredKeysValues, ...]
    last: Int[Array, ""]

    @property
    def ends(self) -> list[int]:
        """The number of entries up to the end of each block; the last one is S."""
        return list(accumulate(block.values.shape[2] for block in self.blocks))


def stored(new: KeysValues) -> StoredKeysValues:
    """These keys and values with transposed keys."""
    return StoredKeysValues(jnp.swapaxes(new.keys, 2, 3), new.values)


def empty_keys_values(config: ModelConfig, rows: int, entries: int) -> tuple[StoredKeysValues, ...]:
    """Space for `entries` keys and values in every decoder layer."""
    zeros = jnp.zeros((rows, config.num_heads, entries, config.head_size), config.values_dtype)
    return (stored(KeysValues(zeros, zeros)),) * config.decoder_layers


def empty_caches(
    config: ModelConfig, rows: int, steps: int, beams: int = 1, blocks: int = 4
) -> tuple[Cache, ...]:
    """Space for `beams` keys and values of each step in every decoder layer, in at most so many
    blocks. With more blocks, fewer entries are read, but the program has a branch for each."""
    size = max(-(-steps // blocks), MIN_STEPS)
    sizes = [min(size, steps - start) for start in range(0, steps, size)]
    layers = zip(*[empty_keys_values(config, rows, size * beams) for size in sizes], strict=True)
    return tuple(Cache(layer, jnp.array(0)) for layer in layers)


@checked
def extend_cache(cache: Cache, new: KeysValues, index: Int[Array, " B"]) -> Cache:
    """Write the N new entries of each row from `index` ≥ 0 on, without those beyond the cache.

    Values that are not finite are written as 0, with keys of NaN: a query that may attend to them
    gets NaN. For the others, such as those of the next sentence in this row, the mask replaces the
    score, and the weight 0 · value is 0, which it would not be for NaN and infinity.
    """
    broken = ~jnp.isfinite(new.values).all(axis=-1, keepdims=True)  # [B, H, N, 1]
    # 2 × [B, H, N, K]
    new = KeysValues(jnp.where(broken, jnp.nan, new.keys), jnp.where(broken, 0, new.values))
    blocks = []
    for block, end in zip(cache.blocks, cache.ends, strict=True):
        first = end - block.values.shape[2]
        write = partial(write_entries, block, new, index - first)
        blocks.append(by_platform(lambda choices: choices.cache_by_scatter, write))
    # `attend_to_cache` reads the same blocks for all rows: those of the row with the most entries.
    most = index.max() + new.values.shape[2]
    return Cache(tuple(blocks), jnp.minimum(most, cache.ends[-1]) - 1)


@partial(jax.jit, static_argnums=3)  # one trace for all layers and blocks
def write_entries(
    block: StoredKeysValues, new: KeysValues, start: Int[Array, " B"], scatter: bool
) -> StoredKeysValues:
    """The block with those of the N new entries from `start` on that are inside; by a scatter, or
    by a selection that reads and writes the whole block."""
    size, number_of_entries = block.values.shape[2], new.values.shape[2]
    if scatter:
        rows = jnp.arange(len(start))[:, None]  # [B, 1]
        entries = start[:, None] + jnp.arange(number_of_entries)  # [B, N]; some may be negative
        keys, values = jnp.swapaxes(new.keys, 1, 2), jnp.swapaxes(new.values, 1, 2)  # [B, N, H, K]
        return StoredKeysValues(
            block.keys.at[rows, :, :, entries].set(keys, **DROPPED_OUTSIDE),
            block.values.at[rows, :, entries].set(values, **DROPPED_OUTSIDE),
        )
    keys, values = block
    new_keys = jnp.swapaxes(new.keys, 2, 3)  # [B, H, K, N]
    number = jnp.arange(size) - start[:, None]  # [B, S]: which of the N belongs here
    for n in range(number_of_entries):
        here = (number == n)[:, None]  # [B, 1, S]
        keys = jnp.where(here[:, :, None], new_keys[..., n : n + 1], keys)  # [B, H, K, S]
        values = jnp.where(here[..., None], new.values[:, :, n : n + 1], values)  # [B, H, S, K]
    return StoredKeysValues(keys, values)


def ancestry_mask(ancestry: Int[Array, "B N T"]) -> Bool[Array, "B 1 N T*N"]:
    """The entries of an append-only cache that each hypothesis may attend to.

    Entry s·N + n is that of slot n at step s. A hypothesis may attend to it if slot n held its
    ancestor at step s (`Live.ancestry`).
    """
    is_ancestor = ancestry[:, :, :, None] == jnp.arange(ancestry.shape[1])  # [B, N, T, N]
    return is_ancestor.reshape(*ancestry.shape[:2], -1)[:, None]


@partial(jax.jit, static_argnames="options")  # one trace for all layers
@checked
def attend_to_cache(
    queries: Float[Array, "B H T K"],
    cache: Cache,
    mask: Bool[Array, "#B #H #T S"],
    bias: Float[Array, "#B #H #T S"] | None = None,
    options: AttentionOptions = PLAIN,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """`blockwise_attention` to a cache; the blocks after its last entry in use are not read."""
    ends = cache.ends
    check_shape("mask", mask, (*mask.shape[:3], ends[-1]), "S of all blocks")

    def attend(blocks_read: int) -> tuple[Array, Array]:
        # The keys are transposed inside the branch: outside, XLA would copy them.
        keys_values = [block.keys_values for block in cache.blocks[:blocks_read]]
        end = ends[blocks_read - 1]
        block_bias = None if bias is None else bias[..., :end]  # [B, H, T, end]
        output, weights = blockwise_attention(
            queries, keys_values, mask[..., :end], block_bias, options
        )  # [B, H, T, K], [B, H, T, end]
        unread = ends[-1] - end
        return output, jnp.pad(weights, [(0, 0), (0, 0), (0, 0), (0, unread)])  # [B, H, T, S]

    branches = [partial(attend, i + 1) for i in range(len(cache.blocks))]
    return jax.lax.switch(cache.last // ends[0], branches)


@checked
def blockwise_attention(
    queries: Float[Array, "B H T K"],
    blocks: Sequence[KeysValues],
    mask: Bool[Array, "#B #H #T S"],
    bias: Float[Array, "#B #H #T S"] | None = None,
    options: AttentionOptions = PLAIN,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """`dot_product_attention` to keys in blocks, S in all; the sums are rounded in another order.

    A block that `mask` hides from a query adds exact zeros (`masked_softmax`). So the output for a
    query has the same bits with and without further blocks that are hidden from it.
    """
    ends, first = np.cumsum([block.keys.shape[2] for block in blocks]), blocks[0].keys
    check_shape("mask", mask, (*mask.shape[:3], int(ends[-1])), "S of all blocks")
    (b, h, _, k), s = queries.shape, first.shape[2]
    check_shape("keys", first, (b, h, s, k), "[B, H, S, K] with B, H and K of queries")
    drop, precision, scale = options
    # Lists have an entry of size s for each block.
    masks = jnp.split(mask, ends[:-1], axis=-1)  # [B, H, T, s]
    biases = [None] * len(blocks) if bias is None else jnp.split(bias, ends[:-1], axis=-1)
    scores = [
        attention_scores(queries, block.keys, block_mask, precision, block_bias, scale)
        for block, block_mask, block_bias in zip(blocks, masks, biases, strict=True)
    ]  # [B, H, T, s]
    weights = masked_softmax(scores)  # [B, H, T, s]
    factors = weights if drop is None else [drop(block) for block in weights]
    products = [
        jnp.einsum(
            "bhts,bhsk->bhtk", block_factors.astype(block.values.dtype), block.values,
            precision=precision, preferred_element_type=jnp.float32,
        )
        for block_factors, block in zip(factors, blocks, strict=True)
    ]  # fmt: skip  # [B, H, T, K]
    output = reduce(jnp.add, products).astype(blocks[0].values.dtype)  # [B, H, T, K]
    return output, jnp.concatenate(weights, axis=-1)  # [B, H, T, K], [B, H, T, S]

"""The cache of self-attention in a search: append-only, in blocks of slots.

Axes: B rows · H heads · K head width · T queries · S slots.
A step reads only the blocks up to the last slot in use. Each block has products of its own, and the
sums over blocks are taken in their order, so a row's bits do not depend on how many blocks the
other rows need.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .attention import KeysValues, check_attention
from .checks import check_array, check_shape
from .config import ModelConfig
from .matmul import FULL

BLOCKS = 4  # of a cache: with more, fewer slots are read, but the program has a branch for each


class StoredKeysValues(NamedTuple):
    """Keys and values that are read many times; keys are stored transposed, as Q Kᵀ reads them
    (4 × as fast on a CPU)."""

    keys: Float[Array, "B H K S"]
    values: Float[Array, "B H S K"]

    @property
    def keys_values(self) -> KeysValues:
        return KeysValues(jnp.swapaxes(self.keys, 2, 3), self.values)


class Cache(NamedTuple):
    """The S slots of a layer, in blocks of equal size except the last one, and the last slot that
    a row may attend to.

    The blocks are arrays of their own: XLA would copy a slice before it multiplies it.
    """

    blocks: tuple[StoredKeysValues, ...]
    last: Int[Array, ""]


def stored(new: KeysValues) -> StoredKeysValues:
    return StoredKeysValues(jnp.swapaxes(new.keys, 2, 3), new.values)


def empty_memory(config: ModelConfig, rows: int, slots: int) -> tuple[StoredKeysValues, ...]:
    """Space for `slots` keys and values in every decoder layer."""
    zeros = jnp.zeros((rows, config.num_heads, slots, config.head_size), config.values_dtype)
    return (stored(KeysValues(zeros, zeros)),) * config.decoder_layers


def empty_caches(config: ModelConfig, rows: int, steps: int, beams: int = 1) -> tuple[Cache, ...]:
    """Space for `beams` keys and values of each step in every decoder layer."""
    size = -(-steps // BLOCKS)
    sizes = [min(size, steps - start) for start in range(0, steps, size)]
    blocks = [empty_memory(config, rows, size * beams) for size in sizes]
    return tuple(Cache(layer, jnp.array(0)) for layer in zip(*blocks, strict=True))


def extend_cache(cache: Cache, new: KeysValues, index: Int[Array, " B"]) -> Cache:
    """Write `new` at slot `index` of each row, inside one block. Slots after the last are ignored.

    In values NaN is written as 0: the weight of a masked slot is 0, and 0 · NaN would be NaN for
    the next sentence in this row.
    """
    check_array("index", index, "integer", "B")
    check_shape("index", index, new.keys.shape[:1], "one for each row of the cache")
    size, number = cache.blocks[0].values.shape[2], new.values.shape[2]
    rows = jnp.arange(len(index))[:, None]
    keys, values = jnp.swapaxes(new.keys, 1, 2), jnp.swapaxes(new.values, 1, 2)
    values = jnp.where(jnp.isnan(values), 0, values)
    put, extended = dict(unique_indices=True, mode="drop"), []
    for i, block in enumerate(cache.blocks):
        start = jnp.where(index // size == i, index % size, size)  # `size` is out of range
        slots = start[:, None] + jnp.arange(number)
        extended.append(
            StoredKeysValues(
                block.keys.at[rows, :, :, slots].set(keys, **put),
                block.values.at[rows, :, slots].set(values, **put),
            )
        )
    return Cache(tuple(extended), index.max())


@partial(jax.jit, static_argnames=("drop", "precision"))  # one trace for all layers
def attend_to_cache(
    queries: Float[Array, "B H T K"],
    blocks: tuple[StoredKeysValues, ...],
    last: Int[Array, ""],
    mask: Bool[Array, "#B #H #T S"],
    drop: Callable[[Array], Array] | None = None,
    precision: jax.lax.Precision = FULL,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """`blockwise_attention` to a Cache; the blocks after slot `last` are not read."""
    ends = np.cumsum([block.values.shape[2] for block in blocks])

    def attend(number):
        # The keys are transposed inside the branch: outside, XLA would copy them.
        read = [block.keys_values for block in blocks[:number]]
        part = mask[..., : ends[number - 1]]
        output, weights = blockwise_attention(queries, read, part, drop, precision)
        unread = [(0, 0)] * 3 + [(0, int(ends[-1] - ends[number - 1]))]
        return output, jnp.pad(weights, unread)

    branches = [partial(attend, i + 1) for i in range(len(blocks))]
    return jax.lax.switch(last // ends[0], branches)


def blockwise_attention(
    queries: Float[Array, "B H T K"],
    blocks: Sequence[KeysValues],
    mask: Bool[Array, "#B #H #T S"],
    drop: Callable[[Array], Array] | None = None,
    precision: jax.lax.Precision = FULL,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """`dot_product_attention` to keys in blocks, S in all; the sums are rounded in another order.

    A block that `mask` hides from a query adds exact zeros. So the output for a query has the same
    bits with and without further blocks that are hidden from it.
    """
    check_attention(queries, *blocks[0], None)
    scale, ends = queries.shape[-1] ** -0.5, np.cumsum([block.keys.shape[2] for block in blocks])
    multiply = partial(jnp.einsum, precision=precision, preferred_element_type=jnp.float32)
    scores = [
        jnp.where(own, multiply("bhtk,bhsk->bhts", queries * scale, block.keys), -jnp.inf)
        for block, own in zip(blocks, jnp.split(mask, ends[:-1], axis=-1), strict=True)
    ]
    largest = reduce(jnp.maximum, [x.max(axis=-1, keepdims=True) for x in scores])
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    exponentials = [jnp.exp(x - largest) for x in scores]
    total = reduce(jnp.add, [x.sum(axis=-1, keepdims=True) for x in exponentials])
    weights = [x / jnp.where(total == 0.0, 1.0, total) for x in exponentials]
    factors = weights if drop is None else [drop(x) for x in weights]
    parts = [
        multiply("bhts,bhsk->bhtk", x.astype(block.values.dtype), block.values)
        for x, block in zip(factors, blocks, strict=True)
    ]
    output = reduce(jnp.add, parts).astype(blocks[0].values.dtype)
    return output, jnp.concatenate(weights, axis=-1)

"""Attention on a TPU without scores in its memory: a kernel for each direction of a training step.

Axes: B batch · T queries · S keys · H heads · K head width · W = H · K ·
L = 128, the lanes of a TPU.
The scores of a block of queries and all keys of a row fit on the chip, so the softmax needs no
blocks of keys (for longer rows see Dao et al. 2022). One call of a kernel computes the L / K heads
that fill the lanes, for a block of queries of one row. The backward kernel computes the weights
again: between the two, only queries, keys and values are stored.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from .attention import masked_softmax

LANES = 128
MAX_SCORES = 512 * 512  # of a block: the backward kernel holds about five such arrays of float32
BLOCK_QUERIES = 512, 384, 256, 128  # sizes of a block, the largest first
MAX_LANE_BYTES = 4096  # of all keys of a row in one lane; the values and both gradients fit too


class KernelSettings(NamedTuple):
    """The arguments of a kernel that are not arrays."""

    head_width: int
    factor: float  # of the scores
    precision: jax.lax.Precision
    interpret: bool = False  # run the kernel on any platform, slowly


def fits_kernels(
    queries: Float[Array, "B H T K"],
    keys: Float[Array, "B H S K"],
    mask: Bool[Array, "#B #H #T S"] | None,
) -> bool:
    """Whether the axes fill whole tiles, the scores fit, and all heads have the same mask."""
    (_, heads, t, k), s = queries.shape, keys.shape[2]
    tiles = not (t % LANES or s % LANES or LANES % k or heads * k % LANES)
    fits = query_block(t, s) > 0 and s * keys.dtype.itemsize <= MAX_LANE_BYTES
    return tiles and fits and (mask is None or mask.shape[1] == 1)


def query_block(t: int, s: int) -> int:
    """The queries of a block; 0 if the scores of the smallest block and all keys do not fit."""
    return next((size for size in BLOCK_QUERIES if t % size == 0 and size * s <= MAX_SCORES), 0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_by_kernels(
    settings: KernelSettings,
    allowed: Int[Array, "B T S"],
    queries: Float[Array, "B T W"],
    keys: Float[Array, "B S W"],
    values: Float[Array, "B S W"],
) -> Float[Array, "B T W"]:
    """The output of `dot_product_attention` for arguments that `fits_kernels` accepts."""
    return call_kernel(forward_kernel, settings, 1, allowed, queries, keys, values)[0]


def attention_forward(settings: KernelSettings, *arrays: Array) -> tuple[Array, tuple[Array, ...]]:
    return attention_by_kernels(settings, *arrays), arrays


def attention_backward(
    settings: KernelSettings, arrays: tuple[Array, ...], gradient: Float[Array, "B T W"]
) -> tuple[Array | None, ...]:
    return None, *call_kernel(backward_kernel, settings, 3, *arrays, gradient)


attention_by_kernels.defvjp(attention_forward, attention_backward)


@partial(jax.jit, static_argnums=(0, 1, 2))
def call_kernel(
    kernel: Callable[..., None],
    settings: KernelSettings,
    results: int,
    allowed: Int[Array, "B T S"],
    *inputs: Float[Array, "B _ W"],
) -> list[Array]:
    """Call `kernel` for each row, L lanes and block of queries. Its results have the shapes of the
    first inputs; the blocks of a row and its lanes share a float32 sum of each result [S, L]."""
    (rows, t, s), like = allowed.shape, inputs[:results]
    block = query_block(t, s)
    of_queries = pl.BlockSpec((None, block, LANES), lambda row, lanes, place: (row, place, lanes))
    of_keys = pl.BlockSpec((None, s, LANES), lambda row, lanes, place: (row, 0, lanes))
    specs = [of_queries, of_keys, of_keys, of_queries]  # queries, keys, values, gradient
    call = pl.pallas_call(
        partial(kernel, settings),
        grid=(rows, inputs[0].shape[-1] // LANES, t // block),
        in_specs=[
            pl.BlockSpec((None, block, s), lambda row, lanes, place: (row, place, 0)),
            *specs[: len(inputs)],
        ],
        out_specs=specs[:results],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
        scratch_shapes=[pltpu.VMEM((s, LANES), jnp.float32)] * (results - 1),
        interpret=settings.interpret,
    )
    return list(call(allowed, *inputs))


# The arguments of the kernels are references to allowed [T, S] and to arrays [T, L] or [S, L], for
# the T queries of a block.


def forward_kernel(
    settings: KernelSettings, allowed: Any, queries: Any, keys: Any, values: Any, output: Any
) -> None:
    parts = [
        jnp.where(head, dot(settings, weights.astype(values.dtype), values[:], 1, 0), 0.0)
        for head, weights in weights_of_heads(settings, allowed, queries, keys)
    ]
    output[:] = reduce(jnp.add, parts).astype(output.dtype)


def backward_kernel(settings: KernelSettings, allowed: Any, *references: Any) -> None:
    """The gradients of softmax(Q Kᵀ) V; those of the softmax are P ⊙ (dP − Σ P ⊙ dP). Those of keys
    and values are sums over the blocks of queries."""
    queries, keys, values, gradient = references[:4]
    queries_gradient, keys_gradient, values_gradient, keys_sum, values_sum = references[4:]
    product, block = partial(dot, settings), pl.program_id(2)

    @pl.when(block == 0)
    def start() -> None:
        keys_sum[:], values_sum[:] = jnp.zeros_like(keys_sum), jnp.zeros_like(values_sum)

    parts = []
    for head, weights in weights_of_heads(settings, allowed, queries, keys):
        of_output = jnp.where(head, gradient[:], 0)  # [T, L]
        of_weights = product(of_output, values[:], 1, 1)  # [T, S]
        mean = (weights * of_weights).sum(axis=-1, keepdims=True)  # [T, 1]
        of_scores = settings.factor * weights * (of_weights - mean)  # [T, S]
        of_scores = of_scores.astype(queries.dtype)
        parts.append(jnp.where(head, product(of_scores, keys[:], 1, 0), 0.0))
        keys_sum[:] += jnp.where(head, product(of_scores, queries[:], 0, 0), 0.0)
        values_sum[:] += product(weights.astype(values.dtype), of_output, 0, 0)
    queries_gradient[:] = reduce(jnp.add, parts).astype(queries_gradient.dtype)

    @pl.when(block == pl.num_programs(2) - 1)
    def end() -> None:
        keys_gradient[:] = keys_sum[:].astype(keys_gradient.dtype)
        values_gradient[:] = values_sum[:].astype(values_gradient.dtype)


def weights_of_heads(
    settings: KernelSettings, allowed: Any, queries: Any, keys: Any
) -> Iterator[tuple[Bool[Array, "1 L"], Float[Array, "T S"]]]:
    """(its lanes, softmax weights) of each head. The lanes of other heads are zeroed in the
    queries, because a matrix unit multiplies L lanes in any case."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    for first in range(0, LANES, settings.head_width):
        head = (lane >= first) & (lane < first + settings.head_width)
        scores = dot(settings, jnp.where(head, queries[:], 0), keys[:], 1, 1)
        masked = jnp.where(allowed[:].astype(jnp.int32) != 0, scores * settings.factor, -jnp.inf)
        yield head, masked_softmax([masked])[0]


def dot(
    settings: KernelSettings, x: Array, y: Array, x_axis: int, y_axis: int
) -> Float[Array, "_ _"]:
    """The product of two matrices summed over the given axes, in float32."""
    return jax.lax.dot_general(
        x, y, (((x_axis,), (y_axis,)), ((), ())), settings.precision, jnp.float32
    )

"""Attention on a GPU without scores in its memory: Triton kernels (Dao et al. 2022).

Axes: B batch · T queries · S keys · H heads · K head width · W = H · K ·
t a block of queries · s a block of keys · N positions of either.
A call of a kernel computes a block of one head of one row: the output of queries, their gradients,
or the gradients of keys and values. It reads the other side block by block. From forward to
backward only the logarithm of each query's sum of exponentials is stored.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

from .fused_attention import KernelSettings, dot

BLOCK = 64  # queries or keys
LOWEST = float(jnp.finfo(jnp.float32).min)  # in place of −inf as a maximum (`masked_softmax`)


def fits_gpu_kernels(
    queries: Float[Array, "B H T K"],
    keys: Float[Array, "B H S K"],
    mask: Bool[Array, "#B #H #T S"] | None,
) -> bool:
    """Whether the axes fill whole blocks, and all heads have the same mask."""
    (t, k), s = queries.shape[2:], keys.shape[2]
    same_mask = mask is None or mask.shape[1] == 1
    return not (t % BLOCK or s % BLOCK) and k in (32, 64, 128) and same_mask


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_by_gpu_kernels(
    settings: KernelSettings,
    allowed: Int[Array, "B T S"],
    queries: Float[Array, "B T W"],
    keys: Float[Array, "B S W"],
    values: Float[Array, "B S W"],
) -> Float[Array, "B T W"]:
    return attention_forward(settings, allowed, queries, keys, values)[0]


def attention_forward(
    settings: KernelSettings, allowed: Array, queries: Array, keys: Array, values: Array
) -> tuple[Float[Array, "B T W"], tuple[Array, ...]]:
    width = queries.shape[-1]
    results = (width, queries.dtype), (width // settings.head_width, jnp.dtype("float32"))
    call = partial(call_kernel, forward_kernel, settings, 1, results)
    output, log_sums = call(allowed, (queries,), (keys, values))
    return output, (allowed, queries, keys, values, output, log_sums)


def attention_backward(
    settings: KernelSettings, arrays: tuple[Array, ...], gradient: Float[Array, "B T W"]
) -> tuple[Array | None, ...]:
    allowed, queries, keys, values, output, log_sums = arrays
    wide, per_head = ((x.shape[-1], x.dtype) for x in (queries, log_sums))
    call = partial(call_kernel, queries_kernel, settings, 1, (wide, per_head))
    of_queries, means = call(allowed, (queries, gradient, output, log_sums), (keys, values))
    call = partial(call_kernel, keys_values_kernel, settings, 2, (wide, wide))
    of_keys, of_values = call(allowed, (keys, values), (queries, gradient, log_sums, means))
    return None, of_queries, of_keys, of_values


attention_by_gpu_kernels.defvjp(attention_forward, attention_backward)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def call_kernel(
    kernel: Callable[..., None],
    settings: KernelSettings,
    axis: int,
    results: tuple[tuple[int, Any], ...],
    allowed: Int[Array, "B T S"],
    blocks: tuple[Float[Array, "B N _"], ...],
    others: tuple[Float[Array, "B _ _"], ...],
) -> list[Array]:
    """Call `kernel` for each row, head and block of this axis of `allowed`: with the block of
    `allowed`, the block and head of `blocks`, the head of `others`, and the block and head of the
    results, of which the last axis and the dtype are given."""
    (rows, positions, width), sizes = blocks[0].shape, list(allowed.shape)
    heads, sizes[axis] = width // settings.head_width, BLOCK

    def of_block(last: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, BLOCK, last // heads), lambda row, head, place: (row, place, head)
        )

    def of_all(x: Array) -> pl.BlockSpec:
        shape = None, x.shape[1], x.shape[-1] // heads
        return pl.BlockSpec(shape, lambda row, head, place: (row, 0, head))

    def mask_place(row: Any, head: Any, place: Any) -> tuple[Any, ...]:
        return (row, place, 0) if axis == 1 else (row, 0, place)

    call = pl.pallas_call(
        partial(kernel, settings),
        grid=(rows, heads, positions // BLOCK),
        in_specs=[
            pl.BlockSpec((None, *sizes[1:]), mask_place),
            *(of_block(x.shape[-1]) for x in blocks),
            *map(of_all, others),
        ],
        out_specs=[of_block(last) for last, _ in results],
        out_shape=[jax.ShapeDtypeStruct((rows, positions, *r[:1]), r[1]) for r in results],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=settings.interpret,
    )
    return list(call(allowed, *blocks, *others))


# The arguments of the kernels are references to allowed [t, S] or [T, s] and to arrays [t, K] or
# [S, K], or [T, K] and [s, K]; the statistics of queries are [t, 1] or [T, 1].


def forward_kernel(
    settings: KernelSettings, allowed: Any, queries: Any, keys: Any, values: Any, *results: Any
) -> None:
    """The softmax over blocks of keys: sums so far are rescaled if the maximum becomes larger."""

    def add(block: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        weighted, total, largest = sums  # [t, K], [t, 1], [t, 1]
        part = pl.ds(block * BLOCK, BLOCK)
        scores = masked_scores(settings, allowed[:, part], queries[:], keys[part, :])  # [t, s]
        maximum = jnp.maximum(largest, scores.max(axis=-1, keepdims=True))
        factor, exponentials = jnp.exp(largest - maximum), jnp.exp(scores - maximum)
        product = dot(settings, exponentials.astype(values.dtype), values[part, :], 1, 0)
        total = factor * total + exponentials.sum(axis=-1, keepdims=True)
        return factor * weighted + product, total, maximum

    zeros = jnp.zeros((BLOCK, 1), jnp.float32)
    start = jnp.zeros(queries.shape, jnp.float32), zeros, zeros + LOWEST
    output, log_sums = results
    weighted, total, largest = jax.lax.fori_loop(0, keys.shape[0] // BLOCK, add, start)
    total = jnp.maximum(total, 0.5)  # 0 if all scores are masked, otherwise at least exp(0)
    output[:] = (weighted / total).astype(output.dtype)
    log_sums[:] = largest + jnp.log(total)


def queries_kernel(
    settings: KernelSettings, allowed: Any, queries: Any, gradient: Any, *references: Any
) -> None:
    """The gradients of queries: those of the scores are P ⊙ (dP − m), where m = Σ P ⊙ dP is the
    product of the output and its gradient."""
    output, log_sums, keys, values, of_queries, means = references
    product = output[:].astype(jnp.float32) * gradient[:].astype(jnp.float32)
    mean = product.sum(axis=-1, keepdims=True)  # [t, 1]

    def add(block: Any, total: Array) -> Array:
        part = pl.ds(block * BLOCK, BLOCK)
        near, far = (queries[:], gradient[:], log_sums[:], mean), (keys[part, :], values[part, :])
        _, of_scores = weights_and_gradients(settings, allowed[:, part], near, far)
        return total + dot(settings, of_scores, keys[part, :], 1, 0)

    zeros = jnp.zeros(queries.shape, jnp.float32)
    total = jax.lax.fori_loop(0, keys.shape[0] // BLOCK, add, zeros)
    of_queries[:] = total.astype(of_queries.dtype)
    means[:] = mean


def keys_values_kernel(
    settings: KernelSettings, allowed: Any, keys: Any, values: Any, *references: Any
) -> None:
    queries, gradient, log_sums, means, of_keys, of_values = references

    def add(block: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        part = pl.ds(block * BLOCK, BLOCK)
        of_part = tuple(x[part, :] for x in (queries, gradient, log_sums, means))
        weights, of_scores = weights_and_gradients(
            settings, allowed[part, :], of_part, (keys[:], values[:])
        )
        of_output = dot(settings, weights.astype(values.dtype), of_part[1], 0, 0)
        return totals[0] + dot(settings, of_scores, of_part[0], 0, 0), totals[1] + of_output

    zeros = jnp.zeros(keys.shape, jnp.float32)
    totals = jax.lax.fori_loop(0, queries.shape[0] // BLOCK, add, (zeros, zeros))
    of_keys[:], of_values[:] = (x.astype(of_keys.dtype) for x in totals)


def weights_and_gradients(
    settings: KernelSettings,
    allowed: Int[Array, "t s"],
    of_queries: tuple[Array, ...],
    of_keys: tuple[Array, Array],
) -> tuple[Float[Array, "t s"], Float[Array, "t s"]]:
    """The softmax weights, and the gradients of Q Kᵀ in the dtype of the queries."""
    (queries, gradient, log_sums, mean), (keys, values) = of_queries, of_keys
    weights = jnp.exp(masked_scores(settings, allowed, queries, keys) - log_sums)
    of_weights = dot(settings, gradient, values, 1, 1)
    return weights, (settings.factor * weights * (of_weights - mean)).astype(queries.dtype)


def masked_scores(
    settings: KernelSettings, allowed: Array, queries: Array, keys: Array
) -> Float[Array, "t s"]:
    scores = settings.factor * dot(settings, queries, keys, 1, 1)
    return jnp.where(allowed != 0, scores, -jnp.inf)

"""The best continuations of live hypotheses: exact top-k in two stages, without a full log-softmax.

Axes: B lanes · N beams · V vocabulary · K candidates · C chunks · c values of a chunk.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from ..platforms import by_platform
from .hypotheses import take_slots

# (values [B, M, …], the row of x from which values[:, m] come [B or 1, M]) → log-probabilities
LogProbs = Callable[[Array, Array], Array]


def top_k(x: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Equal to `lax.top_k`; ties go to the lower index. In two stages if V is large."""
    values, _, index = top_k_of_rows(x.reshape(-1, 1, x.shape[-1]), k, lambda values, rows: values)
    return values.reshape(*x.shape[:-1], k), index.reshape(*x.shape[:-1], k)


def top_k_of_rows(
    x: Float[Array, "B N V"],
    k: int,
    log_probs: LogProbs,
    allowed: Bool[Array, "#B #N #V"] | bool = True,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Int[Array, "B k"]]:
    """The k largest log-probabilities of all N·V values, and the row and column of each.

    In each row, `log_probs` must not decrease where x increases. Ties of log-probabilities go to
    the lower row, then to the lower column. A value that is not `allowed` counts as −inf; the row
    and column of −inf are arbitrary.
    """
    rows, size = x.shape[1:]
    chunk = chunk_of(size)
    large = chunk >= 4 and rows * -(-size // chunk) > k

    def all_at_once() -> tuple[Array, Array, Array]:
        masked = jnp.where(allowed, x, -jnp.inf)
        values = log_probs(masked, jnp.arange(rows)[None])  # [B, N, V]
        values, index = jax.lax.top_k(values.reshape(len(x), -1), k)  # 2 × [B, k]
        return values, index // size, index % size

    return by_platform(
        lambda choices: large and choices.two_stages,
        lambda two: top_k_of_chunks(x, k, chunk, log_probs, allowed) if two else all_at_once(),
    )


def chunk_of(size: int) -> int:
    """The values of a chunk: a power of two near √V / 2."""
    return 1 << max(1, math.isqrt(size) // 2).bit_length() - 1


def by_lane(run: Callable[..., Array], *arrays: Shaped[Array, "B ..."]) -> Shaped[Array, "B ..."]:
    """run(*arrays), on a CPU for one lane after the other: what it computes in between then stays
    in a core's cache. `run` must treat lanes alike and allow that the axis B is missing."""
    return by_platform(
        lambda choices: choices.lanes_in_turn,
        lambda in_turn: jax.lax.map(lambda lane: run(*lane), arrays) if in_turn else run(*arrays),
    )


def logsumexp(x: Float[Array, "B N V"]) -> Float[Array, "B N"]:
    """`jax.nn.logsumexp` over the last axis; the largest value is that of the chunks' maxima, which
    `top_k_of_rows` of the same values computes too."""
    # Without the barrier XLA computes the largest value in a pass of its own.
    maxima = jax.lax.optimization_barrier(chunk_maxima(x, chunk_of(x.shape[-1])))
    largest = maxima.max(axis=-1, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    sums = by_lane(lambda x, largest: jnp.exp(x - largest).sum(axis=-1), x, largest)
    return jnp.log(sums) + largest[..., 0]


def chunk_maxima(x: Float[Array, "... V"], chunk: int) -> Float[Array, "... C"]:
    """The maximum of each chunk of consecutive values; the last chunk can be shorter."""
    window = (1,) * (x.ndim - 1) + (chunk,)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % chunk)]
    # Not `max` of a reshaped array: on a CPU, XLA copies x for that, and takes longer.
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, padding)


def top_k_of_chunks(
    x: Float[Array, "B N V"],
    k: int,
    chunk: int,
    log_probs: LogProbs,
    allowed: Bool[Array, "#B #N #V"] | bool = True,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Int[Array, "B k"]]:
    """`top_k_of_rows` in two stages, with chunks of `chunk` values; there must be more than `k`.

    The k largest values lie in the k chunks with the largest maxima. The chunks are kept in the
    order of rows and columns, so ties are resolved as in `lax.top_k`. The maxima are computed in
    one pass over x; then only the chosen chunks are read.
    """
    (rows, size), chunks = x.shape[1:], -(-x.shape[-1] // chunk)
    if allowed is True:
        maxima = chunk_maxima(x, chunk)
    else:
        allowed = jnp.broadcast_to(allowed, (len(x), *jnp.shape(allowed)[1:]))
        maxima = by_lane(
            lambda x, allowed: chunk_maxima(jnp.where(allowed, x, -jnp.inf), chunk), x, allowed
        )
    maxima = log_probs(maxima, jnp.arange(rows)[None])  # [B, N, C]
    _, best = jax.lax.top_k(maxima.reshape(len(x), -1), k)
    best = jnp.sort(best, axis=-1)  # [B, k]: numbers of chunks
    row, first = best // chunks, best % chunks * chunk  # [B, k]
    # The last chunk of a row can be shorter: a full one that ends at V is read instead.
    start = jnp.minimum(first, size - chunk)
    column = start[..., None] + jnp.arange(chunk, dtype=jnp.int32)  # [B, k, c]
    inside = column >= first[..., None]
    if allowed is not True:
        inside &= take(jnp.broadcast_to(allowed, x.shape), row, start, chunk)
    values = jnp.where(inside, take(x, row, start, chunk), -jnp.inf)  # [B, k, c]
    values, index = jax.lax.top_k(log_probs(values, row).reshape(len(x), -1), k)  # 2 × [B, k]
    row = jnp.take_along_axis(row, index // chunk, axis=1)
    return values, row, jnp.take_along_axis(column.reshape(len(x), -1), index, axis=1)


def take(
    x: Shaped[Array, "B N V"], row: Int[Array, "B k"], start: Int[Array, "B k"], size: int
) -> Shaped[Array, "B k c"]:
    """x[b, row[b, i], start[b, i] : start[b, i] + size] for each b and i."""

    def take_chunk(x: Array, row: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice(x, (row, start), (1, size))[0]

    return jax.vmap(jax.vmap(take_chunk, (None, 0, 0)))(x, row, start)


def candidates(
    logits: Float[Array, "B N V"],
    normalizer: Float[Array, "B N"],
    live: Float[Array, "B N"],
    at_limit: Bool[Array, " B"],
    end_id: int,
    allowed: Bool[Array, "#B #N #V"] | bool = True,
) -> tuple[Float[Array, "B K"], Int[Array, "B K"], Int[Array, "B K"]]:
    """The best K continuations of the N live hypotheses: log-probabilities, live slots, tokens.

    K = min(2N, N · V), so that N remain if N end; for N = 1, greedy search, K = 1: it ends at the
    first step whose best token is the end token. The log-probability of a token is its logit −
    `normalizer`; `live` are the log-probabilities of the live hypotheses. Only `allowed` tokens are
    candidates. At its limit a sentence can only end, even if the end token is not allowed. Neither
    restriction renormalises probabilities. Ties are those of the sums, which are rounded: they go
    to the lower slot, then to the lower token.
    """
    beams, vocab = logits.shape[1:]
    number = 1 if beams == 1 else min(2 * beams, beams * vocab)

    def log_probs(values: Array, rows: Array) -> Array:
        of_rows = take_slots(rows, live, normalizer)  # 2 × [B, M]
        before, total = (jnp.expand_dims(x, range(2, values.ndim)) for x in of_rows)
        # If no token is possible, −inf − −inf is NaN, which top_k puts first or last by its sign.
        # The logits of a hypothesis that is not live may be NaN.
        impossible = jnp.isneginf(values) | jnp.isneginf(before)
        return before + jnp.where(impossible, -jnp.inf, values - total)

    values, slots, tokens = top_k_of_rows(logits, number, log_probs, allowed)  # 3 × [B, K]
    # The limit is applied to the logits of the end token only: a mask over the vocabulary would
    # write another [B, N, V] array.
    end_values = log_probs(logits[:, :, end_id], jnp.arange(beams)[None])  # [B, N]
    end_values, end_slots = jax.lax.top_k(end_values, min(beams, number))
    rest = (0, 0), (0, number - end_values.shape[1])
    end_values = jnp.pad(end_values, rest, constant_values=-jnp.inf)  # [B, K]
    end_slots = jnp.pad(end_slots, rest)  # [B, K]
    at_limit = at_limit[:, None]
    return (
        jnp.where(at_limit, end_values, values),
        jnp.where(at_limit, end_slots, slots),
        jnp.where(at_limit, end_id, tokens),
    )

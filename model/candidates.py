"""The best continuations of live hypotheses: exact top-k in two stages, without a full log-softmax.

Axes: B lanes · N beams · V vocabulary · K candidates · C chunks.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from .platforms import by_platform


def top_k(
    x: Float[Array, "... V"], k: int, allowed: Bool[Array, "..."] | bool = True
) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Equal to `lax.top_k` of the `allowed` values, −inf for others; ties go to the lower index.

    In two stages if V is large. `allowed` broadcasts to x.
    """
    size, chunk = x.shape[-1], chunk_of(x.shape[-1])
    large = chunk >= 4 and -(-size // chunk) > k
    return by_platform(
        lambda choices: large and choices.two_stages,
        lambda two: (
            top_k_of_chunks(x, k, chunk, allowed)
            if two
            else tuple(jax.lax.top_k(jnp.where(allowed, x, -jnp.inf), k))
        ),
    )


def chunk_of(size: int) -> int:
    """The values of a chunk, near √V / 2: a divisor of V if there is one, so that the maxima of all
    chunks are one pass without a copy; else a power of two."""
    middle = max(1, math.isqrt(size) // 2)
    divisors = [n for n in range(middle // 2, 2 * middle + 1) if n and size % n == 0]
    power = 1 << middle.bit_length() - 1
    return min(divisors, key=lambda n: abs(n - middle), default=power)


def logsumexp(x: Float[Array, "... V"]) -> Float[Array, "..."]:
    """`jax.nn.logsumexp` over the last axis; the largest value is that of the chunks' maxima, which
    `top_k` of the same values computes too."""
    largest = chunk_maxima(x, chunk_of(x.shape[-1])).max(axis=-1, keepdims=True)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.log(jnp.exp(x - largest).sum(axis=-1)) + largest[..., 0]


def chunk_maxima(x: Float[Array, "... V"], chunk: int) -> Float[Array, "... C"]:
    """The maximum of each chunk of consecutive values; the last chunk can be shorter."""
    size = x.shape[-1]
    whole = size // chunk * chunk
    maxima = x[..., :whole].reshape(*x.shape[:-1], whole // chunk, chunk).max(axis=-1)
    if whole == size:
        return maxima
    rest = x[..., whole:].max(axis=-1, keepdims=True)
    return jnp.concatenate([maxima, rest], axis=-1)


def top_k_of_chunks(
    x: Float[Array, "... V"], k: int, chunk: int, allowed: Bool[Array, "..."] | bool = True
) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """`top_k` in two stages, with chunks of `chunk` values; there must be more than `k` of them.

    The k largest values lie in the k chunks with the largest maxima. The chunks are kept in the
    order of their index, so ties are resolved as in `lax.top_k`. The maxima are computed in one
    pass, which writes no array of the size of x if all values are allowed; then only the chosen
    chunks are read.
    """
    size = x.shape[-1]
    masked = x if allowed is True else jnp.where(allowed, x, -jnp.inf)
    _, best = jax.lax.top_k(chunk_maxima(masked, chunk), k)
    first = (jnp.sort(best, axis=-1) * chunk)[..., None]
    # The last chunk can be shorter: a full one that ends at V is read instead.
    index = jnp.minimum(first, size - chunk) + jnp.arange(chunk)
    inside = index >= first
    if allowed is not True:
        inside &= take(jnp.broadcast_to(allowed, x.shape), index)
    values = jnp.where(inside, take(x, index), -jnp.inf)
    values, index = (one.reshape(*one.shape[:-2], k * chunk) for one in (values, index))
    values, where = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(index, where, axis=-1)


def take(x: Shaped[Array, "... V"], index: Int[Array, "... k c"]) -> Shaped[Array, "... k c"]:
    """The values of each row at the consecutive indices index[..., i, :]."""
    chunk = index.shape[-1]

    def slices(row, starts):
        return jax.vmap(lambda start: jax.lax.dynamic_slice(row, (start,), (chunk,)))(starts)

    rows = x.reshape(-1, x.shape[-1])
    found = jax.vmap(slices)(rows, index[..., 0].reshape(len(rows), -1))
    return found.reshape(index.shape)


def candidates(
    logits: Float[Array, "B N V"],
    normalizer: Float[Array, "B N"],
    live: Float[Array, "B N"],
    at_limit: Bool[Array, " B"],
    end_id: int,
    allowed: Bool[Array, "#B #N #V"] | bool = True,
) -> tuple[Float[Array, "B K"], Int[Array, "B K"], Int[Array, "B K"]]:
    """The best 2N continuations (N = 1: the best one): log-probabilities, live slots, tokens.

    The log-probability of a token is its logit − `normalizer`; `live` are the log-probabilities of
    the live hypotheses. Only `allowed` tokens are candidates. At its limit a sentence can only end,
    even if the end token is not allowed. Neither restriction renormalises probabilities.
    """
    beams, vocab = logits.shape[1:]
    each = 1 if beams == 1 else min(2 * beams, vocab)
    values, tokens = top_k(logits, each, allowed)
    # Without a mask over the vocabulary, which would write another [B, N, V] array.
    end = jnp.where(jnp.arange(each) == 0, logits[:, :, end_id, None], -jnp.inf)
    at_limit = at_limit[:, None, None]
    values, tokens = jnp.where(at_limit, end, values), jnp.where(at_limit, end_id, tokens)
    # If no token is possible, −inf − −inf is NaN, which top_k puts first or last by its sign bit.
    change = jnp.where(jnp.isneginf(values), -jnp.inf, values - normalizer[:, :, None])
    log_probs = live[:, :, None] + change
    log_probs, where = jax.lax.top_k(
        log_probs.reshape(len(log_probs), -1), min(beams * each, 1 if beams == 1 else 2 * beams)
    )
    tokens = jnp.take_along_axis(tokens.reshape(len(tokens), -1), where, axis=1)
    return log_probs, where // each, tokens

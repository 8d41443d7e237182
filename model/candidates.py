"""The best continuations of live hypotheses: exact top-k in two stages, without a full log-softmax.

Axes: B lanes · N beams · V vocabulary · K candidates.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .platforms import by_platform


def top_k(x: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Equal to `lax.top_k` (ties go to the lower index), in two stages if V is large."""
    size = x.shape[-1]
    chunk = 1 << max(0, int((size / k) ** 0.5).bit_length() - 1)
    large = chunk >= 4 and -(-size // chunk) > k
    return by_platform(
        lambda choices: large and choices.two_stages,
        lambda two: top_k_of_chunks(x, k, chunk) if two else tuple(jax.lax.top_k(x, k)),
    )


def top_k_of_chunks(
    x: Float[Array, "... V"], k: int, chunk: int
) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """`top_k` in two stages, with chunks of `chunk` values; there must be more than `k` of them.

    The k largest values lie in the k chunks with the largest maxima. The chunks are kept in the
    order of their index, so ties are resolved as in `lax.top_k`.
    """
    size = x.shape[-1]
    chunks = -(-size // chunk)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, chunks * chunk - size)]
    x = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*x.shape[:-1], chunks, chunk)
    _, best = jax.lax.top_k(x.max(axis=-1), k)
    best = jnp.sort(best, axis=-1)
    inside = jnp.take_along_axis(x, best[..., None], axis=-2)
    values, where = jax.lax.top_k(inside.reshape(*inside.shape[:-2], k * chunk), k)
    index = jnp.take_along_axis(best, where // chunk, axis=-1) * chunk + where % chunk
    return values, index


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
    values, tokens = top_k(jnp.where(allowed, logits, -jnp.inf), each)
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

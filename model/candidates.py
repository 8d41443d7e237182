"""The best continuations of live hypotheses: exact top-k in two stages, and no full log-softmax.

Axes: B sentences · N beams · V vocabulary · K candidates.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def top_k(x: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Exactly `lax.top_k` (ties to the lower index), in two stages where V is large.

    The k largest lie in the k chunks with the largest maxima; chunks are kept in the order of
    their index, so that ties match.
    """
    size = x.shape[-1]
    chunk = 1 << max(0, int((size / k) ** 0.5).bit_length() - 1)
    chunks = -(-size // chunk)
    if chunk < 4 or chunks <= k:
        values, indices = jax.lax.top_k(x, k)
        return values, indices
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

    The log-probability of a token is its logit − `normalizer`; `live` are those of the hypotheses
    so far. Only `allowed` tokens continue. At its limit a sentence may only end, also where that is
    not allowed. Probabilities are not renormalised for either.
    """
    beams, vocab = logits.shape[1:]
    each = 1 if beams == 1 else min(2 * beams, vocab)
    values, tokens = top_k(jnp.where(allowed, logits, -jnp.inf), each)
    # Not by a mask: another [B, N, V] array would be written for it.
    end = jnp.where(jnp.arange(each) == 0, logits[:, :, end_id, None], -jnp.inf)
    at_limit = at_limit[:, None, None]
    values, tokens = jnp.where(at_limit, end, values), jnp.where(at_limit, end_id, tokens)
    # Where nothing may follow, −inf − −inf is NaN, which top_k puts first or last by its sign bit.
    change = jnp.where(jnp.isneginf(values), -jnp.inf, values - normalizer[:, :, None])
    log_probs = live[:, :, None] + change
    log_probs, where = jax.lax.top_k(
        log_probs.reshape(len(log_probs), -1), min(beams * each, 1 if beams == 1 else 2 * beams)
    )
    tokens = jnp.take_along_axis(tokens.reshape(len(tokens), -1), where, axis=1)
    return log_probs, where // each, tokens

"""Beam search as one lax.while_loop over any step function; it knows no model.

Axes: B sentences · N beams · V vocabulary · T steps · K candidates.
One idea to know: nothing moves when beams are reordered. Tokens and parents are appended once a
step, a caller's cache stays where it is and is masked by `ancestry`, and a finished hypothesis is
a (step, slot) pair that is walked back after the loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# (tokens [B, N], state, t, parents [B, N], ancestry [B, N, T]) → (logits [B, N, V], state)
Step = Callable[[Array, Any, Array, Array, Array], tuple[Array, Any]]


class Hypotheses(NamedTuple):
    """The n best of each sentence, best first; absent ones have score −inf and length 0.

    `tokens` ends with the end token, which `lengths` counts; what follows is the end token too.
    `log_probs` are natural logarithms, `scores` are log_probs over the length penalty.
    """

    tokens: Int[Array, "B nbest T"]
    lengths: Int[Array, "B nbest"]
    scores: Float[Array, "B nbest"]
    log_probs: Float[Array, "B nbest"]


class Live(NamedTuple):
    """Hypotheses that go on: the token to feed next, where it came from, its log-probability."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    ancestry: Int[Array, "B N T"]  # the slot at each earlier step; −1 at steps to come
    log_probs: Float[Array, "B N"]


class Finished(NamedTuple):
    """The best hypotheses that ended: in step `steps`, from the live slot `slots`."""

    scores: Float[Array, "B N"]
    log_probs: Float[Array, "B N"]
    steps: Int[Array, "B N"]
    slots: Int[Array, "B N"]


class Loop(NamedTuple):
    """What the while_loop carries."""

    t: Int[Array, ""]
    live: Live
    finished: Finished
    tokens: Int[Array, "T B N"]  # chosen in step t and put in slot n
    parents: Int[Array, "T B N"]  # … where it continued this slot
    done: Bool[Array, " B"]
    state: Any


def length_penalty(length: Array | float, alpha: Array | float, power: bool = False) -> Array:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14), or length^alpha if `power`."""
    length = jnp.asarray(length, jnp.float32)
    return (length if power else (5.0 + length) / 6.0) ** alpha


def top_k(x: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """Exactly `lax.top_k` (ties to the lower index), in two stages where V is large.

    The k largest lie in the k chunks with the largest maxima; chunks are kept in the order of
    their index, so that ties match.
    """
    size = x.shape[-1]
    chunk = 1 << max(0, int((size / k) ** 0.5).bit_length() - 1)
    chunks = -(-size // chunk)
    if k == 1:
        best = jnp.argmax(x, axis=-1, keepdims=True)
        return jnp.take_along_axis(x, best, axis=-1), best
    if chunk < 4 or chunks <= k:
        return tuple(jax.lax.top_k(x, k))
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
    live: Live,
    at_limit: Bool[Array, " B"],
    end_id: int,
) -> tuple[Float[Array, "B K"], Int[Array, "B K"], Int[Array, "B K"]]:
    """The best 2N continuations (N = 1: the best one): log-probabilities, live slots, tokens.

    At its limit a sentence may only end; probabilities are not renormalised for that.
    """
    beams, vocab = logits.shape[1:]
    each = 1 if beams == 1 else min(2 * beams, vocab)
    normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    allowed = ~at_limit[:, None, None] | (jnp.arange(vocab) == end_id)
    values, tokens = top_k(jnp.where(allowed, logits, -jnp.inf), each)
    # Where nothing may follow, −inf − −inf is NaN, which top_k puts first or last by its sign bit.
    change = jnp.where(jnp.isneginf(values), -jnp.inf, values - normalizer)
    log_probs = live.log_probs[:, :, None] + change
    log_probs, where = jax.lax.top_k(
        log_probs.reshape(len(log_probs), -1), min(beams * each, 1 if beams == 1 else 2 * beams)
    )
    tokens = jnp.take_along_axis(tokens.reshape(len(tokens), -1), where, axis=1)
    return log_probs, where // each, tokens


def pick(order: Int[Array, "B N"], *arrays: Array) -> tuple[Array, ...]:
    """Entries `order` of each array's second axis."""
    return tuple(jnp.take_along_axis(a, order, axis=1) for a in arrays)


def beam_search(
    step: Step,
    state: Any,
    start_tokens: Int[Array, " B"],
    limits: Int[Array, " B"],
    *,
    beam_size: int,
    max_length: int,
    end_id: int,
    alpha: float = 0.6,
    power_penalty: bool = False,
    nbest: int = 1,
) -> Hypotheses:
    """The best hypotheses of score log p / penalty(length), each at most `limits` tokens long.

    `step` is called with t = 0, 1, … and the token each of the N live hypotheses has just got
    (`start_tokens` first); it keeps what it wants in `state`. What it stored for hypothesis n in
    step t belongs to slot n of step t: `ancestry[b, n, s]` is the slot of n's ancestor in step
    s ≤ t (n itself at t, −1 later), `parents[b, n]` the slot it continued.

    `limits` (with the end token) are capped at the static `max_length`; at its limit a hypothesis
    may only end. A sentence is done when nothing lives, or when its best live hypothesis could not
    beat the nbest-th finished one even at its limit. alpha ≥ 0. A sentence's result does not depend
    on its neighbours.
    """
    batch, slots = start_tokens.shape[0], jnp.arange(beam_size)
    limits = jnp.clip(limits, 1, max_length)
    full = lambda value, dtype: jnp.full((batch, beam_size), value, dtype)  # noqa: E731

    def advance(loop: Loop) -> Loop:
        t, live, finished = loop.t, loop.live, loop.finished
        logits, state = step(live.tokens, loop.state, t, live.parents, live.ancestry)
        at_limit = t + 1 >= limits
        log_probs, parents, tokens = candidates(logits, live, at_limit, end_id)
        ends = tokens == end_id

        scores = log_probs / length_penalty(t + 1, alpha, power_penalty)
        ended = Finished(jnp.where(ends, scores, -jnp.inf), log_probs, full_like(t, ends), parents)
        pairs = zip(finished, ended, strict=True)
        merged = Finished(*(jnp.concatenate(pair, axis=1) for pair in pairs))
        _, order = jax.lax.top_k(merged.scores, beam_size)
        finished = Finished(*pick(order, *merged))

        alive, order = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
        parents, tokens = pick(order, parents, tokens)
        bound = alive[:, 0] / length_penalty(limits, alpha, power_penalty)
        done = loop.done | (finished.scores[:, nbest - 1] >= bound)
        ancestry = jnp.take_along_axis(live.ancestry, parents[:, :, None], axis=1)
        ancestry = jax.lax.dynamic_update_slice_in_dim(
            ancestry, jnp.broadcast_to(slots, parents.shape)[:, :, None], t + 1, axis=2
        )
        alive = jnp.where(done[:, None], -jnp.inf, alive)
        return Loop(
            t + 1,
            Live(tokens, parents, ancestry, alive),
            finished,
            loop.tokens.at[t].set(tokens),
            loop.parents.at[t].set(parents),
            done,
            state,
        )

    ancestry = jnp.full((batch, beam_size, max_length), -1).at[:, :, 0].set(slots)
    start = Live(
        jnp.broadcast_to(start_tokens[:, None], (batch, beam_size)),
        jnp.broadcast_to(slots, (batch, beam_size)),
        ancestry,
        full(-jnp.inf, jnp.float32).at[:, 0].set(0.0),
    )
    none = Finished(
        full(-jnp.inf, jnp.float32), full(-jnp.inf, jnp.float32), full(0, int), full(0, int)
    )
    history = jnp.zeros((max_length, batch, beam_size), int)
    loop = jax.lax.while_loop(
        lambda loop: (loop.t < max_length) & ~loop.done.all(),
        advance,
        Loop(jnp.array(0), start, none, history, history, jnp.zeros(batch, bool), state),
    )
    return walk_back(loop, nbest, end_id)


def full_like(value: Array, like: Array) -> Array:
    return jnp.full(like.shape, value)


def walk_back(loop: Loop, nbest: int, end_id: int) -> Hypotheses:
    """Read the finished hypotheses from their (step, slot) back to the start, once."""
    finished = Finished(*(x[:, :nbest] for x in loop.finished))
    there = finished.scores > -jnp.inf

    def earlier(slots, history):
        t, tokens, parents = history
        before = t < finished.steps
        token = jnp.where(before, jnp.take_along_axis(tokens, slots, axis=1), end_id)
        return jnp.where(before, jnp.take_along_axis(parents, slots, axis=1), slots), token

    times = jnp.arange(len(loop.tokens))
    _, tokens = jax.lax.scan(
        earlier, finished.slots, (times, loop.tokens, loop.parents), reverse=True
    )
    return Hypotheses(
        jnp.moveaxis(tokens, 0, -1),
        jnp.where(there, finished.steps + 1, 0),
        finished.scores,
        jnp.where(there, finished.log_probs, -jnp.inf),
    )

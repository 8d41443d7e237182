"""The hypotheses of a beam search: live, finished, stored, and read back once at the end.

Axes: B rows, searched side by side · Q sentences · N beams · T steps.
Tokens and parents are appended once per step and never moved. A finished hypothesis is a
(step, slot) pair; `walk_back` follows the parents from there to the start.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Hypotheses(NamedTuple):
    """The n best of each sentence, best first; absent ones have score −inf and length 0.

    `tokens` ends with the end token, which `lengths` counts; the rest is filled with end tokens.
    `log_probs` are natural logarithms, `scores` are log_probs divided by the length penalty. Both
    are NaN for a sentence whose logits were NaN or +inf.
    """

    tokens: Int[Array, "Q nbest T"]
    lengths: Int[Array, "Q nbest"]
    scores: Float[Array, "Q nbest"]
    log_probs: Float[Array, "Q nbest"]


class Live(NamedTuple):
    """Hypotheses to extend: the token to feed next, its parent slot, the log-probability."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    ancestry: Int[Array, "B N T"]  # the slot at each earlier step; −1 at later steps
    log_probs: Float[Array, "B N"]


class Finished(NamedTuple):
    """The best hypotheses that ended: in step `steps`, as a continuation of live slot `slots`."""

    scores: Float[Array, "B N"]
    log_probs: Float[Array, "B N"]
    steps: Int[Array, "B N"]
    slots: Int[Array, "B N"]


class Kept(NamedTuple):
    """What is stored of each sentence; the last row is a dummy for idle rows of the search."""

    tokens: Int[Array, "Q+1 T N"]  # chosen in step t for slot n
    parents: Int[Array, "Q+1 T N"]  # the slot that it continued
    finished: Finished


class Loop(NamedTuple):
    """What the while_loop carries."""

    taken: Int[Array, ""]  # sentences of the queue that have been started
    sentences: Int[Array, " B"]  # the sentence of each row
    t: Int[Array, " B"]
    live: Live
    finished: Finished
    done: Bool[Array, " B"]
    kept: Kept
    state: Any


def length_penalty(
    length: Array | float, alpha: Array | float, power: bool = False
) -> Float[Array, "..."]:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14), or length^alpha if `power`."""
    length = jnp.asarray(length, jnp.float32)
    return (length if power else (5.0 + length) / 6.0) ** alpha


def pick(order: Int[Array, "B N"], *arrays: Array) -> tuple[Array, ...]:
    """Entries `order` of each array's second axis."""
    return tuple(jnp.take_along_axis(a, order, axis=1) for a in arrays)


def merged(finished: Finished, ended: Finished, failed: Bool[Array, " B"]) -> Finished:
    """The N best of both; every score of a `failed` row is NaN, and remains NaN."""
    failed |= jnp.isnan(finished.scores).any(axis=1)
    pairs = zip(finished, ended, strict=True)
    both = Finished(*(jnp.concatenate(pair, axis=1) for pair in pairs))
    _, order = jax.lax.top_k(both.scores, finished.scores.shape[1])
    best = Finished(*pick(order, *both))
    return best._replace(scores=jnp.where(failed[:, None], jnp.nan, best.scores))


def stored(loop: Loop) -> Kept:
    """`kept` with the finished hypotheses of each row's sentence."""
    pairs = zip(loop.kept.finished, loop.finished, strict=True)
    finished = Finished(*(old.at[loop.sentences].set(new) for old, new in pairs))
    return loop.kept._replace(finished=finished)


def history(loop: Loop) -> Int[Array, "B N T"]:
    """The tokens of each live hypothesis, −1 at later steps."""
    slots = jnp.pad(loop.live.ancestry[:, :, 1:], ((0, 0), (0, 0), (0, 1)), constant_values=-1)
    tokens = jnp.swapaxes(loop.kept.tokens[loop.sentences], 1, 2)
    chosen = jnp.take_along_axis(tokens, jnp.maximum(slots, 0), axis=1)
    return jnp.where(slots < 0, -1, chosen)


def walk_back(kept: Kept, nbest: int, end_id: int) -> Hypotheses:
    """Read the finished hypotheses from their (step, slot) back to the start, once."""
    tokens, parents = (jnp.moveaxis(x[:-1], 1, 0) for x in (kept.tokens, kept.parents))
    finished = Finished(*(x[:-1, :nbest] for x in kept.finished))

    def earlier(slots, written):
        t, tokens, parents = written
        before = t < finished.steps
        token = jnp.where(before, jnp.take_along_axis(tokens, slots, axis=1), end_id)
        return jnp.where(before, jnp.take_along_axis(parents, slots, axis=1), slots), token

    times = jnp.arange(len(tokens))
    _, tokens = jax.lax.scan(earlier, finished.slots, (times, tokens, parents), reverse=True)
    present = finished.scores > -jnp.inf  # False for NaN
    return Hypotheses(
        jnp.moveaxis(tokens, 0, -1),
        jnp.where(present, finished.steps + 1, 0),
        finished.scores,
        jnp.where(present, finished.log_probs, finished.scores),
    )

"""Beam search as one lax.while_loop over any step function; it knows no model.

Axes: B rows, searched side by side · Q sentences · N beams · V vocabulary · T steps.
Two ideas to know. Nothing moves when beams are reordered: tokens and parents are appended once a
step, a caller's cache stays where it is and is masked by `ancestry`, and a finished hypothesis is
a (step, slot) pair that is walked back after the loop. And no row idles: with a `Queue`, a row
whose sentence is done takes the next one, so every row counts its own steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from model.candidates import candidates
from model.constraints import Rules

# (tokens [B, N], state, t [B], parents [B, N], ancestry [B, N, T]) → (logits [B, N, V], state)
Step = Callable[[Array, Any, Array, Array, Array], tuple[Array, Any]]


class Queue(NamedTuple):
    """How Q sentences share fewer `rows`: one that is free takes the next sentence.

    `load(state, row, sentence)` returns the state in which `row` begins `sentence`. The first ones
    come that way too, so `state` may start empty.
    """

    rows: int
    load: Callable[[Any, Array, Array], Any]


class Hypotheses(NamedTuple):
    """The n best of each sentence, best first; absent ones have score −inf and length 0.

    `tokens` ends with the end token, which `lengths` counts; what follows is the end token too.
    `log_probs` are natural logarithms, `scores` are log_probs over the length penalty.
    """

    tokens: Int[Array, "Q nbest T"]
    lengths: Int[Array, "Q nbest"]
    scores: Float[Array, "Q nbest"]
    log_probs: Float[Array, "Q nbest"]


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


class Kept(NamedTuple):
    """What is written down of each sentence; the last one is nobody, for rows that are free."""

    tokens: Int[Array, "Q+1 T N"]  # chosen in step t and put in slot n
    parents: Int[Array, "Q+1 T N"]  # … where it continued this slot
    finished: Finished


class Loop(NamedTuple):
    """What the while_loop carries."""

    taken: Int[Array, ""]  # sentences of the queue that have been begun
    sentences: Int[Array, " B"]  # whom each row works for
    t: Int[Array, " B"]
    live: Live
    finished: Finished
    done: Bool[Array, " B"]
    kept: Kept
    state: Any


def length_penalty(length: Array | float, alpha: Array | float, power: bool = False) -> Array:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14), or length^alpha if `power`."""
    length = jnp.asarray(length, jnp.float32)
    return (length if power else (5.0 + length) / 6.0) ** alpha


def pick(order: Int[Array, "B N"], *arrays: Array) -> tuple[Array, ...]:
    """Entries `order` of each array's second axis."""
    return tuple(jnp.take_along_axis(a, order, axis=1) for a in arrays)


def beam_search(
    step: Step,
    state: Any,
    start_tokens: Int[Array, " Q"],
    limits: Int[Array, " Q"],
    *,
    beam_size: int,
    max_length: int,
    end_id: int,
    alpha: float = 0.6,
    power_penalty: bool = False,
    nbest: int = 1,
    rules: Rules | None = None,
    horizon: int = 0,
    queue: Queue | None = None,
) -> Hypotheses:
    """The best hypotheses of score log p / penalty(length), each at most `limits` tokens long.

    `step` is called with t = 0, 1, … of each row and the token each of its N live hypotheses has
    just got (`start_tokens` first); it keeps what it wants in `state`. What it stored for
    hypothesis n in step t belongs to slot n of step t: `ancestry[b, n, s]` is the slot of n's
    ancestor in step s ≤ t (n itself at t, −1 later), `parents[b, n]` the slot it continued.

    `limits` (with the end token) are capped at the static `max_length`; at its limit a hypothesis
    may only end. A sentence of limit 0 is not there and has no hypotheses; such come last. alpha ≥
    0. `rules` (model/constraints.py) may forbid tokens or change logits.

    A sentence is done when nothing lives, or when its best live hypothesis could not beat the
    nbest-th finished one if it ended at its limit at no cost: that bound is exact. With a `horizon`
    it is taken to end within so many tokens: fewer steps, and once in a while a lower score.

    Without a `queue` there is a row for every sentence. A sentence's result depends neither on its
    neighbours nor on when it is begun.
    """
    if nbest > beam_size:
        raise ValueError(f"nbest must be at most beam_size, got {nbest} > {beam_size}")
    total, slots = len(start_tokens), jnp.arange(beam_size)
    rows, load = queue or Queue(total, lambda state, row, sentence: state)
    start_tokens, limits = (jnp.append(x, 0) for x in (start_tokens, limits))
    limits = jnp.minimum(limits, max_length)
    present = (limits > 0).sum()

    def none(size: int) -> Finished:
        nothing, nowhere = (jnp.full((size, beam_size), x) for x in (-jnp.inf, 0))
        return Finished(nothing, nothing, nowhere, nowhere)

    def waiting(loop: Loop) -> Array:
        return (loop.taken < present) & loop.done.any()

    def begin(loop: Loop) -> Loop:
        """Write down what a free row has found and give it the next sentence."""
        row, sentence = jnp.argmax(loop.done), loop.taken
        fresh = Live(
            start_tokens[sentence],
            slots,
            jnp.full((beam_size, max_length), -1).at[:, 0].set(slots),
            jnp.full(beam_size, -jnp.inf).at[0].set(0.0),
        )
        put = lambda old, new: old.at[row].set(new)  # noqa: E731
        return Loop(
            sentence + 1,
            put(loop.sentences, sentence),
            put(loop.t, 0),
            Live(*map(put, loop.live, fresh)),
            Finished(*(put(old, new[0]) for old, new in zip(loop.finished, none(1), strict=True))),
            put(loop.done, False),
            write_down(loop),
            load(loop.state, row, sentence),
        )

    def advance(loop: Loop) -> Loop:
        loop = jax.lax.while_loop(waiting, begin, loop)
        t, live, finished, kept = loop.t, loop.live, loop.finished, loop.kept
        limit = limits[loop.sentences]
        logits, state = step(live.tokens, loop.state, t, live.parents, live.ancestry)
        logits = jax.lax.optimization_barrier(logits)  # else each of its readers adds the bias
        allowed = True
        if rules is not None:
            logits, allowed = rules(logits, history(loop), t, loop.sentences)
        log_probs, parents, tokens = candidates(
            logits, live.log_probs, t + 1 >= limit, end_id, allowed
        )
        ends = tokens == end_id

        scores = log_probs / length_penalty(t + 1, alpha, power_penalty)[:, None]
        scores = jnp.where(ends, scores, -jnp.inf)
        ended = Finished(scores, log_probs, jnp.broadcast_to(t[:, None], ends.shape), parents)
        pairs = zip(finished, ended, strict=True)
        merged = Finished(*(jnp.concatenate(pair, axis=1) for pair in pairs))
        _, order = jax.lax.top_k(merged.scores, beam_size)
        finished = Finished(*pick(order, *merged))

        alive, order = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), beam_size)
        parents, tokens = pick(order, parents, tokens)
        last = jnp.minimum(limit, t + 1 + horizon) if horizon else limit
        bound = alive[:, 0] / length_penalty(last, alpha, power_penalty)
        done = loop.done | (finished.scores[:, nbest - 1] >= bound)
        ancestry = jnp.take_along_axis(live.ancestry, parents[:, :, None], axis=1)
        now = jnp.arange(max_length) == (t + 1)[:, None, None]
        ancestry = jnp.where(now, slots[:, None], ancestry)
        alive = jnp.where(done[:, None], -jnp.inf, alive)
        where = kept.tokens.at[loop.sentences, t], kept.parents.at[loop.sentences, t]
        kept = kept._replace(tokens=where[0].set(tokens), parents=where[1].set(parents))
        live = Live(tokens, parents, ancestry, alive)
        return Loop(loop.taken, loop.sentences, t + 1, live, finished, done, kept, state)

    idle = Live(*(jnp.zeros((rows, beam_size, *rest), dtype) for rest, dtype in (
        ((), int), ((), int), ((max_length,), int), ((), jnp.float32))))
    unwritten = jnp.zeros((total + 1, max_length, beam_size), int)
    nobody, start = jnp.full(rows, total), jnp.zeros(rows, int)
    loop = Loop(
        jnp.array(0), nobody, start, idle, none(rows), nobody == total,
        Kept(unwritten, unwritten, none(total + 1)), state,
    )  # fmt: skip
    loop = jax.lax.while_loop(lambda loop: (loop.taken < present) | ~loop.done.all(), advance, loop)
    return walk_back(write_down(loop), nbest, end_id)


def write_down(loop: Loop) -> Kept:
    """`kept` with what each row has finished so far."""
    pairs = zip(loop.kept.finished, loop.finished, strict=True)
    finished = Finished(*(old.at[loop.sentences].set(new) for old, new in pairs))
    return loop.kept._replace(finished=finished)


def history(loop: Loop) -> Int[Array, "B N T"]:
    """What each live hypothesis has chosen so far, −1 at steps to come."""
    slots = jnp.pad(loop.live.ancestry[:, :, 1:], ((0, 0), (0, 0), (0, 1)), constant_values=-1)
    tokens = jnp.swapaxes(loop.kept.tokens[loop.sentences], 1, 2)
    chosen = jnp.take_along_axis(tokens, jnp.maximum(slots, 0), axis=1)
    return jnp.where(slots < 0, -1, chosen)


def walk_back(kept: Kept, nbest: int, end_id: int) -> Hypotheses:
    """Read the finished hypotheses from their (step, slot) back to the start, once."""
    tokens, parents = (jnp.moveaxis(x[:-1], 1, 0) for x in (kept.tokens, kept.parents))
    finished = Finished(*(x[:-1, :nbest] for x in kept.finished))
    there = finished.scores > -jnp.inf

    def earlier(slots, written):
        t, tokens, parents = written
        before = t < finished.steps
        token = jnp.where(before, jnp.take_along_axis(tokens, slots, axis=1), end_id)
        return jnp.where(before, jnp.take_along_axis(parents, slots, axis=1), slots), token

    times = jnp.arange(len(tokens))
    _, tokens = jax.lax.scan(earlier, finished.slots, (times, tokens, parents), reverse=True)
    return Hypotheses(
        jnp.moveaxis(tokens, 0, -1),
        jnp.where(there, finished.steps + 1, 0),
        finished.scores,
        jnp.where(there, finished.log_probs, -jnp.inf),
    )

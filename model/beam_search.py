"""Beam search as one lax.while_loop over any step function; it is independent of the model.

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
from jaxtyping import Array, Int

from .candidates import candidates
from .checks import check_sentences, checked
from .constraints import Rules
from .hypotheses import (
    Finished,
    Hypotheses,
    Kept,
    Live,
    Loop,
    history,
    length_penalty,
    merged,
    pick,
    stored,
    walk_back,
)

# (tokens [B, N], state, t [B], parents [B, N], ancestry [B, N, T]) → (logits [B, N, V], state)
Step = Callable[[Array, Any, Array, Array, Array], tuple[Array, Any]]


class Queue(NamedTuple):
    """How Q sentences share fewer `rows`: one that is free takes the next sentence.

    `load(state, row, sentence)` returns the state in which `row` begins `sentence`. The first ones
    come that way too, so `state` may start empty.
    """

    rows: int
    load: Callable[[Any, Array, Array], Any]


def beam_search(
    step: Step,
    state: Any,
    start_tokens: Int[Array, " Q"],
    limits: Int[Array, " Q"],
    *,
    beam_size: int,
    max_length: int,
    end_id: int,
    alpha: float | Array = 0.6,
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
    0. `rules` (model/constraints.py) may forbid tokens or change log-probabilities.

    A sentence is done at its limit, when no live hypothesis remains, or when its best live
    hypothesis could not beat the nbest-th finished one if it ended at its limit at no cost: that
    bound is exact. With a `horizon` it is taken to end within so many tokens: fewer steps, and once
    in a while a lower score. Where a live hypothesis has logits that are NaN or +inf, the sentence
    is done and its scores are NaN. So the loop ends for any values.

    Without a `queue` there is a row for every sentence. A sentence's result depends neither on its
    neighbours nor on when it is begun.
    """
    if not 1 <= nbest <= beam_size:
        raise ValueError(f"nbest must be from 1 to beam_size={beam_size}; got {nbest}")
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1; got {max_length}")
    check_sentences(start_tokens, limits)
    step = checked(step, end_id)
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
        """Store what a free row has found and give it the next sentence."""
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
            stored(loop),
            load(loop.state, row, sentence),
        )

    def advance(loop: Loop) -> Loop:
        loop = jax.lax.while_loop(waiting, begin, loop)
        t, live, finished, kept = loop.t, loop.live, loop.finished, loop.kept
        limit = limits[loop.sentences]
        logits, state = step(live.tokens, loop.state, t, live.parents, live.ancestry)
        logits = jax.lax.optimization_barrier(logits)  # else each of its readers adds the bias
        normalizer, allowed, at_limit = jax.nn.logsumexp(logits, axis=-1), True, t + 1 >= limit
        failed = (jnp.isnan(normalizer) | jnp.isposinf(normalizer)) & (live.log_probs > -jnp.inf)
        if rules is not None:
            logits, normalizer, allowed = rules(
                logits, normalizer, history(loop), t, loop.sentences
            )
        log_probs, parents, tokens = candidates(
            logits, normalizer, live.log_probs, at_limit, end_id, allowed
        )
        ends = (tokens == end_id) & (log_probs > -jnp.inf)

        scores = log_probs / length_penalty(t + 1, alpha, power_penalty)[:, None]
        scores = jnp.where(ends, scores, -jnp.inf)
        ended = Finished(scores, log_probs, jnp.broadcast_to(t[:, None], ends.shape), parents)
        finished = merged(finished, ended, failed.any(axis=1))

        alive, order = jax.lax.top_k(jnp.where(tokens == end_id, -jnp.inf, log_probs), beam_size)
        parents, tokens = pick(order, parents, tokens)
        last = jnp.minimum(limit, t + 1 + horizon) if horizon else limit
        bound = alive[:, 0] / length_penalty(last, alpha, power_penalty)
        done = loop.done | at_limit | jnp.isneginf(alive[:, 0]) | jnp.isnan(finished.scores[:, 0])
        done |= finished.scores[:, nbest - 1] >= bound
        ancestry = jnp.take_along_axis(live.ancestry, parents[:, :, None], axis=1)
        now = jnp.arange(max_length) == (t + 1)[:, None, None]
        ancestry = jnp.where(now, slots[:, None], ancestry)
        alive = jnp.where(done[:, None], -jnp.inf, alive)
        where = kept.tokens.at[loop.sentences, t], kept.parents.at[loop.sentences, t]
        kept = kept._replace(tokens=where[0].set(tokens), parents=where[1].set(parents))
        live = Live(tokens, parents, ancestry, alive)
        return Loop(loop.taken, loop.sentences, t + 1, live, finished, done, kept, state)

    idle = Live(
        *(
            jnp.zeros((rows, beam_size, *rest), dtype)
            for rest, dtype in (((), int), ((), int), ((max_length,), int), ((), jnp.float32))
        )
    )
    unwritten = jnp.zeros((total + 1, max_length, beam_size), int)
    idle_rows, start = jnp.full(rows, total), jnp.zeros(rows, int)
    loop = Loop(
        jnp.array(0), idle_rows, start, idle, none(rows), idle_rows == total,
        Kept(unwritten, unwritten, none(total + 1)), state,
    )  # fmt: skip
    loop = jax.lax.while_loop(lambda loop: (loop.taken < present) | ~loop.done.all(), advance, loop)
    return walk_back(stored(loop), nbest, end_id)

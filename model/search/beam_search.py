"""Beam search as one lax.while_loop over any step function, independent of the model.

Axes: B lanes (sentences searched side by side) · Q sentences · N beams · V vocabulary · T steps ·
K candidates · R refilled lanes.
Two ideas. First, reordering beams moves neither the caller's cache nor the record of tokens: both
are appended to once per step. Gathering would copy the keys and values of all layers in each step.
`prune` gathers only the ancestry, [B, N, T] integers, from which the cache is masked
(`ancestry_mask` in model/cache.py). A finished hypothesis is a (step, slot) pair, from which
`walk_back` reads its tokens after the loop. Second, lanes do not idle while sentences wait: with a
`Queue`, `refill` gives the next sentence to a lane whose sentence is done, so each lane counts its
own steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import check_choice, check_sentences, checked_step
from .arguments import Rules, SearchOptions, Targets
from .candidates import candidates, logsumexp
from .hypotheses import (
    Finished,
    Hypotheses,
    Live,
    Record,
    SearchState,
    first_live,
    idle_search,
    merge_finished,
    no_finished,
    store_finished,
    take_slots,
    token_history,
    walk_back,
)
from .rules import make_rules

# (tokens [B, N], state, t [B], parents [B, N], ancestry [B, N, T]) → (logits [B, N, V], state)
Step = Callable[[Array, Any, Array, Array, Array], tuple[Array, Any]]
# (state, lanes [R], sentences [R]) → state
Load = Callable[[Any, Array, Array], Any]

ROUNDING = 1e-3  # rounding may raise a log-probability of the rules this far above 0
STOPS = "exact", "bound", "full", "now"
REFILL_SHARE = 8  # at most 1/8 of the lanes are refilled at once: `load` computes no more


class Queue(NamedTuple):
    """Lets Q sentences share fewer `lanes`: a lane that is done takes the next sentence.

    `load(state, lanes, sentences)` returns the step's state with each of the sentences at the start
    in its lane. The sentences are the next ones of the queue, in its order; the lanes are distinct.
    It must ignore lanes beyond the last one, as `x.at[lanes].set` does. The first sentences are
    loaded in the same way, so the initial state needs no sentence.
    """

    lanes: int
    load: Load


class Continuations(NamedTuple):
    """The best continuations of each lane's live hypotheses by one token, best first."""

    log_probs: Float[Array, "B K"]
    parents: Int[Array, "B K"]
    tokens: Int[Array, "B K"]


def beam_search(
    step: Step,
    state: Any,
    targets: Targets,
    options: SearchOptions,
    queue: Queue | None = None,
) -> Hypotheses:
    """The `nbest` hypotheses of each sentence of highest score log p / penalty(length).

    `step` is called with t = 0, 1, … of each lane and the newest token of its N live hypotheses
    (the start tokens at t = 0). Anything it keeps is in `state`. What it stores for hypothesis n at
    step t belongs to slot n of step t: `ancestry[b, n, s]` is the slot of n's ancestor at step
    s ≤ t (n itself at t, −1 at later steps), and `parents[b, n]` is the slot that n continued.

    The limits of `targets` are capped at `max_length`. At its limit a hypothesis can only end.
    `beam_size` 1 is greedy search, which ends with the first step whose best token is the end
    token.

    A sentence is done at its limit, when no live hypothesis remains, or when the best live
    hypothesis could not beat the nbest-th finished one if it ended at its limit at no cost. This
    bound is exact, because no token makes a hypothesis more probable; so a caller's `rules` may not
    reward tokens. With a `horizon` it is assumed to end within that many tokens, which takes fewer
    steps and occasionally gives a lower score.

    `stop` = "bound", "full" and "now" are the search of transformers (early_stopping "never", False
    and True). A hypothesis ends only if it is among the best N of the 2N continuations. A sentence
    is also done when N hypotheses are finished ("now"), or when the best live hypothesis could not
    beat the worst of these N if it ended at its present length ("full") or at its limit ("bound").
    "full" and "now" are not exact: a longer hypothesis of a higher score may exist if alpha > 0.

    If the logits of a live hypothesis are NaN or +inf, or if the rules give one of the best
    continuations a log-probability above 0, the sentence is done and its scores are NaN. The loop
    therefore ends for any values.

    Without a `queue` each sentence has its own lane. A sentence's result depends neither on its
    neighbours nor on when it is started.
    """
    check_options(options)
    start_tokens, limits, *_ = targets
    check_sentences(start_tokens, limits)
    step, total = checked_step(step, options.end_id), len(start_tokens)
    rules = make_rules(options, targets._replace(limits=jnp.minimum(limits, options.max_length)))
    lanes, load = queue or Queue(total, lambda state, lanes, sentences: state)
    # Entries for the dummy sentences of idle lanes, of limit 0.
    start_tokens, limits = (  # 2 × [Q + B]
        jnp.pad(jnp.asarray(x, jnp.int32), (0, lanes)) for x in (start_tokens, limits)
    )
    limits = jnp.minimum(limits, options.max_length)  # [Q + B]
    present = (limits > 0).sum(dtype=jnp.int32)  # sentences that are not padding
    # All sentences are loaded in groups of one size, so that their results have the same bits.
    fill = partial(
        refill,
        present=present,
        start_tokens=start_tokens,
        load=load,
        group_size=-(-lanes // REFILL_SHARE),
    )

    def waiting(search: SearchState) -> Bool[Array, ""]:
        return search.done.any() & (search.next_sentence < present)

    def unfinished(search: SearchState) -> Bool[Array, ""]:
        return ~search.done.all() | waiting(search)

    def advance(search: SearchState) -> SearchState:
        search = jax.lax.while_loop(waiting, fill, search)
        return take_step(search, step, limits[search.sentences], options, rules)

    search = idle_search(lanes, total, options.beam_size, options.max_length, state)
    search = jax.lax.while_loop(unfinished, advance, search)
    return walk_back(store_finished(search), total, options.nbest, options.end_id)


def check_options(options: SearchOptions) -> None:
    """ValueError that names an option of a beam search."""
    if not 1 <= options.nbest <= options.beam_size:
        raise ValueError(
            f"nbest must be from 1 to beam_size={options.beam_size}; got {options.nbest}"
        )
    if options.max_length < 1:
        raise ValueError(f"max_length must be at least 1; got {options.max_length}")
    check_choice("stop", options.stop, STOPS)
    if options.horizon and options.stop != "exact":
        raise ValueError(
            f"horizon must be 0 unless stop is exact; got {options.horizon} and {options.stop}"
        )


def refill(
    search: SearchState,
    present: Int[Array, ""],
    start_tokens: Int[Array, " rows"],
    load: Load,
    group_size: int,
) -> SearchState:
    """Store the results of all lanes; the first `group_size` that are done take the next sentences.

    The first `present` sentences are not padding.
    """
    place = jnp.cumsum(search.done, dtype=jnp.int32)  # [B]: 1, 2, … at the lanes that are done
    waiting = present - search.next_sentence
    number = jnp.minimum(jnp.minimum(place[-1], group_size), waiting)  # of lanes that are refilled
    refilled = search.done & (place <= number)  # [B]
    sentences = jnp.where(refilled, search.next_sentence + place - 1, search.sentences)  # [B]
    index = jnp.arange(group_size, dtype=jnp.int32)  # [R]
    # Comparisons with all lanes are one operation; the usual binary search is a loop on the device.
    lanes = jnp.searchsorted(place, index + 1, method="compare_all")  # [R]
    # Beyond the last lane, where `load` ignores them, if fewer than R are refilled.
    lanes = jnp.where(index < number, lanes, len(place) + index)  # [R]
    beam_size, max_length = search.live.ancestry.shape[1:]
    start = first_live(start_tokens[sentences], beam_size, max_length)  # each [B, N, …]
    empty = no_finished(1, beam_size)

    def replace(old: Array, new: Array | int) -> Array:
        return jnp.where(jnp.expand_dims(refilled, tuple(range(1, old.ndim))), new, old)

    return SearchState(
        next_sentence=search.next_sentence + number,
        sentences=sentences,
        t=replace(search.t, 0),
        live=Live(*map(replace, search.live, start)),
        finished=Finished(*map(replace, search.finished, empty)),
        done=search.done & ~refilled,
        record=store_finished(search),
        step_state=load(search.step_state, lanes, search.next_sentence + index),
    )


def take_step(
    search: SearchState,
    step: Step,
    limit: Int[Array, " B"],
    options: SearchOptions,
    rules: Rules | None,
) -> SearchState:
    """One step of every lane; `limit` is that of the lane's sentence."""
    t, live = search.t, search.live
    # [B, N, V]
    logits, step_state = step(live.tokens, search.step_state, t, live.parents, live.ancestry)
    # Keeps XLA from computing a bias that is added to the logits again in each of their consumers.
    logits = jax.lax.optimization_barrier(logits)
    continuations, failed = expand(search, logits, limit, options, rules)
    finished = finish(search, continuations, failed, options)
    live = prune(search, continuations, options)
    done = search.done | stopped(t, live, finished, limit, options)
    return SearchState(
        next_sentence=search.next_sentence,
        sentences=search.sentences,
        # A lane that is done does not make others read more of their cache.
        t=jnp.where(search.done, t, t + 1),
        live=live._replace(log_probs=jnp.where(done[:, None], -jnp.inf, live.log_probs)),
        finished=finished,
        done=done,
        record=append(search, live),
        step_state=step_state,
    )


def expand(
    search: SearchState,
    logits: Float[Array, "B N V"],
    limit: Int[Array, " B"],
    options: SearchOptions,
    rules: Rules | None,
) -> tuple[Continuations, Bool[Array, " B"]]:
    """The best continuations, and the lanes that fail: a live hypothesis has logits NaN or +inf, or
    the rules reward a token or return NaN."""
    live_log_probs = search.live.log_probs  # [B, N]
    normalizer, at_limit = logsumexp(logits), search.t + 1 >= limit  # [B, N], [B]
    allowed: Array | bool = True
    is_live = live_log_probs > -jnp.inf  # [B, N]
    failed = (jnp.isnan(normalizer) | jnp.isposinf(normalizer)) & is_live  # [B, N]
    if rules is not None:
        logits, normalizer, allowed = rules(
            logits, normalizer, token_history(search), search.t, search.sentences
        )
    # 3 × [B, K]
    best = candidates(logits, normalizer, live_log_probs, at_limit, options.end_id, allowed)
    continuations, failed = Continuations(*best), failed.any(axis=1)
    if rules is not None:
        (before,) = take_slots(continuations.parents, live_log_probs)  # [B, K]
        # [B, K]; False also for NaN
        is_valid = continuations.log_probs - before <= ROUNDING
        failed |= (~is_valid & (before > -jnp.inf)).any(axis=1)
    return continuations, failed


def finish(
    search: SearchState,
    continuations: Continuations,
    failed: Bool[Array, " B"],
    options: SearchOptions,
) -> Finished:
    """The N best finished hypotheses, including the continuations that end now."""
    log_probs, parents, tokens = continuations  # 3 × [B, K]
    ends = (tokens == options.end_id) & (log_probs > -jnp.inf)  # [B, K]
    if options.stop != "exact":
        ends &= jnp.arange(ends.shape[1]) < options.beam_size
    scores = log_probs / options.penalty(search.t + 1)[:, None]
    scores = jnp.where(ends, scores, -jnp.inf)  # [B, K]
    steps = jnp.broadcast_to(search.t[:, None], ends.shape)
    return merge_finished(search.finished, Finished(scores, log_probs, steps, parents), failed)


def prune(search: SearchState, continuations: Continuations, options: SearchOptions) -> Live:
    """The N best continuations that do not end, with their ancestry extended to step t + 1.

    This reorders the beams: hypothesis n takes over the ancestry of the slot that it continues.
    """
    log_probs, parents, tokens = continuations  # 3 × [B, K]
    continued = jnp.where(tokens == options.end_id, -jnp.inf, log_probs)  # [B, K]
    log_probs, order = jax.lax.top_k(continued, options.beam_size)  # 2 × [B, N]
    parents, tokens = take_slots(order, parents, tokens)  # 2 × [B, N]
    ancestry = jnp.take_along_axis(search.live.ancestry, parents[:, :, None], axis=1)  # [B, N, T]
    is_next_step = jnp.arange(options.max_length) == (search.t + 1)[:, None, None]  # [B, 1, T]
    slots = jnp.arange(options.beam_size, dtype=jnp.int32)
    ancestry = jnp.where(is_next_step, slots[:, None], ancestry)  # [B, N, T]
    return Live(tokens, parents, ancestry, log_probs)


def stopped(
    t: Int[Array, " B"],
    live: Live,
    finished: Finished,
    limit: Int[Array, " B"],
    options: SearchOptions,
) -> Bool[Array, " B"]:
    """The lanes at their limit, without a live hypothesis, failed, or beyond improvement."""
    best = live.log_probs[:, 0]  # [B]; hypotheses are sorted
    if options.stop == "exact":
        horizon = min(options.horizon, options.max_length)  # so that the sum does not overflow
        longest = jnp.minimum(limit, t + 1 + horizon) if horizon else limit
        place, bound = options.nbest, best / options.penalty(longest)
    elif options.stop == "bound":
        place, bound = options.beam_size, best / options.penalty(limit)
    elif options.stop == "full":
        place, bound = options.beam_size, best / options.penalty(t + 1)
    else:  # any score
        place, bound = options.beam_size, jnp.full_like(best, jnp.finfo(best.dtype).min)
    ended = (t + 1 >= limit) | jnp.isneginf(best) | jnp.isnan(finished.scores[:, 0])
    return ended | (finished.scores[:, place - 1] >= bound)


def append(search: SearchState, live: Live) -> Record:
    """The record with the tokens and parents chosen at step t."""

    def put(old: Array, new: Array) -> Array:
        place = old.at[search.sentences, search.t]
        return place.set(new, unique_indices=True, wrap_negative_indices=False)

    return search.record._replace(
        tokens=put(search.record.tokens, live.tokens),
        parents=put(search.record.parents, live.parents),
    )

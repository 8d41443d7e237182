"""The state of a beam search: live and finished hypotheses, and the record that is read back once.

Axes: B lanes (sentences searched side by side) · Q sentences · N beams · T steps.
Tokens and parents are appended once per step and never moved. A finished hypothesis is a
(step, slot) pair; `walk_back` follows the parents from there to the start.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Hypotheses(NamedTuple):
    """The n best hypotheses of each sentence, best first, or its samples in the order drawn.

    Missing ones have score −inf and length 0. `tokens` is padded with end tokens; `lengths` counts
    the first end token. `log_probs` are natural logarithms; `scores` are log_probs divided by the
    length penalty. Both are NaN for a sentence whose logits were NaN or +inf.
    """

    tokens: Int[Array, "Q nbest T"]
    lengths: Int[Array, "Q nbest"]
    scores: Float[Array, "Q nbest"]
    log_probs: Float[Array, "Q nbest"]


class Live(NamedTuple):
    """Hypotheses that can be extended."""

    tokens: Int[Array, "B N"]  # the newest token, which is fed to the next step
    parents: Int[Array, "B N"]  # the slot that each one continued
    ancestry: Int[Array, "B N T"]  # s ≤ t: its ancestor's slot at step s; −1 at later steps
    log_probs: Float[Array, "B N"]


class Finished(NamedTuple):
    """The best hypotheses that have ended: at step `steps`, as a continuation of slot `slots`."""

    scores: Float[Array, "B N"]
    log_probs: Float[Array, "B N"]
    steps: Int[Array, "B N"]
    slots: Int[Array, "B N"]


class Record(NamedTuple):
    """What is stored of each sentence; the last B rows are dummies, one for each idle lane.

    Lanes therefore write to distinct rows, so a deterministic GPU can write them in parallel.
    Example: two slots, in which "b c" and "a d" are live after step 1, and "b c" ends at step 2.

        step  tokens  parents  ancestry of the two slots after the step
        0     a b     0 0      0 0 −1, 0 1 −1
        1     c d     1 0      0 1 0,  0 0 1

    "b c" is in slot 0, so it ends with steps = 2 and slots = 0. `walk_back` reads c in slot 0 of
    step 1, whose parent is slot 1, and then b in slot 1 of step 0.
    """

    tokens: Int[Array, "Q+B T N"]  # chosen at step t for slot n
    parents: Int[Array, "Q+B T N"]  # the slot that slot n continued at step t
    finished: Finished


class SearchState(NamedTuple):
    """The carry of the search loop."""

    next_sentence: Int[Array, ""]  # the next sentence of the queue
    sentences: Int[Array, " B"]  # the sentence of each lane
    t: Int[Array, " B"]
    live: Live
    finished: Finished
    done: Bool[Array, " B"]
    record: Record
    step_state: Any


def idle_live(lanes: int, beam_size: int, max_length: int) -> Live:
    """Placeholders for lanes that have no sentence yet."""
    slots = jnp.zeros((lanes, beam_size), jnp.int32)
    ancestry = jnp.zeros((lanes, beam_size, max_length), jnp.int32)
    return Live(slots, slots, ancestry, jnp.zeros((lanes, beam_size), jnp.float32))


def first_live(start_tokens: Int[Array, " B"], beam_size: int, max_length: int) -> Live:
    """The start of sentences: slot 0 has probability 1, the others 0. Arrays that are equal for all
    sentences have an axis B of size 1."""
    slots = jnp.arange(beam_size, dtype=jnp.int32)
    return Live(
        tokens=start_tokens[:, None],
        parents=slots[None],
        ancestry=jnp.where(jnp.arange(max_length) == 0, slots[:, None], -1)[None],
        log_probs=jnp.where(slots == 0, jnp.float32(0.0), -jnp.inf)[None],
    )


def no_finished(rows: int, beam_size: int) -> Finished:
    """N places without a hypothesis, which have score −inf."""
    scores = jnp.full((rows, beam_size), -jnp.inf, jnp.float32)
    zeros = jnp.zeros((rows, beam_size), jnp.int32)
    return Finished(scores, log_probs=scores, steps=zeros, slots=zeros)


def idle_search(
    lanes: int, sentences: int, beam_size: int, max_length: int, step_state: Any
) -> SearchState:
    """The state before the first sentence: every lane is done and writes to its dummy row."""
    live = idle_live(lanes, beam_size, max_length)
    empty = jnp.zeros((sentences + lanes, max_length, beam_size), jnp.int32)
    return SearchState(
        next_sentence=jnp.int32(0),
        sentences=sentences + jnp.arange(lanes, dtype=jnp.int32),
        t=jnp.zeros(lanes, jnp.int32),
        live=live,
        finished=no_finished(lanes, beam_size),
        done=jnp.ones(lanes, bool),
        record=Record(empty, empty, no_finished(sentences + lanes, beam_size)),
        step_state=step_state,
    )


def length_penalty(
    length: Array | float, alpha: Array | float, power: bool = False
) -> Float[Array, "..."]:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14), or length^alpha if `power`."""
    length = jnp.asarray(length, jnp.float32)
    return ((length if power else (5.0 + length) / 6.0) ** alpha).astype(jnp.float32)


def take_slots(order: Int[Array, "B N"], *arrays: Array) -> tuple[Array, ...]:
    """The entries `order` of the second axis of each array."""
    return tuple(jnp.take_along_axis(array, order, axis=1) for array in arrays)


def merge_finished(finished: Finished, ended: Finished, failed: Bool[Array, " B"]) -> Finished:
    """The N best of both. All scores of a `failed` lane become NaN and remain NaN."""
    failed |= jnp.isnan(finished.scores).any(axis=1)
    pairs = zip(finished, ended, strict=True)
    both = Finished(*(jnp.concatenate(pair, axis=1) for pair in pairs))  # [B, N + K]
    _, order = jax.lax.top_k(both.scores, finished.scores.shape[1])
    best = Finished(*take_slots(order, *both))
    return best._replace(scores=jnp.where(failed[:, None], jnp.nan, best.scores))


def store_finished(search: SearchState) -> Record:
    """The record with the finished hypotheses of the sentence in each lane."""
    pairs = zip(search.record.finished, search.finished, strict=True)
    finished = Finished(
        *(
            old.at[search.sentences].set(new, unique_indices=True, wrap_negative_indices=False)
            for old, new in pairs
        )
    )
    return search.record._replace(finished=finished)


def token_history(search: SearchState) -> Int[Array, "B N T"]:
    """The tokens of each live hypothesis, −1 at later steps."""
    # Step s extends the hypothesis in slot ancestry[s] by a token and puts the result into slot
    # ancestry[s + 1]. The token is recorded under the new slot.
    slots = jnp.pad(search.live.ancestry[:, :, 1:], ((0, 0), (0, 0), (0, 1)), constant_values=-1)
    tokens = jnp.swapaxes(search.record.tokens[search.sentences], 1, 2)  # [B, N, T]
    chosen = jnp.take_along_axis(tokens, jnp.maximum(slots, 0), axis=1)
    return jnp.where(slots < 0, -1, chosen)


def walk_back(record: Record, sentences: int, nbest: int, end_id: int) -> Hypotheses:
    """Read the n best finished hypotheses of the first `sentences` rows from their (step, slot)
    back to the start."""
    # 2 × [T, Q, N]
    tokens, parents = (jnp.moveaxis(x[:sentences], 1, 0) for x in (record.tokens, record.parents))
    finished = Finished(*(x[:sentences, :nbest] for x in record.finished))  # 4 × [Q, nbest]

    def previous_step(slots: Array, recorded: tuple[Array, ...]) -> tuple[Array, Array]:
        t, tokens, parents = recorded  # [], [Q, N], [Q, N]
        before = t < finished.steps  # [Q, nbest]
        token = jnp.where(before, jnp.take_along_axis(tokens, slots, axis=1), end_id)
        return jnp.where(before, jnp.take_along_axis(parents, slots, axis=1), slots), token

    recorded = jnp.arange(len(tokens)), tokens, parents
    _, tokens = jax.lax.scan(previous_step, finished.slots, recorded, reverse=True)
    present = finished.scores > -jnp.inf  # False for NaN
    return Hypotheses(
        jnp.moveaxis(tokens, 0, -1),
        jnp.where(present, finished.steps + 1, 0),
        finished.scores,
        jnp.where(present, finished.log_probs, finished.scores),
    )

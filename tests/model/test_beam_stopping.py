"""Beam search: stopping, lanes that sentences share, and the arguments of a step.

Axes: B sentences · N beams · V vocabulary · T steps.
"""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_beam_search import listed, slow_beam_search
from table_models import (
    END,
    GREEDY,
    LIMIT,
    PAPER,
    START,
    B,
    V,
    assert_same,
    bigram_step,
    log_softmax,
    random_limits,
    random_tables,
    searcher,
    table_model,
    trigram_step,
)

from model.beam_search import Queue, beam_search

# Early stopping.


def recording(steps):
    """Bigram steps that append their t to a list when they run."""

    def step_of(tables):
        def step(tokens, state, t, parents, ancestry):
            jax.debug.callback(lambda t: steps.append(int(t.max())), t)
            return bigram_step(tables)(tokens, state, t, parents, ancestry)

        return step

    return step_of


@pytest.mark.parametrize("alpha, end", [(0.0, 5.0), (0.6, 5.0), (4.0, 5.0)])
def test_early_stopping_follows_the_bound_and_does_not_change_results(alpha, end):
    longest, steps = 31, []
    options = dict(beam_size=3, alpha=alpha, nbest=2, power_penalty=False)
    search = searcher(recording(steps), max_length=longest, **options)
    tables, limits = random_tables(0, end=end), random_limits(0, longest)
    found = search(tables, limits)
    jax.effects_barrier()
    visited = set()

    def recorded(model):
        return lambda prefix: visited.add(len(prefix)) or model(prefix)

    for row, limit in enumerate(limits):
        model = table_model(tables[row])
        full = slow_beam_search(model, limit, end_id=END, stop_early=False, **options)
        assert_same(listed(found, row), full)
        slow_beam_search(recorded(model), limit, end_id=END, **options)
    assert sorted(steps) == sorted(visited)
    if alpha < 1:
        assert len(steps) < longest


def test_a_lane_that_is_done_counts_no_more_steps():
    """Attention reads a cache up to the slot of the largest t of any lane."""
    counted = []

    def step_of(tables):
        def step(tokens, state, t, parents, ancestry):
            jax.debug.callback(lambda t: counted.append(t.tolist()), t)
            return bigram_step(tables)(tokens, state, t, parents, ancestry)

        return step

    limits = np.array([2, 5, 3])
    search = searcher(step_of, max_length=6, beam_size=2, alpha=0.6, nbest=1, power_penalty=False)
    search(random_tables(0, end=-30.0)[:3], limits)
    jax.effects_barrier()
    assert sorted(counted, key=max) == [np.minimum(t, limits).tolist() for t in range(5)]


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_horizon_stops_when_no_hypothesis_within_it_could_win(horizon):
    longest, options = 31, dict(beam_size=3, alpha=1.3, nbest=2, power_penalty=False)
    steps = []
    search = searcher(recording(steps), max_length=longest, horizon=horizon, **options)
    tables, limits = random_tables(0, end=1.0), random_limits(0, longest)
    found = search(tables, limits)
    best = searcher(bigram_step, max_length=longest, **options)(tables, limits)
    jax.effects_barrier()
    assert (found.scores <= best.scores).all()
    visited = {0: set(), horizon: set()}

    def recorded(row, horizon):
        model = table_model(tables[row])
        return lambda prefix: visited[horizon].add((row, len(prefix))) or model(prefix)

    for row, limit in enumerate(limits):
        expected, _ = (
            slow_beam_search(recorded(row, h), limit, end_id=END, horizon=h, **options)
            for h in (horizon, 0)
        )
        assert_same(listed(found, row), expected)
    assert sorted(steps) == sorted({length for _, length in visited[horizon]})
    assert len(visited[horizon]) < len(visited[0])


# The queue.


def schedule(steps_needed, lanes):
    """The sentences that start in each step if all free lanes take the next ones in order."""
    waiting, steps_left, started = deque(steps_needed), [0] * lanes, []
    while waiting or any(steps_left):
        free = [lane for lane in range(lanes) if not steps_left[lane]]
        refilled = free[: len(waiting)]
        first = len(steps_needed) - len(waiting)
        started.append(list(range(first, first + len(refilled))))
        for lane in refilled:
            steps_left[lane] = waiting.popleft()
        steps_left = [max(0, left - 1) for left in steps_left]
    return started


@pytest.mark.parametrize("lanes", [1, 4, 10, B - 1, B])
@pytest.mark.parametrize("options", [GREEDY, PAPER])
def test_sentences_that_share_lanes_have_the_results_of_separate_lanes(lanes, options):
    """Results are equal in every bit, and lanes that are done take the next sentences."""
    tables, limits = random_tables(0, (B, V, V, V), end=0.5), random_limits(1)
    limits[-2:] = 0
    beams, steps = options["beam_size"], []

    @jax.jit
    def shared(tables, limits):
        def step(tokens, state, t, parents, ancestry):
            sentences, last = state
            jax.debug.callback(lambda *x: steps.append(tuple(map(np.asarray, x))), sentences, t)
            return trigram_step(tables[sentences])(tokens, last, t, parents, ancestry)[0], (
                sentences,
                tokens,
            )

        def load(state, lanes, sentences):
            return state[0].at[lanes].set(sentences), state[1].at[lanes].set(START)

        empty = jnp.full(lanes, B), jnp.zeros((lanes, beams), int)
        return beam_search(
            step,
            empty,
            jnp.full(B, START),
            limits,
            max_length=LIMIT,
            end_id=END,
            queue=Queue(lanes, load),
            **options,
        )

    found = jax.device_get(shared(tables, limits))
    jax.effects_barrier()
    separate = searcher(trigram_step, **options)(tables, limits)
    for one, other in zip(found, separate, strict=True):
        assert one.tobytes() == other.tobytes()
    started = [sentences[(t == 0) & (sentences < B)].tolist() for sentences, t in steps]
    steps_needed = []
    for table, limit in zip(tables[:-2], limits[:-2], strict=True):
        model, lengths = table_model(table), set()
        slow_beam_search(
            lambda prefix, model=model, lengths=lengths: lengths.add(len(prefix)) or model(prefix),
            limit,
            end_id=END,
            **options,
        )
        steps_needed.append(len(lengths))
    assert started == schedule(steps_needed, lanes)


def test_a_search_without_a_live_hypothesis_stops():
    tables, steps = np.full((B, V, V), -np.inf, np.float32), []
    tables[:, START, 3:] = 0.0  # start → 3 or higher → nothing

    found = searcher(recording(steps), **PAPER)(tables, np.full(B, LIMIT))
    jax.effects_barrier()
    assert sorted(steps) == [0, 1]
    assert (found.lengths == 0).all() and np.isneginf(found.scores).all()


# The arguments of a step.


def logits_of(history, weights):
    """Σ_s W[b, s, token_s], which depends on every token and its place; −1 in history is none."""
    rows, times = jnp.arange(len(weights))[:, None, None], jnp.arange(history.shape[-1])
    parts = weights[rows, times, jnp.maximum(history, 0)]
    return jnp.where((history >= 0)[..., None], parts, 0.0).sum(axis=2)


def test_parents_and_ancestry_give_the_same_history():
    def gather(weights):
        """The state is the history of each hypothesis, reordered by `parents`."""

        def step(tokens, history, t, parents, ancestry):
            history = jnp.take_along_axis(history, parents[:, :, None], axis=1)
            history = jnp.where(jnp.arange(LIMIT) == t[:, None, None], tokens[..., None], history)
            return logits_of(history, weights), history

        return step

    def append(weights):
        """The state is the token of every slot at every step, selected by `ancestry`."""

        def step(tokens, fed, t, parents, ancestry):
            fed = fed.at[jnp.arange(len(fed)), t].set(tokens)
            own = jnp.take_along_axis(fed, jnp.swapaxes(jnp.maximum(ancestry, 0), 1, 2), axis=2)
            history = jnp.where(ancestry >= 0, jnp.swapaxes(own, 1, 2), -1)
            return logits_of(history, weights), fed

        return step

    beams = PAPER["beam_size"]
    weights = np.random.default_rng(0).normal(0, 1, (B, LIMIT, V, V)).astype(np.float32)
    limits, start = random_limits(0), jnp.full(B, START)
    empty = {gather: (B, beams, LIMIT), append: (B, LIMIT, beams)}
    results = [
        jax.jit(
            lambda weights, step_of=step_of, shape=shape: beam_search(
                step_of(weights), jnp.full(shape, -1), start, jnp.asarray(limits),
                max_length=LIMIT, end_id=END, **PAPER,
            )
        )(weights)
        for step_of, shape in empty.items()
    ]  # fmt: skip
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)

    for row, limit in enumerate(limits):

        def model(prefix, row=row):
            fed = (START, *prefix)
            return np.asarray(log_softmax(sum(weights[row, s, x] for s, x in enumerate(fed))))

        expected = slow_beam_search(model, limit, end_id=END, **PAPER)
        assert_same(listed(jax.device_get(results[0]), row), expected)

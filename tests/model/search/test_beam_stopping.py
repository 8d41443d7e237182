"""Beam search: stopping, lanes that sentences share, and the arguments of a step.

Axes: B sentences · N beams · V vocabulary · T steps.
"""

from collections import deque
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import Queue, beam_search, stopped
from seq2seq.model.search.hypotheses import first_live, no_finished
from tests.support.marks import slow_except
from tests.support.models.table_models import (
    END,
    GREEDY,
    LIMIT,
    PAPER,
    START,
    B,
    V,
    assert_same,
    random_limits,
    random_tables,
    searcher,
    table_model,
    trigram_step,
)
from tests.support.oracles.slow_beam_search import listed, slow_beam_search, transformers_search

# Early stopping.


LONGEST = 31
STOPPING = dict(beam_size=3, nbest=2, power_penalty=False)
STEPS: list[np.ndarray] = []  # t of all lanes, for each step of the last search


def recorded_step(tables):
    """Trigram steps that append their t to STEPS when they run."""
    step = trigram_step(tables)

    def recorded(tokens, state, t, parents, ancestry):
        jax.debug.callback(lambda t: STEPS.append(np.asarray(t)), t)
        return step(tokens, state, t, parents, ancestry)

    return recorded


def recorded_search(tables, limits, **options):
    """The results, and the t of all lanes in each step, in the order of the steps."""
    STEPS.clear()
    tables = np.repeat(tables[:, None], V, axis=1)
    hypotheses = searcher(recorded_step, LONGEST, **STOPPING | options)(tables, limits)
    jax.effects_barrier()
    return hypotheses, sorted(STEPS, key=max)


def longest_of(steps):
    return [t.max() for t in steps]


def searched_slowly(tables, limits, **options):
    """The results of the slow search for each sentence, and the number of its steps."""
    results, numbers = [], []
    for table, limit in zip(tables, limits, strict=True):
        model, lengths = table_model(table), set()
        results.append(
            slow_beam_search(
                lambda prefix, model=model, lengths=lengths: (
                    lengths.add(len(prefix)) or model(prefix)
                ),
                limit,
                end_id=END,
                **options,
            )
        )
        numbers.append(len(lengths))
    return results, np.array(numbers)


def assert_number_of_steps(steps, expected):
    """A lane that is done keeps its t, which is the number of its steps, while others run."""
    assert len(steps) == max(expected)
    np.testing.assert_array_equal(np.max(steps, axis=0), np.minimum(expected, len(steps) - 1))


@pytest.mark.parametrize("alpha, end", [(0.0, 5.0), (0.6, 5.0), (4.0, 5.0)])
def test_early_stopping_follows_the_bound_and_does_not_change_results(alpha, end):
    tables, limits = random_tables(0, end=end), random_limits(0, LONGEST)
    hypotheses, steps = recorded_search(tables, limits, alpha=alpha)
    options = STOPPING | dict(alpha=alpha)
    full, _ = searched_slowly(tables, limits, stop_early=False, **options)
    for row, expected in enumerate(full):
        assert_same(listed(hypotheses, row), expected)
    assert_number_of_steps(steps, searched_slowly(tables, limits, **options)[1])
    if alpha < 1:
        assert len(steps) < LONGEST


def test_a_lane_that_is_done_counts_no_more_steps():
    """Attention reads a cache up to the slot of the largest t of any lane."""
    limits = random_limits(2, LONGEST)
    _, steps = recorded_search(random_tables(0, end=-30.0), limits)
    expected = [np.minimum(t, limits) for t in range(limits.max())]
    np.testing.assert_array_equal(steps, expected)
    assert len(set(limits)) > 3


@pytest.mark.parametrize("horizon", slow_except([3], [1, 3]))
def test_a_horizon_stops_when_no_hypothesis_within_it_could_win(horizon):
    options = STOPPING | dict(alpha=1.3)
    tables, limits = random_tables(0, end=1.0), random_limits(0, LONGEST)
    best, _ = recorded_search(tables, limits, alpha=1.3)
    with_horizon, steps = recorded_search(tables, limits, alpha=1.3, horizon=horizon)
    assert (with_horizon.scores <= best.scores).all()
    expected, numbers = searched_slowly(tables, limits, horizon=horizon, **options)
    for row, hypotheses in enumerate(expected):
        assert_same(listed(with_horizon, row), hypotheses)
    assert_number_of_steps(steps, numbers)
    assert numbers.sum() < searched_slowly(tables, limits, **options)[1].sum()


def test_the_longest_horizon_stops_where_the_exact_bound_does():
    """Steps + horizon would overflow."""
    beams, values = STOPPING["beam_size"], np.linspace(-3.0, -0.1, 30, dtype=np.float32)
    options = SearchOptions(LONGEST, END, beam_size=beams, alpha=1.0)

    @jax.jit
    def done(values):
        t, limit = jnp.zeros(30, int), jnp.full(30, LONGEST)
        live = first_live(t, beams, LONGEST)._replace(log_probs=jnp.tile(values[:, None], beams))
        finished = no_finished(30, beams)._replace(scores=jnp.full((30, beams), -0.3))
        of_horizons = (options, options._replace(horizon=2**31 - 1))
        return [stopped(t, live, finished, limit, options) for options in of_horizons]

    exact, longest = done(values)
    assert exact.tolist() == longest.tolist() and 5 < exact.sum() < 25


EARLY_STOPPING = {"bound": "never", "full": False, "now": True}
OF_TRANSFORMERS = dict(beam_size=4, nbest=2, power_penalty=True)


@pytest.mark.parametrize("stop", EARLY_STOPPING)
def test_a_search_stops_as_that_of_transformers(stop):
    lengths = set()
    for seed, alpha in enumerate((0.0, 0.8, 1.0, 2.0)):
        tables, limits = random_tables(seed, end=1.5), random_limits(seed, LONGEST)
        results, _ = recorded_search(tables, limits, alpha=alpha, stop=stop, **OF_TRANSFORMERS)
        for row, limit in enumerate(limits):
            expected = transformers_search(
                table_model(tables[row]), limit, beam_size=4, end_id=END, alpha=alpha,
                early_stopping=EARLY_STOPPING[stop],
            )  # fmt: skip
            assert_same(listed(results, row), expected[:2])
            lengths.add(len(expected[0].tokens))
    assert len(lengths) > 7


@pytest.mark.parametrize("stop", EARLY_STOPPING)
def test_a_search_that_stops_early_takes_the_steps_of_the_slow_search(stop):
    options = OF_TRANSFORMERS | dict(alpha=0.6, stop=stop)
    tables, limits = random_tables(0, end=3.0), random_limits(0, LONGEST)
    results, steps = recorded_search(tables, limits, **options)
    expected, numbers = searched_slowly(tables, limits, **options)
    for row, hypotheses in enumerate(expected):
        assert_same(listed(results, row), hypotheses)
    assert_number_of_steps(steps, numbers)
    exact = searched_slowly(tables, limits, **(options | dict(stop="exact")))[1]
    # "bound" waits until all N hypotheses are finished, not only nbest.
    assert (numbers.sum() < exact.sum()) == (stop != "bound")


def test_a_stop_that_does_not_exist_or_has_a_horizon_is_an_error():
    tables, limits = random_tables(0), random_limits(0)
    for options, message in (
        (dict(stop="never"), "stop must be one of exact, bound, full, now; got 'never'"),
        (dict(stop="now", horizon=2), "horizon must be 0 unless stop is exact; got 2 and now"),
    ):
        with pytest.raises(ValueError, match=message):
            searcher(**STOPPING, **options)(tables, limits)


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


@pytest.mark.parametrize(
    "lanes, options",
    slow_except(
        [(1, GREEDY), (10, PAPER)],
        product([1, 4, 10, B - 1, B], [GREEDY, PAPER]),
    ),
    ids=str,
)
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
            Targets(jnp.full(B, START), limits),
            SearchOptions(LIMIT, END, **options),
            Queue(lanes, load),
        )

    hypotheses = jax.device_get(shared(tables, limits))
    jax.effects_barrier()
    separate = searcher(**options)(tables, limits)
    for array, expected in zip(hypotheses, separate, strict=True):
        assert array.tobytes() == expected.tobytes()
    started = [sentences[(t == 0) & (sentences < B)].tolist() for sentences, t in steps]
    _, steps_needed = searched_slowly(tables[:-2], limits[:-2], **options)
    assert started == schedule(steps_needed, lanes)


def test_a_search_without_a_live_hypothesis_stops():
    tables = np.full((B, V, V), -np.inf, np.float32)
    tables[:, START, 3:] = 0.0  # start → 3 or higher → nothing
    hypotheses, steps = recorded_search(tables, np.full(B, LONGEST))
    assert longest_of(steps) == [0, 1]
    assert (hypotheses.lengths == 0).all() and np.isneginf(hypotheses.scores).all()


# The arguments of a step.


def logits_of(history, weights):
    """Σ_s W[b, s, token_s], which depends on every token and its place; −1 in history is none."""
    rows, times = jnp.arange(len(weights))[:, None, None], jnp.arange(history.shape[-1])
    parts = weights[rows, times, jnp.maximum(history, 0)]
    return jnp.where((history >= 0)[..., None], parts, 0.0).sum(axis=2)


def test_parents_and_ancestry_give_the_same_history():
    """The logits are NaN if the two histories differ."""

    def reordered(history, tokens, t, parents):
        """The history of each hypothesis, reordered by `parents`."""
        history = jnp.take_along_axis(history, parents[:, :, None], axis=1)
        return jnp.where(jnp.arange(LIMIT) == t[:, None, None], tokens[..., None], history)

    def selected(fed, ancestry):
        """The history of each hypothesis in the tokens of all slots, selected by `ancestry`."""
        chosen = jnp.take_along_axis(fed, jnp.swapaxes(jnp.maximum(ancestry, 0), 1, 2), axis=2)
        return jnp.where(ancestry >= 0, jnp.swapaxes(chosen, 1, 2), -1)

    @jax.jit
    def search(weights, limits):
        def step(tokens, state, t, parents, ancestry):
            history, fed = state
            history = reordered(history, tokens, t, parents)
            fed = fed.at[jnp.arange(B), t].set(tokens)
            equal = (history == selected(fed, ancestry)).all(axis=-1, keepdims=True)
            return jnp.where(equal, logits_of(history, weights), jnp.nan), (history, fed)

        beams = PAPER["beam_size"]
        state = jnp.full((B, beams, LIMIT), -1), jnp.full((B, LIMIT, beams), -1)
        targets = Targets(jnp.full(B, START), limits)
        return beam_search(step, state, targets, SearchOptions(LIMIT, END, **PAPER))

    weights = np.random.default_rng(0).normal(0, 1, (B, LIMIT, V, V)).astype(np.float32)
    limits = random_limits(0)
    hypotheses = jax.device_get(search(weights, limits))
    for row, limit in enumerate(limits):

        def model(prefix, row=row):
            fed = (START, *prefix)
            logits = sum(weights[row, s, token] for s, token in enumerate(fed))
            return logits - np.log(np.exp(logits).sum())

        expected = slow_beam_search(model, limit, end_id=END, **PAPER)
        assert_same(listed(hypotheses, row), expected)

"""Beam search: equal to enumeration and to a slow search in Python, on models that are tables.

Axes: B sentences · N beams · V vocabulary · T steps.
Each sentence of a batch has a table of its own, so one compiled search meets many random models.
"""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_beam_search import every_hypothesis, listed, penalty, rescored, slow_beam_search

from model.beam_search import Hypotheses, Queue, beam_search, length_penalty
from model.candidates import candidates, top_k

B, V, LIMIT = 23, 11, 7
START, END = 1, 2
PAPER = dict(beam_size=3, alpha=0.6, nbest=3, power_penalty=False)
WIDE = dict(beam_size=5, alpha=0.0, nbest=5, power_penalty=False)
POWER = dict(beam_size=5, alpha=1.3, nbest=2, power_penalty=True)
GREEDY = dict(beam_size=1, alpha=0.6, nbest=1, power_penalty=False)


# Models: tables of logits of the next token, as steps and as functions of a prefix.


def bigram_step(tables):
    """p(next | last) from [B, V, V]; needs no state."""

    def step(tokens, state, t, parents, ancestry):
        return jnp.take_along_axis(tables, tokens[:, :, None], axis=1), state

    return step


def trigram_step(tables):
    """p(next | last two) from [B, V, V, V]; the state is what each slot was fed last."""

    def step(tokens, last, t, parents, ancestry):
        before = jnp.take_along_axis(last, parents, axis=1)
        return tables[jnp.arange(len(tables))[:, None], before, tokens], tokens

    return step


@jax.jit
def log_softmax(logits):
    """−inf stays −inf, also where there is nothing else."""
    normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.where(jnp.isneginf(logits), -jnp.inf, logits - normalizer)


def table_model(table):
    """One sentence's bigram or trigram table as a function of a prefix, for the slow search."""
    log_probs, order = np.asarray(log_softmax(table)), table.ndim - 1
    return lambda prefix: log_probs[((START,) * order + tuple(prefix))[-order:]]


def random_tables(seed, shape=(B, V, V), *, end=0.0):
    """Normal logits, the end token's raised by `end`."""
    tables = np.random.default_rng(seed).normal(0, 2, shape)
    tables[..., END] += end
    return tables.astype(np.float32)


def random_limits(seed, longest=LIMIT):
    return np.random.default_rng(seed).integers(1, longest + 1, B)


@cache
def searcher(step_of, max_length=LIMIT, **options):
    """A compiled search over tables; the state starts as the start tokens, which trigrams want."""

    @jax.jit
    def search(tables, limits):
        start = jnp.full(len(tables), START)
        state = jnp.full((len(tables), options["beam_size"]), START)
        step = step_of(tables)
        return beam_search(step, state, start, limits, max_length=max_length, end_id=END, **options)

    return lambda tables, limits: jax.device_get(search(tables, limits))


# What is asked of every result.


def assert_same(found, expected):
    """Token for token in the same order; scores to 1e-5."""
    assert [f[0] for f in found] == [e[0] for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f[1:], e[1:], rtol=1e-5, atol=1e-5)


def assert_well_formed(found: Hypotheses, limits):
    """Best first; an end token last, and nothing but it after; absent ones −inf, length 0."""
    tokens, lengths, scores, log_probs = found
    there = lengths > 0
    for x in (scores, log_probs):
        assert np.isfinite(x[there]).all() and np.isneginf(x[~there]).all()
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    assert (lengths <= np.asarray(limits)[:, None]).all()
    after = np.arange(tokens.shape[-1]) >= lengths[:, :, None] - 1
    assert ((tokens == END) == after).all()


def assert_slow_search_agrees(found, tables, limits, **options):
    assert_well_formed(found, limits)
    for row, limit in enumerate(limits):
        expected = slow_beam_search(table_model(tables[row]), limit, end_id=END, **options)
        assert_same(listed(found, row), expected)


# Top-k.


@pytest.mark.parametrize("k", range(1, 17))
def test_top_k_is_lax_top_k_with_ties_and_infinities_at_any_vocabulary_size(k):
    borders = [16 * k - 1, 16 * k, 16 * k + 1, 64 * k]  # where stages and chunk sizes change
    sizes, widest = [k, *borders, 1021 + k], 1021 + k
    random = np.random.default_rng(k)
    x = np.stack([
        random.normal(size=widest),
        random.choice([-np.inf, -np.inf, *random.normal(size=k + 1)], widest),
        np.where(random.random(widest) < 0.003, 1.0, -np.inf),
        np.full(widest, -np.inf),
        np.arange(widest) // 41 * 1.0,
    ]).astype(np.float32)  # fmt: skip

    @jax.jit
    def both(x):
        return [(top_k(x[:, :n], k), jax.lax.top_k(x[:, :n], k)) for n in sizes]

    for n, (ours, theirs) in zip(sizes, both(x), strict=True):
        stable = np.argsort(-x[:, :n], axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ours[0], theirs[0], f"V={n}")
        np.testing.assert_array_equal(ours[1], theirs[1], f"V={n}")
        np.testing.assert_array_equal(ours[1], stable, f"V={n}")


# The whole space.


@pytest.mark.parametrize("alpha, power", [(0.0, False), (0.6, True), (1.7, False)])
def test_a_beam_as_wide_as_all_continuations_equals_exhaustive_enumeration(alpha, power):
    """Of V = 4 tokens, up to 4 long, 1 + 3 + 9 + 27 = 40 hypotheses can be made."""
    options = dict(beam_size=41, nbest=41, alpha=alpha, power_penalty=power)
    search, limits = searcher(trigram_step, max_length=4, **options), np.array([4, 1, 3, 4, 2])
    for seed in range(3):
        tables = random_tables(seed, (5, 4, 4, 4), end=seed - 1.0)
        found = search(tables, limits)
        assert_well_formed(found, limits)
        for row, limit in enumerate(limits):
            expected = [
                (tokens, log_prob, log_prob / penalty(len(tokens), alpha, power))
                for tokens, log_prob in every_hypothesis(table_model(tables[row]), limit, END)
            ]
            assert len(expected) == sum(3**n for n in range(limit))
            assert_same(listed(found, row), sorted(expected, key=lambda e: -e[2]))


# Against greedy search and the slow search.


def test_beam_1_is_greedy_search():
    search = searcher(bigram_step, **GREEDY)
    for seed in range(5):
        tables, limits = random_tables(seed), random_limits(seed)
        found = search(tables, limits)
        assert_well_formed(found, limits)
        for row, limit in enumerate(limits):
            tokens = [START]
            while tokens[-1] != END:
                best = tables[row, tokens[-1]].argmax()
                tokens.append(END if len(tokens) == limit else int(best))
            assert listed(found, row)[0][0] == tuple(tokens[1:])


@pytest.mark.parametrize("options", [
    GREEDY, PAPER, WIDE, POWER,
    dict(beam_size=2, alpha=1.7, nbest=2, power_penalty=False),
])  # fmt: skip
def test_random_bigrams_give_what_the_slow_search_gives(options):
    search = searcher(bigram_step, **options)
    for seed in range(7):
        tables, limits = random_tables(seed, end=seed / 2), random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **options)


def test_random_trigrams_give_what_the_slow_search_gives():
    search = searcher(trigram_step, **PAPER)
    for seed in range(5):
        tables, limits = random_tables(seed, (B, V, V, V), end=1.0), random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **PAPER)


@pytest.mark.parametrize("options", [GREEDY, PAPER, WIDE])
def test_ties_go_to_the_earlier_then_to_the_better_hypothesis_then_to_the_lower_token(options):
    """All next tokens that are possible are equally probable: nearly everything ties."""
    search = searcher(bigram_step, **options)
    for seed in range(5):
        possible = np.random.default_rng(seed).random((B, V, V)) < 0.5
        possible[0], possible[:, :, END] = True, True
        tables = np.where(possible, 0.0, -np.inf).astype(np.float32)
        limits = random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **options)


def test_a_vocabulary_smaller_than_two_beams_is_searched_as_well():
    search = searcher(bigram_step, **WIDE)
    tables, limits = random_tables(0, (B, 3, 3)), random_limits(0)
    assert_slow_search_agrees(search(tables, limits), tables, limits, **WIDE)


# What is returned.


@pytest.mark.parametrize("options", [PAPER, POWER])
def test_log_probs_are_teacher_forced_and_scores_divide_them_by_the_penalty(options):
    tables, limits = random_tables(3, end=1.0), random_limits(3)
    found = searcher(bigram_step, **options)(tables, limits)
    for row in range(B):
        for tokens, log_prob, score in listed(found, row):
            expected = rescored(table_model(tables[row]), tokens)
            assert log_prob == pytest.approx(expected, rel=1e-5, abs=1e-5)
            expected /= penalty(len(tokens), options["alpha"], options["power_penalty"])
            assert score == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_penalty_is_that_of_the_equation_and_one_where_alpha_is_zero():
    for length in (1.0, 7.0, 53.0):
        assert float(length_penalty(length, 0.6)) == pytest.approx(((5 + length) / 6) ** 0.6)
        assert float(length_penalty(length, 0.6, power=True)) == pytest.approx(length**0.6)
        assert float(length_penalty(length, 0.0)) == 1.0


# Sentences of a batch.


def test_neighbours_and_places_in_the_batch_do_not_matter_to_the_last_bit():
    search, random = searcher(bigram_step, **PAPER), np.random.default_rng(0)
    tables, limits = random_tables(0, end=1.0), random_limits(0)
    found = search(tables, limits)
    for row, place in ((0, 0), (5, 19), (22, 3)):
        others, their_limits = random_tables(place + 1), random_limits(place + 1)
        others[place], their_limits[place] = tables[row], limits[row]
        for one, other in zip(found, search(others, their_limits), strict=True):
            assert one[row].tobytes() == other[place].tobytes()
    order = random.permutation(B)
    for one, other in zip(found, search(tables[order], limits[order]), strict=True):
        assert one[order].tobytes() == other.tobytes()


def test_a_sentence_ends_at_its_own_limit_whatever_the_batch_may_do():
    tables, limits = random_tables(0, end=-30.0), np.arange(B) % LIMIT + 1
    found = searcher(bigram_step, **PAPER)(tables, limits)
    assert (found.lengths[:, 0] == limits).all()
    assert_slow_search_agrees(found, tables, limits, **PAPER)


def test_limits_are_at_most_max_length_and_zero_is_no_sentence():
    search, tables = searcher(bigram_step, **PAPER), random_tables(0, end=-30.0)
    beyond, within = (search(tables, np.full(B, limit)) for limit in (LIMIT + 13, LIMIT))
    np.testing.assert_array_equal(beyond.tokens, within.tokens)
    assert (beyond.lengths[:, 0] == LIMIT).all()
    found = search(tables, np.where(np.arange(B) < 5, LIMIT, 0))
    assert (found.lengths[:5, 0] == LIMIT).all() and (found.lengths[5:] == 0).all()
    assert np.isneginf(found.scores[5:]).all()
    assert (search(tables, np.zeros(B, int)).lengths == 0).all()


# −inf.


def test_minus_infinity_neither_lives_nor_finishes():
    """Fewer continuations than beams, and dead ends, after which all logits are −inf."""
    search = searcher(bigram_step, **WIDE)
    for seed in range(7):
        possible = np.random.default_rng(seed).random((B, V, V)) < 0.17
        tables = np.where(possible, random_tables(seed), -np.inf).astype(np.float32)
        limits = random_limits(seed)
        found = search(tables, limits)
        assert (found.lengths == 0).any() and (found.lengths > 0).any()
        assert not possible.any(axis=-1).all()
        assert_slow_search_agrees(found, tables, limits, **WIDE)


def test_a_dead_end_has_candidates_of_minus_infinity_and_no_nan():
    live = jnp.asarray([[-1.0, -2.0, -jnp.inf]] * 2)
    logits = jnp.full((2, 3, V), -jnp.inf).at[0, 1, 5].set(7.0)
    log_probs, parents, tokens = jax.jit(candidates, static_argnums=3)(
        logits, live, jnp.array([False, True]), END
    )
    np.testing.assert_array_equal(log_probs, [[-2.0] + [-np.inf] * 5, [-np.inf] * 6])
    assert (int(parents[0, 0]), int(tokens[0, 0])) == (1, 5)


# Early stopping.


def noting(steps):
    """Bigram steps that append their t to a list when they are executed."""

    def step_of(tables):
        def step(tokens, state, t, parents, ancestry):
            jax.debug.callback(lambda t: steps.append(int(t.max())), t)
            return bigram_step(tables)(tokens, state, t, parents, ancestry)

        return step

    return step_of


@pytest.mark.parametrize("alpha, end", [(0.0, 5.0), (0.6, 5.0), (4.0, 5.0)])
def test_stopping_early_changes_nothing_and_happens_when_the_bound_says_so(alpha, end):
    longest, steps = 31, []
    options = dict(beam_size=3, alpha=alpha, nbest=2, power_penalty=False)
    search = searcher(noting(steps), max_length=longest, **options)
    tables, limits = random_tables(0, end=end), random_limits(0, longest)
    found = search(tables, limits)
    jax.effects_barrier()
    asked = set()

    def watched(model):
        return lambda prefix: asked.add(len(prefix)) or model(prefix)

    for row, limit in enumerate(limits):
        model = table_model(tables[row])
        full = slow_beam_search(model, limit, end_id=END, stop_early=False, **options)
        assert_same(listed(found, row), full)
        slow_beam_search(watched(model), limit, end_id=END, **options)
    assert sorted(steps) == sorted(asked)
    if alpha < 1:
        assert len(steps) < longest


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_horizon_stops_where_nothing_within_it_could_win(horizon):
    longest, options = 31, dict(beam_size=3, alpha=1.3, nbest=2, power_penalty=False)
    steps = []
    search = searcher(noting(steps), max_length=longest, horizon=horizon, **options)
    tables, limits = random_tables(0, end=1.0), random_limits(0, longest)
    found = search(tables, limits)
    best = searcher(bigram_step, max_length=longest, **options)(tables, limits)
    jax.effects_barrier()
    assert (found.scores <= best.scores).all()
    asked = {0: set(), horizon: set()}

    def watched(row, horizon):
        model = table_model(tables[row])
        return lambda prefix: asked[horizon].add((row, len(prefix))) or model(prefix)

    for row, limit in enumerate(limits):
        expected, _ = (
            slow_beam_search(watched(row, h), limit, end_id=END, horizon=h, **options)
            for h in (horizon, 0)
        )
        assert_same(listed(found, row), expected)
    assert sorted(steps) == sorted({length for _, length in asked[horizon]})
    assert len(asked[horizon]) < len(asked[0])


# The queue.


@pytest.mark.parametrize("rows", [1, 4, B - 1, B])
@pytest.mark.parametrize("options", [GREEDY, PAPER])
def test_sentences_that_share_rows_find_what_they_find_alone(rows, options):
    """To the last bit, and no row waits while there is a sentence to begin."""
    tables, limits = random_tables(0, (B, V, V, V), end=0.5), random_limits(1)
    limits[-2:] = 0
    beams, steps = options["beam_size"], []

    @jax.jit
    def shared(tables, limits):
        def step(tokens, state, t, parents, ancestry):
            sentences, last = state
            jax.debug.callback(lambda *x: steps.append(tuple(map(np.asarray, x))), sentences, t)
            return trigram_step(tables[sentences])(tokens, last, t, parents, ancestry)[0], (
                sentences, tokens)

        def load(state, row, sentence):
            return state[0].at[row].set(sentence), state[1].at[row].set(START)

        nothing = jnp.full(rows, B), jnp.zeros((rows, beams), int)
        return beam_search(step, nothing, jnp.full(B, START), limits, max_length=LIMIT,
                           end_id=END, queue=Queue(rows, load), **options)

    found = jax.device_get(shared(tables, limits))
    jax.effects_barrier()
    alone = searcher(trigram_step, **options)(tables, limits)
    for one, other in zip(found, alone, strict=True):
        assert one.tobytes() == other.tobytes()
    begun = [sentences[(t == 0) & (sentences < B)].tolist() for sentences, t in steps]
    assert sum(begun, []) == list(range(B - 2))
    # A row's steps follow one another: t is 0 or one more than before, until no sentence waits.
    for (_, before), (_, after) in pairwise(steps[: next(
            i for i in range(len(steps)) if B - 3 in begun[i])]):
        assert ((after == before + 1) | (after == 0)).all()


def test_a_search_in_which_nothing_lives_stops():
    tables, steps = np.full((B, V, V), -np.inf, np.float32), []
    tables[:, START, 3:] = 0.0  # start → 3 or higher → nothing

    found = searcher(noting(steps), **PAPER)(tables, np.full(B, LIMIT))
    jax.effects_barrier()
    assert sorted(steps) == [0, 1]
    assert (found.lengths == 0).all() and np.isneginf(found.scores).all()


# The contract of a step.


def logits_of(history, weights):
    """Depends on every token and its place: Σ_s W[b, s, token_s]; history [B, N, T], −1 is none."""
    rows, times = jnp.arange(len(weights))[:, None, None], jnp.arange(history.shape[-1])
    parts = weights[rows, times, jnp.maximum(history, 0)]
    return jnp.where((history >= 0)[..., None], parts, 0.0).sum(axis=2)


def test_parents_and_ancestry_tell_the_same_history():
    def gather(weights):
        """The state is each hypothesis' history: it moves with `parents`."""

        def step(tokens, history, t, parents, ancestry):
            history = jnp.take_along_axis(history, parents[:, :, None], axis=1)
            history = jnp.where(jnp.arange(LIMIT) == t[:, None, None], tokens[..., None], history)
            return logits_of(history, weights), history

        return step

    def append(weights):
        """The state is what every slot was fed in every step; `ancestry` finds the way."""

        def step(tokens, fed, t, parents, ancestry):
            fed = fed.at[jnp.arange(len(fed)), t].set(tokens)
            mine = jnp.take_along_axis(fed, jnp.swapaxes(jnp.maximum(ancestry, 0), 1, 2), axis=2)
            history = jnp.where(ancestry >= 0, jnp.swapaxes(mine, 1, 2), -1)
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

"""Beam search against enumeration and a slow search in Python, on models that are tables.

Axes: B sentences · N beams · V vocabulary · T steps.
"""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model import platforms
from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.search.candidates import candidates, logsumexp, top_k
from seq2seq.model.search.hypotheses import length_penalty
from tests.support.marks import slow_except
from tests.support.models.table_models import (
    END,
    GREEDY,
    LIMIT,
    PAPER,
    POWER,
    START,
    STEEP,
    WIDE,
    B,
    V,
    assert_same,
    assert_slow_search_agrees,
    assert_well_formed,
    bigram_step,
    random_limits,
    random_tables,
    searcher,
    table_model,
)
from tests.support.oracles.slow_beam_search import every_hypothesis, listed, penalty, rescored

# Top-k.


@pytest.mark.parametrize("k", slow_except([1, 3, 16], range(1, 17)))
def test_top_k_equals_a_stable_sort_with_ties_and_infinities_at_any_vocabulary_size(k):
    # Sizes at which stages and chunk sizes change.
    borders = [16 * k - 1, 16 * k, 16 * k + 1, 64 * k]
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
    def run(x):
        return [top_k(x[:, :n], k) for n in sizes]

    for n, (values, index) in zip(sizes, run(x), strict=True):
        stable = np.argsort(-x[:, :n], axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(index, stable, f"V={n}")
        np.testing.assert_array_equal(values, np.take_along_axis(x, stable, axis=1), f"V={n}")


@pytest.mark.parametrize(
    "vocab, beams",
    slow_except(
        [(3, 5), (59, 1), (1021, 2)],
        product([3, 59, 1000, 1021], [1, 2, 5]),
    ),
)
def test_candidates_are_the_first_of_all_continuations_in_sorted_order(vocab, beams):
    """The logits are integers, so many continuations tie. The third lane is at its limit."""
    random, lanes = np.random.default_rng(vocab + beams), 3
    logits = random.integers(-9, 9, (lanes, beams, vocab)).astype(np.float32)
    normalizer = random.normal(size=(lanes, beams)).astype(np.float32)
    live = -np.sort(random.integers(0, 3, (lanes, beams)), axis=1).astype(np.float32)
    live[0, 1:] = -np.inf
    number = 1 if beams == 1 else 2 * beams
    shapes = (1, 1, vocab), (lanes, 1, vocab), (lanes, beams, vocab)
    masks = [(), *((random.random(shape) < 0.7,) for shape in shapes)]

    @jax.jit
    def run(masks, *arguments):
        return [candidates(*arguments, END, *mask) for mask in masks]

    arguments = logits, normalizer, live, np.arange(lanes) == 2
    for mask, result in zip(masks, jax.device_get(run(masks, *arguments)), strict=True):
        changes = np.where(*mask, logits, -np.inf) if mask else logits.copy()
        changes[2] = np.where(np.arange(vocab) == END, logits[2], -np.inf)
        expected = (live[..., None] + (changes - normalizer[..., None])).reshape(lanes, -1)
        order = np.argsort(-expected, axis=1, kind="stable")[:, :number]
        values = np.take_along_axis(expected, order, axis=1)
        np.testing.assert_array_equal(result[0], values)
        possible = values > -np.inf
        assert possible.any()
        np.testing.assert_array_equal(result[1][possible], (order // vocab)[possible])
        np.testing.assert_array_equal(result[2][possible], (order % vocab)[possible])


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_normalizer_is_the_log_of_the_summed_exponentials(monkeypatch, in_turn):
    monkeypatch.setattr(platforms, "CPU", platforms.CPU._replace(lanes_in_turn=in_turn))
    x = 50 * np.random.default_rng(0).normal(size=(3, 2, 1021))
    x[0, 0], x[1, 0, 7], x[1, 1, 3], x[2, 0, 5:] = -np.inf, np.inf, np.nan, -np.inf
    normalizer = jax.jit(logsumexp)(x.astype(np.float32))
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.reduce(x, axis=-1)
    np.testing.assert_allclose(normalizer, expected, rtol=1e-6)


# Exhaustive enumeration.


@pytest.mark.parametrize(
    "alpha, power",
    slow_except([(0.0, False), (1.7, False)], product((0.0, 0.6, 1.7), (False, True))),
)
def test_a_beam_as_wide_as_all_continuations_equals_exhaustive_enumeration(alpha, power):
    """With V = 4 and at most 4 tokens there are 1 + 3 + 9 + 27 = 40 hypotheses. The vocabulary is
    also smaller than two beams."""
    options = dict(beam_size=41, nbest=41, alpha=alpha, power_penalty=power)
    search, limits = searcher(max_length=4, **options), np.array([4, 1, 3, 4, 2])
    for seed in range(3):
        tables = random_tables(seed, (5, 4, 4, 4), end=seed - 1.0)
        hypotheses = search(tables, limits)
        assert_well_formed(hypotheses, limits)
        for row, limit in enumerate(limits):
            expected = [
                (tokens, log_prob, log_prob / penalty(len(tokens), alpha, power))
                for tokens, log_prob in every_hypothesis(table_model(tables[row]), limit, END)
            ]
            assert len(expected) == sum(3**n for n in range(limit))
            assert_same(listed(hypotheses, row), sorted(expected, key=lambda e: -e[2]))


# Greedy search and the slow search.


def test_beam_1_is_greedy_search():
    search = searcher(**GREEDY)
    for seed in range(5):
        tables, limits = random_tables(seed), random_limits(seed)
        hypotheses = search(tables, limits)
        assert_well_formed(hypotheses, limits)
        for row, limit in enumerate(limits):
            tokens = [START]
            while tokens[-1] != END:
                best = tables[row, tokens[-1]].argmax()
                tokens.append(END if len(tokens) == limit else int(best))
            assert listed(hypotheses, row)[0][0] == tuple(tokens[1:])


@pytest.mark.parametrize(
    "options", slow_except([GREEDY, PAPER, STEEP, WIDE], [GREEDY, PAPER, STEEP, WIDE, POWER])
)
def test_random_bigrams_give_the_results_of_the_slow_search(options):
    search = searcher(**options)
    for seed in range(7):
        tables, limits = random_tables(seed, end=seed / 2), random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **options)


def test_random_trigrams_give_the_results_of_the_slow_search():
    search = searcher(**PAPER)
    for seed in range(5):
        tables, limits = random_tables(seed, (B, V, V, V), end=1.0), random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **PAPER)


@pytest.mark.parametrize("options", [GREEDY, PAPER, WIDE])
def test_ties_go_to_the_earlier_then_to_the_better_hypothesis_then_to_the_lower_token(options):
    """All possible next tokens are equally probable, so nearly all hypotheses tie."""
    search = searcher(**options)
    for seed in range(5):
        possible = np.random.default_rng(seed).random((B, V, V)) < 0.5
        possible[0], possible[:, :, END] = True, True
        tables = np.where(possible, 0.0, -np.inf).astype(np.float32)
        limits = random_limits(seed)
        assert_slow_search_agrees(search(tables, limits), tables, limits, **options)


def test_logits_of_half_precision_are_searched_in_float32():
    """Half precision would round the normaliser."""
    seen = []

    def rules(logits, normalizer, *_):
        seen.append((logits.dtype, normalizer.dtype))
        return logits, normalizer, jnp.ones((1, 1, 1), bool)

    def search(tables, limits):
        step, start = bigram_step(tables), jnp.full(B, START)
        options = SearchOptions(LIMIT, END, beam_size=2, rules=rules)
        return beam_search(step, None, Targets(start, limits), options)

    found = jax.eval_shape(search, random_tables(0).astype(np.float16), random_limits(0))
    assert {*seen, (found.scores.dtype, found.log_probs.dtype)} == {(np.dtype("float32"),) * 2}


# Results.


@pytest.mark.parametrize("options", slow_except([PAPER, STEEP], [PAPER, STEEP, POWER]))
def test_log_probs_are_teacher_forced_and_scores_divide_them_by_the_penalty(options):
    tables, limits = random_tables(3, end=1.0), random_limits(3)
    hypotheses = searcher(**options)(tables, limits)
    for row in range(B):
        for tokens, log_prob, score in listed(hypotheses, row):
            expected = rescored(table_model(tables[row]), tokens)
            assert log_prob == pytest.approx(expected, rel=1e-5, abs=1e-5)
            expected /= penalty(len(tokens), options["alpha"], options["power_penalty"])
            assert score == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_penalty_follows_the_equation_and_is_one_if_alpha_is_zero():
    lengths = np.float32([1, 7, 53])
    plain, power = (jax.jit(partial(length_penalty, power=power)) for power in (False, True))
    np.testing.assert_allclose(plain(lengths, 0.6), ((5 + lengths) / 6) ** 0.6, rtol=1e-6)
    np.testing.assert_allclose(power(lengths, 0.6), lengths**0.6, rtol=1e-6)
    assert (plain(lengths, 0.0) == 1.0).all()


# Sentences in a batch.


def test_results_do_not_depend_on_neighbours_or_the_place_in_the_batch_in_any_bit():
    search, random = searcher(**PAPER), np.random.default_rng(0)
    tables, limits = random_tables(0, end=1.0), random_limits(0)
    hypotheses = search(tables, limits)
    for row, place in ((0, 0), (5, 19), (22, 3)):
        other_tables, other_limits = random_tables(place + 1), random_limits(place + 1)
        other_tables[place], other_limits[place] = tables[row], limits[row]
        for array, other_array in zip(hypotheses, search(other_tables, other_limits), strict=True):
            assert array[row].tobytes() == other_array[place].tobytes()
    order = random.permutation(B)
    for array, other_array in zip(hypotheses, search(tables[order], limits[order]), strict=True):
        assert array[order].tobytes() == other_array.tobytes()


def test_a_sentence_ends_at_its_own_limit():
    tables, limits = random_tables(0, end=-30.0), np.arange(B) % LIMIT + 1
    hypotheses = searcher(**PAPER)(tables, limits)
    assert (hypotheses.lengths[:, 0] == limits).all()
    assert_slow_search_agrees(hypotheses, tables, limits, **PAPER)


def test_limits_are_capped_at_max_length_and_limit_zero_is_padding():
    search, tables = searcher(**PAPER), random_tables(0, end=-30.0)
    beyond, within = (search(tables, np.full(B, limit)) for limit in (LIMIT + 13, LIMIT))
    np.testing.assert_array_equal(beyond.tokens, within.tokens)
    assert (beyond.lengths[:, 0] == LIMIT).all()
    hypotheses = search(tables, np.where(np.arange(B) < 5, LIMIT, 0))
    assert (hypotheses.lengths[:5, 0] == LIMIT).all() and (hypotheses.lengths[5:] == 0).all()
    assert np.isneginf(hypotheses.scores[5:]).all()
    assert (search(tables, np.zeros(B, int)).lengths == 0).all()


# −inf.


def test_hypotheses_of_probability_zero_are_neither_live_nor_finished():
    """There are fewer continuations than beams, and dead ends, where all logits are −inf."""
    search = searcher(**WIDE)
    for seed in range(7):
        possible = np.random.default_rng(seed).random((B, V, V)) < 0.17
        tables = np.where(possible, random_tables(seed), -np.inf).astype(np.float32)
        limits = random_limits(seed)
        hypotheses = search(tables, limits)
        assert (hypotheses.lengths == 0).any() and (hypotheses.lengths > 0).any()
        assert not possible.any(axis=-1).all()
        assert_slow_search_agrees(hypotheses, tables, limits, **WIDE)


def test_nbest_above_the_beam_size_is_an_error():
    with pytest.raises(ValueError, match="from 1 to beam_size=2; got 3"):
        searcher(beam_size=2, nbest=3)(random_tables(0), random_limits(0))


def test_a_dead_end_has_candidates_of_minus_infinity_not_nan():
    live = np.float32([[-1.0, -2.0, -np.inf]] * 2)
    logits, normalizer = np.full((2, 3, V), -np.inf, np.float32), np.full((2, 3), -np.inf)
    logits[0, 1, 5] = normalizer[0, 1] = 7.0
    log_probs, parents, tokens = jax.jit(candidates, static_argnums=4)(
        logits, normalizer.astype(np.float32), live, np.array([False, True]), END
    )
    np.testing.assert_array_equal(log_probs, [[-2.0] + [-np.inf] * 5, [-np.inf] * 6])
    assert (int(parents[0, 0]), int(tokens[0, 0])) == (1, 5)

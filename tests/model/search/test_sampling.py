"""Sampling: frequencies equal probabilities, and a sentence does not depend on its neighbours."""

import math
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.sampling import sample, top_k_top_p_mask

V, START, END, LIMIT = 5, 1, 2, 3


def step_of(tables):
    def step(tokens, state, t, parents, ancestry):
        return jnp.take_along_axis(tables, tokens[:, :, None], axis=1), state

    return step


@partial(jax.jit, static_argnames=("samples", "top_k", "top_p", "suppress"))
def draw(tables, limits, keys, suppress=(), **options):
    return sample(
        step_of(tables),
        None,
        Targets(jnp.full(len(tables), START), limits),
        keys,
        SearchOptions(LIMIT, END, suppress=suppress, **options),
    )


def tables(rows, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, (rows, V, V)).astype(np.float32)


LIMITS = np.array([3, 2, 1, 3, 2, 3, 1])


@partial(jax.jit, static_argnums=0)
def keys_of(rows, seed=3):
    return jax.vmap(partial(jax.random.fold_in, jax.random.PRNGKey(seed)))(jnp.arange(rows))


def kept(probabilities, top_k, top_p):
    """The nucleus by its definition: best first, until the sum of probabilities reaches top_p."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[: top_k or None]
    total, share, chosen = sum(probabilities[i] for i in order), 0.0, []
    for i in order:
        if chosen and share >= top_p:
            break
        chosen.append(i)
        share += probabilities[i] / total
    return chosen


def exact(table, limit, temperature=1.0, top_k=0, top_p=1.0, suppress=()):
    """Every hypothesis with the probability that it is drawn and its log-probability."""
    hypotheses = {}

    def extend(prefix, drawn, log_prob):
        logits = table[prefix[-1] if prefix else START].astype(np.float64)
        of_model = logits - np.log(np.exp(logits).sum())
        last = len(prefix) + 1 == limit
        allowed = [END] if last else [v for v in range(V) if v not in suppress]
        weights = np.zeros(V)
        weights[allowed] = np.exp(logits[allowed] / temperature)
        weights /= weights.sum()
        chosen = kept(weights.tolist(), top_k, top_p)
        for token in chosen:
            share = drawn * weights[token] / weights[chosen].sum()
            if token == END:
                hypotheses[(*prefix, token)] = share, log_prob + of_model[token]
            elif share > 0:
                extend((*prefix, token), share, log_prob + of_model[token])

    extend((), 1.0, 0.0)
    return hypotheses


@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=1.0),
        dict(temperature=0.5),
        dict(temperature=1.0, top_k=2),
        dict(temperature=1.0, top_p=0.7),
        dict(temperature=2.0, top_k=4, top_p=0.8, suppress=(3,)),
    ],
    ids=str,
)
def test_the_frequency_of_a_hypothesis_is_its_probability(options):
    samples, table = 6000, tables(1)
    limits = np.array([LIMIT])
    drawn = jax.device_get(draw(table, limits, keys_of(1), samples=samples, **options))
    counts, log_probs = {}, {}
    for tokens, length, log_prob in zip(
        drawn.tokens[0], drawn.lengths[0], drawn.log_probs[0], strict=True
    ):
        hypothesis = tuple(tokens[:length].tolist())
        counts[hypothesis] = counts.get(hypothesis, 0) + 1
        log_probs[hypothesis] = log_prob
    expected = exact(table[0], LIMIT, **options)
    assert counts.keys() <= expected.keys()
    for hypothesis, (share, log_prob) in expected.items():
        error = math.sqrt(max(share * (1 - share), 1 / samples) / samples)
        assert abs(counts.get(hypothesis, 0) / samples - share) < 6 * error, hypothesis
        if hypothesis in log_probs:
            assert log_probs[hypothesis] == pytest.approx(log_prob, abs=1e-4)


def test_at_the_lowest_temperatures_the_most_probable_tokens_are_drawn():
    """Logits over such a temperature overflow, and devices flush the lower ones to 0, the last of
    these."""
    table, limits = tables(1, seed=3), np.array([LIMIT])
    first = int(table[0, START].argmax())
    expected = first, int(table[0, first].argmax()), END
    assert END not in expected[:2]

    def drawn(temperature):
        options = dict(samples=6000, temperature=temperature)
        return np.asarray(draw(table, limits, keys_of(1), **options).tokens)

    for temperature in (1e-30, 1e-38, 1e-45, 0.0):
        assert (drawn(temperature) == expected).all()
    # Of equally probable tokens each is drawn.
    other = 3 if first == 4 else 4
    table[0, START, other] = table[0, START, first]
    assert set(drawn(0.0)[0, :, 0].tolist()) == {first, other}


def test_samples_do_not_depend_on_neighbours():
    table, limits, keys = tables(7), LIMITS, keys_of(7)
    whole = draw(table, limits, keys, samples=31)
    order = np.array([4, 0, 6, 2, 1, 5, 3])
    mixed = draw(table[order], limits[order], keys[order], samples=31)
    for array, mixed_array in zip(whole, mixed, strict=True):
        np.testing.assert_array_equal(np.asarray(array)[order], mixed_array)
    again = draw(table, limits, keys_of(7, seed=4), samples=31)
    assert (np.asarray(again.tokens) != np.asarray(whole.tokens)).any()


def test_every_sample_ends_within_its_limit():
    drawn = jax.device_get(draw(tables(7), LIMITS, keys_of(7), samples=31))
    assert (drawn.lengths >= 1).all()
    assert (drawn.lengths <= LIMITS[:, None]).all()
    after = np.arange(LIMIT) >= drawn.lengths[..., None] - 1
    assert ((drawn.tokens == END) == after).all()


def test_a_sentence_of_limit_0_has_no_samples_and_does_not_change_others():
    table, keys, present = tables(7), keys_of(7), np.arange(7) < 5
    expected = jax.device_get(draw(table, LIMITS, keys, samples=31))
    drawn = jax.device_get(draw(table, np.where(present, LIMITS, 0), keys, samples=31))
    for array, before in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(array[present], before[present])
    padding = [array[~present] for array in drawn]
    for array, value in zip(padding, (END, 0, -np.inf, -np.inf), strict=True):
        assert (array == value).all()


def test_top_k_top_p_mask_is_the_nucleus_of_the_best_tokens():
    cases = list(product((0, 1, 3), (0.01, 0.5, 0.9, 1.0)))
    logits = np.random.default_rng(2).normal(0, 2, (len(cases), 13, V)).astype(np.float32)

    @jax.jit
    def masks(logits):
        return [top_k_top_p_mask(x, *case) for x, case in zip(logits, cases, strict=True)]

    for case, values, allowed in zip(cases, logits, masks(logits), strict=True):
        for row, mask in zip(np.exp(values.astype(np.float64)), np.asarray(allowed), strict=True):
            expected = sorted(kept((row / row.sum()).tolist(), *case))
            assert np.flatnonzero(mask).tolist() == expected, case


@pytest.mark.parametrize("top_k, top_p", [(5, 1.0), (40, 0.9)])
def test_top_k_of_a_large_vocabulary_includes_ties_and_sorts_no_vocabulary(top_k, top_p):
    vocab, random = 4001, np.random.default_rng(4)
    logits = random.integers(0, 3000, (7, vocab)).astype(np.float32) / 250  # with ties
    find = jax.jit(partial(top_k_top_p_mask, top_k=top_k, top_p=top_p)).lower(logits)
    for row, mask in zip(logits, np.asarray(find.compile()(logits)), strict=True):
        probabilities = np.exp(row.astype(np.float64))
        last = min(row[kept(probabilities.tolist(), top_k, top_p)])
        np.testing.assert_array_equal(mask, row >= last)
    program = find.as_text().splitlines()
    ordered = [line for line in program if "@sort(" in line or "top_k(" in line]
    assert ordered and not any(f"x{vocab}x" in line for line in ordered)


def test_the_history_for_rules_holds_only_drawn_tokens_and_a_sample_without_a_token_ends():
    """A rule forbids repetitions, and every token after the first one. In the first sentence the
    end token is by far the most probable, so each sample ends at once, unless the history holds an
    end token that was not drawn. In the second one it is by far the least probable."""
    logits = np.zeros((2, V, V), np.float32)
    logits[..., END] = [[50.0], [-50.0]]

    def rules(logits, normalizer, history, t, sentences):
        repeated = (history[..., None] == jnp.arange(V)).any(axis=2)
        return logits, normalizer, ~repeated & (t == 0)[:, None, None]

    @jax.jit
    def run(keys):
        targets = Targets(jnp.full(2, START), jnp.full(2, LIMIT))
        options = SearchOptions(LIMIT, END, samples=4, rules=rules)
        return sample(step_of(jnp.asarray(logits)), None, targets, keys, options)

    drawn = run(keys_of(2))
    assert drawn.lengths.tolist() == [[1] * 4, [2] * 4]
    assert (drawn.tokens[1, :, 0] != END).all() and (drawn.tokens[1, :, 1] == END).all()


def test_a_sample_ends_if_all_tokens_have_probability_zero():
    logits = np.zeros((1, V, V), np.float32)
    logits[0, :, END] = -50.0
    logits[0, V - 1] = -np.inf  # no token is possible after the last one
    drawn = draw(logits, np.array([LIMIT]), keys_of(1), samples=6000, temperature=1.0)
    tokens, lengths = np.asarray(drawn.tokens[0]), np.asarray(drawn.lengths[0])
    is_last = tokens[:, 0] == V - 1
    assert 0 < is_last.sum() < 6000 and (lengths[is_last] == 2).all()
    assert (lengths[~is_last] == LIMIT).all() and (tokens[is_last, 1] == END).all()

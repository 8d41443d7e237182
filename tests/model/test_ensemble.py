"""Ensembles: two models equal their mean for every rule; samples of a model with itself.

Axes: B sentences · N hypotheses · V vocabulary · T steps.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.search.rules import penalize_repetition
from seq2seq.model.search.sampling import sample
from seq2seq.model.search.scoring import mean_over_models
from seq2seq.model.search.translate import ensemble, mixture_logits
from tests.model.search.test_search_rules import (
    END,
    LIMIT,
    START,
    B,
    V,
    assert_slow_search_agrees,
    defined_model,
    for_each_case,
    per_sentence,
    rules_by_case,
    rules_of,
    step_of,
    tables_and_limits,
)
from tests.support.marks import slow_except

# Rules that change log-probabilities, which must be those of the mixture; and masks.
RULES = {
    "none": {},
    "repetition_penalty": dict(repetition_penalty=1.7),
    "renormalize": dict(suppress=(3, 5), renormalize=True),
    "together": dict(suppress=(4,), renormalize=True, repetition_penalty=1.3, no_repeat_ngram=3,
                     min_lengths=True, prefix=True),
}  # fmt: skip
SAMPLES = {
    "plain": {}, "temperature": dict(temperature=0.7), "top-k": dict(top_k=3),
    "top-p": dict(top_p=0.8), "all": dict(temperature=1.6, top_k=5, top_p=0.9),
}  # fmt: skip


def ensemble_of(models, beams, weights=None):
    """The step of an ensemble of tables, and its initial state."""
    state = (jnp.full((len(models[0]), beams), START),) * len(models)
    return ensemble([step_of(model) for model in models], weights), state


def logits_of(seed):
    """Logits that are not log-probabilities."""
    return tables_and_limits(seed)[0] + 3.0


@jax.jit
def search(models, case, limits, min_lengths, prefix, weights=None):
    """Beam search; the rules of a sentence are those of its case in RULES."""
    every = [rules_of(options, min_lengths, prefix, limits) for options in RULES.values()]
    return beam_search(
        *ensemble_of(models, 3, weights),
        Targets(jnp.full(len(case), START), limits),
        SearchOptions(LIMIT, END, beam_size=3, nbest=3, rules=rules_by_case(every, case)),
    )


def searched(*tables, weights=None):
    """The results of an ensemble of tables for all RULES, each with the same sentences."""
    limits, min_lengths, prefix = sentences()
    case, limits, min_lengths, *prefix = for_each_case(RULES, limits, min_lengths, *prefix)
    models = tuple(np.concatenate([table] * len(RULES)) for table in tables)
    return jax.device_get(search(models, case, limits, min_lengths, tuple(prefix), weights))


def sentences():
    """Limits, minimum lengths, and prefixes."""
    return np.random.default_rng(1).integers(1, LIMIT + 1, B), *per_sentence(2)


@pytest.mark.parametrize(
    "weights", [pytest.param(None, marks=pytest.mark.slow), np.float32([0.8, 0.2])], ids=str
)
def test_an_ensemble_of_two_searches_like_the_mean_of_their_probabilities(weights):
    tables = logits_of(3), logits_of(4)
    results = searched(*tables, weights=weights)
    shares = [np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in tables]
    mean = np.log(np.average(shares, axis=0, weights=weights))
    limits, min_lengths, prefix = sentences()
    for number, name in enumerate(RULES):
        for row, limit in enumerate(limits):
            model, allowed = defined_model(
                RULES[name], mean[row], min_lengths[row], prefix[0][row], prefix[1][row]
            )
            assert_slow_search_agrees(
                results, number * B + row, model, limit, 3, case=name, allowed=allowed
            )


@pytest.mark.parametrize("weights", [(0.7, 0.3), (0.2, 0.5, 0.3)], ids=str)
def test_a_weighted_mixture_is_the_log_of_the_weighted_mean_of_probabilities(weights):
    """In float32 for logits of half precision too."""
    halves = np.random.default_rng(7).normal(2, 3, (len(weights), 2, 3, V)).astype(np.float16)
    logits = halves.astype(np.float32)
    probabilities = np.exp(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))
    expected = np.log(np.tensordot(weights, probabilities, axes=1))

    @jax.jit
    def run(logits, halves, probabilities, weights):
        """The attention of an ensemble has the same weights."""
        mixed = [mixture_logits(list(inputs), weights) for inputs in (logits, halves)]
        return mixed, mean_over_models(list(probabilities), weights)

    mixed, attention = run(logits, halves, probabilities, np.float32(weights))
    for x in mixed:
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(attention, np.exp(expected), rtol=1e-5)


def test_equal_weights_give_the_probabilities_of_no_weights_and_extreme_ones_those_of_one_model():
    logits = list(np.random.default_rng(8).normal(0, 3, (3, 2, 3, V)).astype(np.float32))
    weights = None, np.float32([1 / 3] * 3), np.float32([1e-30, 1, 1e-30])

    @jax.jit
    def run(logits, weights):
        mixed = [jax.nn.softmax(mixture_logits(logits, x)) for x in weights]
        return *mixed, jax.nn.softmax(logits[1]), mixture_logits(logits[:1], jnp.ones(1))

    usual, equal, extreme, second, single = jax.device_get(run(logits, weights))
    np.testing.assert_allclose(equal, usual, rtol=1e-5)
    np.testing.assert_allclose(extreme, second, rtol=1e-5)
    assert np.abs(usual - extreme).max() > 0.1
    np.testing.assert_array_equal(single, logits[0])


@pytest.mark.parametrize("options", slow_except(["all"], SAMPLES))
def test_samples_of_a_model_with_itself_are_those_of_the_model(options):
    names = ("none", "repetition_penalty", "renormalize")
    case, table = for_each_case(names, logits_of(5))

    @jax.jit
    def draw(models):
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.PRNGKey(3)))(jnp.arange(len(case)))
        targets = Targets(jnp.full(len(case), START), jnp.full(len(case), LIMIT))
        every = [rules_of(RULES[name], None, None, targets.limits) for name in names]
        rules = rules_by_case(every, case)
        return sample(
            *ensemble_of(models, 4),
            targets,
            keys,
            SearchOptions(LIMIT, END, samples=4, rules=rules, **SAMPLES[options]),
        )

    single, twice = (jax.device_get(draw((table,) * number)) for number in (1, 2))
    np.testing.assert_array_equal(single.tokens, twice.tokens)
    np.testing.assert_allclose(single.log_probs, twice.log_probs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.6, 1.0, 1.7])
def test_the_repetition_penalty_equals_that_of_transformers_on_log_probabilities(penalty):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    random = np.random.default_rng(0)
    logits, history = logits_of(6)[:, 0, :2], random.integers(0, V, (B, 2, LIMIT))
    normalizer = np.asarray(jax.nn.logsumexp(logits, axis=-1))
    penalized = jax.jit(penalize_repetition)(logits, normalizer, history, penalty)
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor(history.reshape(-1, LIMIT)),
        torch.tensor(logits.reshape(-1, V)).log_softmax(dim=-1),
    )
    np.testing.assert_allclose(
        penalized - normalizer[..., None], expected.numpy().reshape(B, 2, V), rtol=1e-5, atol=1e-5
    )

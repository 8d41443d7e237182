"""A caller's own rules and forbidden sequences, against their definitions in a slow search."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import Mask, Place, Prefix, SearchOptions, Targets
from seq2seq.model.search.beam_search import Queue, beam_search
from seq2seq.model.search.rules import (
    forbid_sequences_mask,
    make_rules,
    no_repeat_ngram_mask,
    suppress_first_mask,
)
from seq2seq.model.search.sampling import sample
from seq2seq.model.search.scoring import target_log_probs
from tests.model.search.test_search_rules import (
    END,
    LIMIT,
    START,
    B,
    V,
    assert_slow_search_agrees,
    defined_model,
    log_softmax,
    per_sentence,
    rules_by_case,
    step_of,
    tables_and_limits,
)

SEQUENCES = [(4,), (3, 5), (5, 5), (3, 3, 6), (6, 5, 3), (6, 6, 6, 6)]
MASK_FUNCTIONS = no_repeat_ngram_mask, suppress_first_mask, forbid_sequences_mask
BIAS = np.random.default_rng(9).normal(0, 1, V).astype(np.float32)


def forbid(logits, normalizer, history, t, sentences):
    return logits, normalizer, forbid_sequences_mask(Place(history, t, V), SEQUENCES)


def forbid_suppressed(logits, normalizer, history, t, sentences):
    return logits, normalizer, forbid_sequences_mask(Place(history, t, V), [(3, 5), (6, 3, 6)])


def biased(logits, normalizer, history, t, sentences):
    return logits + BIAS, normalizer, jnp.ones((1, 1, 1), bool)


def rewarding(logits, normalizer, history, t, sentences):
    """Token 4 of sentence 2 · B has a log-probability of 1. From the second step on, the normalizer
    of the next sentence is NaN, and one logit of the one after it."""
    token = (jnp.arange(V) == 4) & (sentences == 2 * B)[:, None, None]
    changed = jnp.where(token, normalizer[..., None] + 1.0, logits)
    is_nan = (t > 0) & (sentences == 2 * B + 1)
    normalizer = jnp.where(is_nan[:, None], jnp.nan, normalizer)
    is_nan = (jnp.arange(V) == 4) & ((t > 0) & (sentences == 2 * B + 2))[:, None, None]
    return jnp.where(is_nan, jnp.nan, changed), normalizer, jnp.ones((1, 1, 1), bool)


def completes(written, token):
    """Whether `token` completes one of SEQUENCES."""
    tokens = (*written, token)
    return any(tokens[-len(sequence) :] == sequence for sequence in SEQUENCES)


@partial(jax.jit, static_argnames=("options", "beam_size"))
def search(tables, limits, options, beam_size):
    return beam_search(
        *model_of(tables, beam_size),
        targets_of(limits),
        options._replace(beam_size=beam_size, nbest=beam_size),
    )


def model_of(tables, beams):
    """The step and its initial state."""
    return step_of(tables), jnp.full((len(tables), beams), START)


def targets_of(limits, **options):
    return Targets(jnp.full(len(limits), START), limits, **options)


USUAL = SearchOptions(LIMIT, END)
BIASED = USUAL._replace(suppress=(3,), renormalize=True, repetition_penalty=1.7, rules=biased)


@jax.jit
def search_with_all(tables, limits, prefix):
    """A third of the sentences have `forbid` and the prefixes, a third BIASED, the last one
    `rewarding`."""
    rules = [
        make_rules(USUAL._replace(rules=forbid), targets_of(limits, prefix=prefix)),
        make_rules(BIASED),
        make_rules(USUAL._replace(rules=rewarding)),
    ]
    by_case = rules_by_case(rules, np.repeat([0, 1, 2], B))
    options = USUAL._replace(beam_size=3, nbest=3, rules=by_case)
    return beam_search(*model_of(tables, 3), targets_of(limits), options)


@cache
def results_with_all():
    tables, limits = (
        np.concatenate(x) for x in zip(*map(tables_and_limits, (5, 7, 5)), strict=True)
    )
    prefix = Prefix(*(np.concatenate([x] * 3) for x in per_sentence(6)[1]))
    return jax.device_get(search_with_all(tables, limits, prefix))


def test_a_search_with_forbidden_sequences_equals_the_slow_search_without_them():
    """Only forced prefixes and limits have precedence."""
    (tables, limits), prefix = tables_and_limits(5), per_sentence(6)[1]

    def allowed_of(row):
        tokens, length = prefix[0][row], prefix[1][row]

        def allowed(written, token):
            if len(written) < length:
                return token == tokens[len(written)]
            return not completes(written, token)

        return allowed

    for row, limit in enumerate(limits):
        model = defined_model({}, tables[row], None, None, None)[0]
        allowed = allowed_of(row)
        assert_slow_search_agrees(results_with_all(), row, model, limit, 3, allowed=allowed)


def test_a_callers_rules_are_applied_to_the_logits_of_the_model_before_the_other_rules():
    """The penalty multiplies the changed log-probabilities, and renormalisation follows it."""
    tables, limits = tables_and_limits(7)

    def model_of(table):
        def model(written):
            log_probs = log_softmax(table[((START, START, *written)[-2:])]) + BIAS
            log_probs[list(set(written))] *= 1.7
            log_probs[3] = -np.inf
            return log_softmax(log_probs)

        return model

    for row, limit in enumerate(limits):
        assert_slow_search_agrees(results_with_all(), B + row, model_of(tables[row]), limit, 3)


@pytest.mark.slow
def test_sequences_that_cannot_occur_change_no_bit():
    tables, limits = tables_and_limits(8)
    usual, results = (
        jax.device_get(search(tables, limits, USUAL._replace(suppress=(3,), rules=rules), 1))
        for rules in (None, forbid_suppressed)
    )
    jax.tree.map(np.testing.assert_array_equal, results, usual)


def test_no_sample_contains_a_forbidden_sequence():
    tables, _ = tables_and_limits(9)

    @jax.jit
    def draw(forbidden):
        def custom(*arguments):
            logits, normalizer, allowed = forbid(*arguments)
            return logits, normalizer, allowed | ~forbidden

        keys = jax.random.split(jax.random.key(0), B)
        options = USUAL._replace(samples=20, rules=custom)
        targets = targets_of(jnp.full(B, LIMIT))
        return sample(*model_of(jnp.asarray(tables), 20), targets, keys, options)

    def completed(forbidden):
        """The share of drawn tokens, before the limit, that complete a forbidden sequence."""
        drawn = jax.device_get(draw(forbidden))
        tokens = [sample[: length - 1].tolist() for sample, length in zip(
            drawn.tokens.reshape(-1, LIMIT), drawn.lengths.ravel(), strict=True)]  # fmt: skip
        return np.mean(
            [completes(sample[:i], x) for sample in tokens for i, x in enumerate(sample)]
        )

    assert completed(True) == 0 < 0.1 < completed(False)


def test_forbid_sequences_mask_equals_a_scan_of_the_history():
    """Lanes are at different steps; few tokens, so that sequences occur."""
    random = np.random.default_rng(0)
    t, history = random.integers(0, LIMIT, B), random.integers(3, V, (B, 2, LIMIT))
    history = np.where(np.arange(LIMIT) < t[:, None, None], history, -1)
    mask = lambda *place: forbid_sequences_mask(Place(*place, V), SEQUENCES)  # noqa: E731
    masks = np.asarray(jax.jit(mask)(history, t))
    seen = set()
    for b, n in np.ndindex(B, 2):
        written = tuple(history[b, n, : t[b]].tolist())
        expected = [not completes(written, token) for token in range(V)]
        assert masks[b, n].tolist() == expected
        seen.add(tuple(expected))
    assert len(seen) > 3


@pytest.mark.parametrize("sequences", [[()], [(3,), (V,)], [(-1, 3)]], ids=str)
def test_forbidden_sequences_must_hold_ids_of_the_vocabulary(sequences):
    history, t = jnp.zeros((1, 1, 3), int), jnp.zeros(1, int)
    with pytest.raises(ValueError, match="sequences must hold ids from 0 to 6; got"):
        jax.eval_shape(lambda: forbid_sequences_mask(Place(history, t, V), sequences))


def test_queue_rules_and_samples_have_the_same_dtypes_with_64_bit_types():
    """Also if a caller's rules return float64. Loops of other dtypes than at the start fail."""
    tables, limits = tables_and_limits(5)

    def searched_and_drawn(tables, limits):
        def load(state, lanes, sentences):
            return state[0].at[lanes].set(sentences.astype(state[0].dtype)), state[1]

        def step(tokens, state, t, parents, ancestry):
            sentences, last = state
            logits, last = step_of(tables[sentences])(tokens, last, t, parents, ancestry)
            return logits, (sentences, last)

        def custom(logits, normalizer, *_):
            return logits.astype(tables.dtype), normalizer.astype(tables.dtype), jnp.asarray(MASK)

        prefix = Prefix(jnp.full((B, 2), 4), jnp.full(B, 1))
        targets = targets_of(limits, min_lengths=jnp.full(B, 2), prefix=prefix)
        masks = tuple(map(Mask, MASK_FUNCTIONS, (2, (5,), ((5, 6),))))
        options = SearchOptions(
            LIMIT, END, beam_size=2, suppress=(3,), renormalize=True, repetition_penalty=1.3,
            masks=masks, rules=custom, samples=2, top_k=3, top_p=0.9,
        )  # fmt: skip
        state = jnp.zeros(4, int), jnp.full((4, 2), START, jnp.int32)
        hypotheses = beam_search(step, state, targets, options, Queue(4, load))
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.PRNGKey(0)))(jnp.arange(B))
        last = jnp.full((B, 2), START, jnp.int32)
        return hypotheses, sample(step_of(tables), last, targets, keys, options)

    usual = jax.eval_shape(searched_and_drawn, tables, limits)
    with jax.enable_x64():
        doubles = jax.eval_shape(searched_and_drawn, tables.astype(np.float64), limits)
    assert usual == doubles


def test_rules_that_reward_a_token_fail_because_the_bound_would_not_be_exact_and_with_nan():
    """The other sentences have the results of a search without these rules."""
    tables, limits = tables_and_limits(5)
    assert (limits[:3] > 1).all() and np.isnan(results_with_all().scores[2 * B : 2 * B + 3]).all()
    for row, limit in enumerate(limits[3:], 3):
        model = defined_model({}, tables[row], None, None, None)[0]
        assert_slow_search_agrees(results_with_all(), 2 * B + row, model, limit, 3)


MASK = np.ones((1, 1, V), bool)
WRONG = {
    r"rules must return \(logits, normalizer, mask\); got": (TypeError, lambda x, z: x),
    "normalizer, mask.; got tuple": (TypeError, lambda x, z: (x, z)),
    "logits of rules must be floating": (TypeError, lambda x, z: (x > 0, z, MASK)),
    "logits of rules must have the shape": (ValueError, lambda x, z: (x[..., :1], z, MASK)),
    "normalizer of rules must have": (ValueError, lambda x, z: (x, z[..., None], MASK)),
    "mask of rules must be boolean": (TypeError, lambda x, z: (x, z, jnp.ones((1, 1, V)))),
    "mask of rules must have the axes": (ValueError, lambda x, z: (x, z, MASK[0])),
    "mask of rules must broadcast": (ValueError, lambda x, z: (x, z, MASK[..., 1:])),
}


@pytest.mark.parametrize("message", WRONG)
def test_an_error_of_a_callers_rules_names_the_wrong_result(message):
    """In a search, a sample and the scoring of given targets; one function makes these checks."""
    error, changed = WRONG[message]
    tables, limits = tables_and_limits(5)

    def wrong(logits, normalizer, *_):
        return changed(logits, normalizer)

    def searched(tables, limits):
        options = USUAL._replace(beam_size=2, rules=wrong)
        return beam_search(*model_of(tables, 2), targets_of(limits), options)

    def drawn(tables, limits):
        options = USUAL._replace(samples=2, rules=wrong)
        keys = jax.random.split(jax.random.key(0), B)
        return sample(*model_of(tables, 2), targets_of(limits), keys, options)

    def scored(tables, limits):
        return target_log_probs(tables[:, START], jnp.ones((B, V), int), wrong)

    others = (searched, drawn) if "broadcast" in message else ()
    for function in (scored, *others):
        with pytest.raises(error, match=message):
            jax.eval_shape(function, tables, limits)

"""Rules of a search against their definitions, in a slow search in Python."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.search.arguments import Mask, Place, Prefix, SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.search.rules import forbid_sequences_mask, make_rules, no_repeat_ngram_mask
from tests.support.marks import slow_except
from tests.support.oracles.slow_beam_search import listed, slow_beam_search

B, V, LIMIT, START, END = 19, 7, 11, 1, 2
MASKS = {"no_repeat_ngram": no_repeat_ngram_mask, "forbid_sequences": forbid_sequences_mask}
# "free": all tokens of a prefix but the last one cost nothing.
COMBINATIONS = {
    "suppress": dict(suppress=(3, 5)),
    "renormalize": dict(suppress=(3, 5), renormalize=True, prefix=True),
    "repetition_penalty": dict(repetition_penalty=1.7),
    "repetition_penalty, renormalize": dict(
        repetition_penalty=1.7, suppress=(3, 5), renormalize=True
    ),
    "bigrams": dict(no_repeat_ngram=2),
    "unigrams": dict(no_repeat_ngram=1),
    "sequences": dict(forbid_sequences=((4,), (5, 6), (6, 3, 6)), prefix=True),
    "min_lengths": dict(min_lengths=True),
    "prefix": dict(prefix=True),
    "free": dict(prefix=True, free=True),
    "forced_end": dict(forced_end=True, suppress=(3,), renormalize=True),
    "together": dict(
        suppress=(4,), repetition_penalty=0.8, no_repeat_ngram=3, min_lengths=True, prefix=True
    ),
    "together, free": dict(
        suppress=(4, 5),
        renormalize=True,
        repetition_penalty=1.3,
        min_lengths=True,
        prefix=True,
        free=True,
        forced_end=True,
    ),
}


def tables_and_limits(seed):
    """A table of logits [V, V, V] (two tokens back) for each sentence, and its limit."""
    random = np.random.default_rng(seed)
    tables = random.normal(0, 2, (B, V, V, V)).astype(np.float32)
    return tables, random.integers(1, LIMIT + 1, B)


def per_sentence(seed):
    """Minimum lengths, and prefixes with their lengths; some exceed the limit of a sentence."""
    random = np.random.default_rng(seed)
    prefix = random.integers(3, V, (B, 3))
    return random.integers(0, LIMIT + 2, B), (prefix, random.integers(0, 4, B))


def step_of(tables):
    def step(tokens, last, t, parents, ancestry):
        before = jnp.take_along_axis(last, parents, axis=1)
        return tables[jnp.arange(len(tables))[:, None], before, tokens], tokens

    return step


def rules_of(case, min_lengths, prefix, limits):
    """The rules of a case: of COMBINATIONS, or similar."""
    free = jnp.maximum(prefix[1] - 1, 0) if "free" in case else None
    named = {name: case[name] for name in SearchOptions._fields if name in case}
    masks = tuple(Mask(MASKS[name], case[name]) for name in MASKS if name in case)
    targets = Targets(
        jnp.full(len(limits), START),
        limits,
        min_lengths=min_lengths if "min_lengths" in case else None,
        prefix=Prefix(*prefix, free) if "prefix" in case else None,
    )
    return make_rules(SearchOptions(LIMIT, END, masks=masks, **named), targets)


def rules_by_case(all_rules, case):
    """Rules with which sentence b has `all_rules[case[b]]`, so that one search has them all."""

    def rules(logits, normalizer, *arguments):
        shapes = logits.shape, normalizer.shape, logits.shape
        unchanged = logits, normalizer, True
        results = [
            unchanged if rules is None else rules(logits, normalizer, *arguments)
            for rules in all_rules
        ]
        selection = jnp.asarray(case)[arguments[-1]], jnp.arange(len(logits))
        return tuple(
            jnp.stack([jnp.broadcast_to(x, shape) for x in values])[selection]
            for values, shape in zip(zip(*results, strict=True), shapes, strict=True)
        )

    return rules


def for_each_case(cases, *arrays):
    """The number of the case of each sentence, and the arrays repeated for every case."""
    repeated = [np.concatenate([x] * len(cases)) for x in arrays]
    return np.repeat(np.arange(len(cases)), B), *repeated


@partial(jax.jit, static_argnames="beam_size")
def search(case, tables, limits, min_lengths, prefix, beam_size):
    """Beam search; the rules of a sentence are those of its case in COMBINATIONS."""
    every = [rules_of(options, min_lengths, prefix, limits) for options in COMBINATIONS.values()]
    rules = rules_by_case(every, case)
    return beam_search(
        step_of(tables),
        jnp.full((len(tables), beam_size), START),
        Targets(jnp.full(len(tables), START), limits),
        SearchOptions(LIMIT, END, beam_size=beam_size, nbest=beam_size, rules=rules),
    )


def repeats(prefix, token, n):
    """Whether `token` would complete an n-gram that the prefix contains."""
    tokens = (*prefix, token)
    ngrams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return ngrams[-1] in ngrams[:-1] if ngrams else False


def log_softmax(logits):
    """Of one position, in the precision of `logits`."""
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def defined_model(options, table, min_lengths, prefix, length, limit=None):
    """A sentence's model and `allowed` function for the slow search, from the definitions."""

    def model(written):
        log_probs = log_softmax(table[((START, START, *written)[-2:])])
        log_probs[list(set(written))] *= options.get("repetition_penalty", 1.0)
        if options.get("renormalize"):
            forced = prefix[len(written)] if "prefix" in options and len(written) < length else None
            log_probs[[token for token in options["suppress"] if token != forced]] = -np.inf
            log_probs = log_softmax(log_probs)
        if "free" in options and len(written) < length - 1:
            log_probs[prefix[len(written)]] = 0.0
        if "forced_end" in options and len(written) + 1 == limit:
            log_probs[END] = 0.0
        return log_probs

    def allowed(written, token):
        if "prefix" in options and len(written) < length:
            return token == prefix[len(written)]
        if token in options.get("suppress", ()):
            return False
        if "min_lengths" in options and token == END and len(written) + 1 < min_lengths:
            return False
        tokens = (*written, token)
        if any(tokens[-len(ids) :] == ids for ids in options.get("forbid_sequences", ())):
            return False
        n = options.get("no_repeat_ngram", 0)
        return not (n and repeats(written, token, n))

    return model, allowed


def assert_slow_search_agrees(results, row, model, limit, beam_size, case="", **options):
    """Equal tokens in the same order, and equal scores; `case` names the row in a failure."""
    expected = slow_beam_search(
        model, limit, beam_size=beam_size, end_id=END, nbest=beam_size, **options
    )
    hypotheses = listed(results, row)
    assert [h.tokens for h in hypotheses] == [h.tokens for h in expected], (case, row)
    for h, e in zip(hypotheses, expected, strict=True):
        np.testing.assert_allclose(h[1:], e[1:], rtol=1e-5, atol=1e-5, err_msg=f"{case}, {row}")


@pytest.mark.parametrize("beam_size", slow_except([3], [1, 3]))
def test_a_search_with_rules_equals_the_slow_search_with_their_definitions(beam_size):
    """All combinations are searched together, with the same sentences."""
    tables, limits = tables_and_limits(5)
    min_lengths, (prefix, prefix_lengths) = per_sentence(6)
    arrays = for_each_case(COMBINATIONS, tables, limits, min_lengths, prefix, prefix_lengths)
    results = jax.device_get(search(*arrays[:4], tuple(arrays[4:]), beam_size=beam_size))
    hypotheses = {}
    for number, (name, options) in enumerate(COMBINATIONS.items()):
        rows = range(number * B, (number + 1) * B)
        hypotheses[name] = [listed(results, row) for row in rows]
        for row, limit in enumerate(limits):
            model, allowed = defined_model(
                options, tables[row], min_lengths[row], prefix[row], prefix_lengths[row], limit
            )
            assert_slow_search_agrees(
                results, rows[row], model, limit, beam_size, case=name, allowed=allowed
            )
    different = [name for name in COMBINATIONS if hypotheses[name] != hypotheses["suppress"]]
    assert different == [name for name in COMBINATIONS if name != "suppress"]


def test_without_enabled_rules_make_rules_returns_none():
    targets = Targets(jnp.full(B, START), jnp.full(B, LIMIT))
    for requirements in (None, targets):
        assert make_rules(SearchOptions(LIMIT, END, renormalize=True), requirements) is None


@pytest.mark.parametrize("n", [1, 2, 3, 13])
def test_no_repeat_ngram_mask_equals_a_scan_of_the_history(n):
    random = np.random.default_rng(n)
    t = 8
    history = random.integers(0, 3, (B, 2, LIMIT))
    history[..., t:] = -1
    masks = np.asarray(
        jax.jit(lambda *place: no_repeat_ngram_mask(Place(*place, V), n))(history, np.full(B, t))
    )
    for b, hypothesis in np.ndindex(B, 2):
        written = tuple(history[b, hypothesis, :t].tolist())
        assert masks[b, hypothesis].tolist() == [
            not repeats(written, token, n) for token in range(V)
        ]

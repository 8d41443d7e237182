"""Models that are tables of logits, as steps and as functions, and checks of search results.

Axes: B sentences · N beams · V vocabulary · T steps.
Each sentence of a batch has its own table, so one compiled search covers many random models.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.search.hypotheses import Hypotheses
from tests.support.oracles.slow_beam_search import listed, slow_beam_search

B, V, LIMIT = 23, 11, 7
START, END = 1, 2
PAPER = dict(beam_size=3, alpha=0.6, nbest=3, power_penalty=False)
STEEP = PAPER | dict(alpha=1.7)
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
    """p(next | last two) from [B, V, V, V]; the state is the previous token of each slot."""

    def step(tokens, last, t, parents, ancestry):
        before = jnp.take_along_axis(last, parents, axis=1)
        return tables[jnp.arange(len(tables))[:, None], before, tokens], tokens

    return step


@jax.jit
def log_softmax(logits):
    """−inf remains −inf, even if all logits are −inf."""
    normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.where(jnp.isneginf(logits), -jnp.inf, logits - normalizer)


def table_model(table):
    """One sentence's bigram or trigram table as a function of a prefix, for the slow search."""
    log_probs, order = np.asarray(log_softmax(table)), table.ndim - 1
    return lambda prefix: log_probs[((START,) * order + tuple(prefix))[-order:]]


def random_tables(seed, shape=(B, V, V), *, end=0.0):
    """Normal logits; `end` is added to those of the end token."""
    tables = np.random.default_rng(seed).normal(0, 2, shape)
    tables[..., END] += end
    return tables.astype(np.float32)


def random_limits(seed, longest=LIMIT):
    return np.random.default_rng(seed).integers(1, longest + 1, B)


@cache
def compiled_search(step_of, max_length, **options):
    """A compiled search over tables; the initial state is the start tokens, for trigrams."""

    @jax.jit
    def search(tables, limits, alpha):
        start = jnp.full(len(tables), START)
        state = jnp.full((len(tables), options["beam_size"]), START, jnp.int32)
        arguments = SearchOptions(max_length, END, alpha=alpha, **options)
        return beam_search(step_of(tables), state, Targets(start, limits), arguments)

    return search


def searcher(step_of=trigram_step, max_length=LIMIT, *, alpha=0.6, **options):
    """A function of tables and limits that searches. One program serves every alpha, and trigrams
    and bigrams, which become tables of trigrams."""
    search = compiled_search(step_of, max_length, **options)

    def search_tables(tables, limits):
        if step_of is trigram_step and tables.ndim == 3:
            tables = np.repeat(tables[:, None], tables.shape[1], axis=1)
        return jax.device_get(search(tables, limits, np.float32(alpha)))

    return search_tables


# Checks of results.


def assert_same(actual, expected):
    """Equal tokens in the same order; scores equal to 1e-5."""
    assert [f[0] for f in actual] == [e[0] for e in expected]
    for f, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(f[1:], e[1:], rtol=1e-5, atol=1e-5)


def assert_well_formed(hypotheses: Hypotheses, limits):
    """Best first, padded with end tokens; missing hypotheses have score −inf and length 0."""
    tokens, lengths, scores, log_probs = hypotheses
    present = lengths > 0
    for x in (scores, log_probs):
        assert np.isfinite(x[present]).all() and np.isneginf(x[~present]).all()
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    assert (lengths <= np.asarray(limits)[:, None]).all()
    after = np.arange(tokens.shape[-1]) >= lengths[:, :, None] - 1
    assert ((tokens == END) == after).all()


def assert_slow_search_agrees(hypotheses, tables, limits, **options):
    assert_well_formed(hypotheses, limits)
    for row, limit in enumerate(limits):
        expected = slow_beam_search(table_model(tables[row]), limit, end_id=END, **options)
        assert_same(listed(hypotheses, row), expected)

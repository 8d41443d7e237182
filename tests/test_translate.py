"""Translate: the search over a real Transformer equals a slow search that forces every prefix.

Axes: B sentences · S source · T target · D model width · V vocabulary.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_beam_search import penalty, rescored, slow_beam_search

from model.config import ModelConfig
from model.transformer import Transformer
from model.translate import translate

B, S, T, V, LAYERS = 5, 7, 11, 17, 2
PAD, START, END = 0, 1, 2
SEARCH = dict(beam_size=3, alpha=0.6, nbest=2)
LENGTHS, LIMITS = np.array([7, 3, 5, 1, 6]), np.array([11, 7, 2, 5, 11])
MODELS = [("post", "sinusoidal"), ("pre", "rotary"), ("post", "rotary"), ("pre", "sinusoidal")]


def tiny_model(norm="post", positions="sinusoidal"):
    return Transformer(
        ModelConfig(
            source_vocab_size=V, target_vocab_size=V, d_model=26, d_ff=37, num_heads=13,
            num_layers=LAYERS, norm=norm, positions=positions, max_length=23, dropout=0.0,
        )
    )  # fmt: skip


@cache
def random_variables(model):
    """Sharper than at initialisation, so that hypotheses differ from each other and end."""
    ids = jnp.ones((1, 3), int)
    variables = jax.jit(model.init)(jax.random.key(0), ids, ids, ids, ids)
    return jax.tree.map(lambda x: 1.7 * x, variables)


@cache
def translator(model, **options):
    options = {**SEARCH, "max_length": T, **options}
    search = jax.jit(lambda *arrays: translate(model, *arrays, **options))
    return lambda *arrays: jax.device_get(search(random_variables(model), *arrays))


def random_source(seed=0, lengths=LENGTHS, width=S):
    """Rows of random ids that end with the end token; padding after it."""
    random = np.random.default_rng(seed)
    source = np.full((len(lengths), width), PAD)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = [*random.integers(4, V, max(length - 1, 0)), END][:length]
    return source


@cache
def forced_log_probs(model):
    @jax.jit
    def log_probs(variables, source, target):
        logits = model.apply(
            variables, source, target, jnp.ones_like(source), jnp.ones_like(target)
        )
        return jax.nn.log_softmax(logits, axis=-1)

    return log_probs


def forced_model(model, sentence):
    """One sentence as a function of a prefix: teacher forcing from the start, without a cache.

    The sentence comes alone and without padding.
    """

    @cache
    def log_probs(prefix):
        target = np.full((1, T), PAD)
        target[0, : len(prefix) + 1] = START, *prefix
        found = forced_log_probs(model)(random_variables(model), sentence[None], target)
        return np.asarray(found)[0, len(prefix)]

    return log_probs


def listed(found, row):
    """A row's hypotheses as (tokens, log_prob, score), absent ones left out."""
    return [
        (tuple(tokens[:length].tolist()), float(log_prob), float(score))
        for tokens, length, score, log_prob in zip(*(x[row] for x in found), strict=True)
        if length > 0
    ]


@pytest.mark.parametrize("norm, positions", MODELS)
def test_translations_are_those_of_the_slow_search_by_teacher_forcing(norm, positions):
    """Also: n-best, limits, padded sources, and log-probabilities equal to forced rescoring."""
    model, source = tiny_model(norm, positions), random_source()
    found = translator(model)(source, LENGTHS, LIMITS)
    for row in range(B):
        forced = forced_model(model, source[row, : LENGTHS[row]])
        options = dict(**SEARCH, end_id=END)
        expected = slow_beam_search(forced, LIMITS[row], **options)
        print(expected)
        assert [h[0] for h in listed(found, row)] == [h.tokens for h in expected]
        for h, e in zip(listed(found, row), expected, strict=True):
            np.testing.assert_allclose(h[1:], e[1:], rtol=1e-5, atol=1e-5)
        for tokens, log_prob, score in listed(found, row):
            again = rescored(forced, tokens)
            assert log_prob == pytest.approx(again, rel=1e-5, abs=1e-5)
            again /= penalty(len(tokens), SEARCH["alpha"])
            assert score == pytest.approx(again, rel=1e-5, abs=1e-5)
    assert (found.lengths <= LIMITS[:, None]).all()
    assert (found.tokens[np.arange(T) >= found.lengths[..., None] - 1] == END).all()

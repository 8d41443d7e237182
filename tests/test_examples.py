"""The examples learn their tasks: each threshold is out of reach without learning."""

from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest

from examples import minimal_transformer as minimal
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.transformer import Transformer
from tests.support.models.random_parameters import random_params

FILES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def run(name):
    return import_module(f"examples.{name}").main()


def test_attention_on_plain_arrays_equals_numpy():
    assert run("attention") < 1e-5


def test_the_minimal_transformer_has_the_logits_of_the_model():
    """For the same parameters, and initial parameters of the same tree."""
    sizes = dict(d_model=minimal.D, d_ff=minimal.F, num_heads=minimal.H, num_layers=minimal.LAYERS)
    vocabulary = dict(source_vocab_size=minimal.V, target_vocab_size=minimal.V)
    config = ModelConfig(**sizes, **vocabulary, max_length=16, dropout=0.0)
    params = random_params(config)
    initial = jax.eval_shape(minimal.init_params, jax.random.key(0))
    assert jax.tree.map(np.shape, initial) == jax.tree.map(np.shape, params)
    source, lengths = minimal.batch_of(["abc", "w", "length"])
    inputs, _ = minimal.batch_of(["cba", "hello", "htgnel"])
    segments = (np.arange(source.shape[1]) < lengths[:, None]).astype(int)

    @jax.jit
    def both(params):
        logits = minimal.decode(params, inputs, *minimal.encode(params, source, lengths))
        arrays = source, inputs, segments, np.ones_like(inputs)
        return logits, Transformer(config).apply({"params": params}, *arrays)

    np.testing.assert_allclose(*both(params), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_minimal_transformer_reverses_words():
    assert run("minimal_transformer") >= 0.9  # chance: 0


@pytest.mark.slow
def test_a_gpt_sorts_unseen_digits():
    assert run("gpt") >= 0.9  # chance: one line in thousands


@pytest.mark.slow
def test_a_classifier_finds_a_repetition_of_the_first_word():
    assert run("bert") >= 0.9  # chance: 0.5


@pytest.mark.slow
def test_a_vision_transformer_classifies_the_direction_of_strokes():
    assert run("vit") >= 0.9  # chance: 0.25


def test_the_search_over_n_grams_finds_the_best_of_all_sentences(monkeypatch):
    def compiled(step, state, targets, options):  # faster than operation by operation
        search = jax.jit(lambda state: beam_search(step, state, targets, options))
        return jax.device_get(search(state))

    monkeypatch.setattr("examples.ngrams.beam_search", compiled)
    perplexity, difference, best = run("ngrams")
    assert perplexity < 3.0  # uniform: 10; from word frequencies: about 6
    assert difference < 1e-5 and best.endswith(" sleeps")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_short_and_described(path):
    longest = 200 if path.name == "minimal_transformer.py" else 80
    assert len(path.read_text(encoding="utf-8").split("\n")) - 1 <= longest
    reuse = path.parent.parent / "docs" / "REUSE.md"
    assert f"`python examples/{path.name}`" in reuse.read_text(encoding="utf-8")

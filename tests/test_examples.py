"""The examples learn their tasks: each threshold is out of reach without learning."""

from importlib import import_module
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def run(name):
    return import_module(f"examples.{name}").main()


def test_attention_on_plain_arrays_equals_numpy():
    assert run("attention") < 1e-5


@pytest.mark.slow
def test_a_gpt_sorts_unseen_digits():
    assert run("gpt") >= 0.9  # chance: one line in thousands


@pytest.mark.slow
def test_a_classifier_finds_a_repetition_of_the_first_word():
    assert run("bert") >= 0.9  # chance: 0.5


@pytest.mark.slow
def test_a_vision_transformer_classifies_the_direction_of_strokes():
    assert run("vit") >= 0.9  # chance: 0.25


def test_the_search_over_n_grams_finds_the_best_of_all_sentences():
    perplexity, difference, best = run("ngrams")
    assert perplexity < 3.0  # uniform: 10; from word frequencies: about 6
    assert difference < 1e-5 and best.endswith(" sleeps")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_short_and_described(path):
    assert len(path.read_text(encoding="utf-8").split("\n")) - 1 <= 80
    reuse = path.parent.parent / "docs" / "REUSE.md"
    assert f"`python examples/{path.name}`" in reuse.read_text(encoding="utf-8")

"""Minimum Bayes risk decoding: utilities against pairwise calls of sacreBLEU."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu

from seq2seq.decoding import mbr
from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.mbr import expected_utilities, mbr_choice, mbr_hypothesis, utility_matrix
from seq2seq.decoding.results import Hypothesis, Item
from tests.support.models.quick_search import quick_searches, repeat
from tests.support.models.random_translator import translator_of

TEXTS = [
    "the cat sat on the mat.", "The cat sits on the mat, (here)!", "the the the the", "a", "", " ",
    "cat", "a dog ran; the cat sat on a mat", "…", "那只猫坐在垫子上。", "那只狗坐在垫子上",
    "the mat sat on the cat .  ", "aaaaaaaa", "the", "hello, world", "b c d",
]  # fmt: skip
RANDOM = np.random.default_rng(3)
TEXTS += ["".join(RANDOM.choice(list("ab, "), length)) for length in RANDOM.integers(1, 90, 24)]
SENTENCE_SCORES = {
    "chrf": lambda text, reference: sacrebleu.sentence_chrf(text, [reference]),
    "chrf++": lambda text, reference: sacrebleu.sentence_chrf(text, [reference], word_order=2),
    "bleu": lambda text, reference: sacrebleu.sentence_bleu(text, [reference]),
    "bleu:zh": lambda text, reference: sacrebleu.sentence_bleu(text, [reference], tokenize="zh"),
}


def pairwise(texts, utility):
    score = SENTENCE_SCORES[utility]
    return np.array([[score(text, reference).score for reference in texts] for text in texts])


@pytest.mark.parametrize("utility", SENTENCE_SCORES)
def test_utilities_are_the_sentence_scores_of_sacrebleu(utility, monkeypatch):
    monkeypatch.setattr(mbr, "COLUMNS", 100)  # several blocks
    np.testing.assert_allclose(
        utility_matrix(TEXTS, utility), pairwise(TEXTS, utility), rtol=0, atol=1e-9
    )


def test_the_expected_utility_is_the_mean_over_the_other_samples_of_which_equal_ones_count():
    texts = ["the cat", "a cat sat", "the cat", "", "the cat sat", "a cat sat"]
    for utility in ("chrf", "bleu"):
        matrix = pairwise(texts, utility)
        expected = [np.delete(row, index).mean() for index, row in enumerate(matrix)]
        np.testing.assert_allclose(expected_utilities(texts, utility), expected, rtol=0, atol=1e-9)
        assert mbr_choice(texts, utility) == np.argmax(np.round(expected, 9))
    assert expected_utilities(["the cat"], "chrf") == [100]


def test_the_first_of_the_best_hypotheses_is_chosen_and_those_that_rules_forbid_are_not():
    texts = {"b b b": float("-inf"), "a cat": -1.0, "the cat": -3.0, "x": -0.5}
    hypotheses = [Hypothesis(text, score) for text, score in texts.items()] * 2
    chosen = mbr_hypothesis(hypotheses, "chrf")
    allowed = [hypothesis.text for hypothesis in hypotheses if hypothesis.text != "b b b"]
    best = mbr_choice(allowed, "chrf")
    assert chosen.text == allowed[best]
    assert chosen.utility == expected_utilities(allowed, "chrf").max()
    assert mbr_hypothesis(hypotheses[:1], "chrf").text == "b b b"  # the only one
    assert mbr_choice(["a", "b", "b", "a"], "chrf") == 0


def shortened(*arguments):
    """The search `repeat`, of which sample i lacks the last i tokens."""
    samples = repeat(*arguments)
    lengths = jnp.maximum(samples.lengths - jnp.arange(samples.lengths.shape[1]), 1)
    return samples._replace(lengths=lengths)


@quick_searches(shortened)
def test_a_translator_returns_the_chosen_sample_with_its_scores():
    """Notices a choice that is not made, is made before texts are known, or is not rendered."""
    drawn = translator_of(samples=5)
    chosen = drawn.with_options(mbr="chrf")
    lines = ["eins zwei drei vier fünf sechs", "", "vier fünf", "elf zehn neun acht sieben"]
    whole, results = list(drawn.stream(lines)), list(chosen.stream(lines))
    indices = [mbr_choice([h.text for h in line.hypotheses], "chrf") for line in whole]
    assert len(set(indices)) > 1
    for line, index, result in zip(whole, indices, results, strict=True):
        (hypothesis,) = result.hypotheses
        assert hypothesis._replace(utility=None) == line.hypotheses[index]
        assert (hypothesis.utility is None) == (not result.tokens)  # a blank line has no samples
    assert chosen.translate(lines) == [result.text for result in results]
    item = Item(lines[0], lines[0])
    rendered = FORMATS["jsonl"].render(0, item._replace(line='{"text": ""}'), results[0], False)
    utilities = expected_utilities([h.text for h in whole[0].hypotheses], "chrf")
    assert json.loads(rendered)["utility"] == pytest.approx(utilities.max())

"""Scores: names and signatures, and BLEU compared with a plain implementation."""

import math
from collections import Counter

import numpy as np
import pytest

from data.scores import bleu, chrf, exact_match, tokenized_bleu

TEXTS = ["the cat sat on the mat today .", "a dog barks at the big moon now ."]
REFERENCES = ["The cat sat on the mat .", "A dog barked at the big moon ."]


def counted_bleu(texts, references):
    """Equation of Papineni et al. 2002, for texts that share n-grams of every order."""
    log_precision, lengths = 0.0, np.zeros(2)
    for n in range(1, 5):
        matched = total = 0
        for text, reference in zip(texts, references, strict=True):
            grams = [
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (text.split(), reference.split())
            ]
            matched += sum((grams[0] & grams[1]).values())
            total += sum(grams[0].values())
        log_precision += math.log(matched / total) / 4
    for text, reference in zip(texts, references, strict=True):
        lengths += len(text.split()), len(reference.split())
    return 100 * math.exp(log_precision + min(0.0, 1 - lengths[1] / lengths[0]))


def test_tokenized_bleu_is_bleu_of_lower_cased_words():
    expected = counted_bleu(TEXTS, [r.lower() for r in REFERENCES])
    score = tokenized_bleu(TEXTS, REFERENCES)
    assert score.value == pytest.approx(expected, rel=1e-6)
    assert "case:lc" in score.signature and "tok:none" in score.signature


def test_the_scales_differ_and_are_named_in_the_signature():
    cased = bleu(TEXTS, REFERENCES)
    assert "case:mixed" in cased.signature and "tok:13a" in cased.signature
    assert cased.value < tokenized_bleu(TEXTS, REFERENCES).value
    assert str(cased).startswith("BLEU ") and cased.signature in str(cased)


def test_perfect_translations_score_100():
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert exact_match(REFERENCES, REFERENCES) == 100
    assert exact_match([REFERENCES[0], "x"], REFERENCES) == 50


def test_cased_bleu_and_chrf_distinguish_text_and_reference():
    """Spaces separate all tokens, so the 13a tokenizer splits at spaces only."""
    short = [" ".join(reference.split()[:-2]) for reference in REFERENCES]
    expected = counted_bleu(short, REFERENCES)
    assert bleu(short, REFERENCES).value == pytest.approx(expected, rel=1e-6)
    assert counted_bleu(REFERENCES, short) != pytest.approx(expected, rel=1e-3)
    # chrF2 weighs recall twice as much as precision: omissions cost more than additions.
    assert chrf(short, REFERENCES).value < chrf(REFERENCES, short).value - 1

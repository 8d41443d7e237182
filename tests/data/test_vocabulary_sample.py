"""A vocabulary is trained on a sample of the whole corpus if the corpus is large."""

import pytest

from data import vocabulary
from data.config import DataConfig
from data.tokenizer import UNKNOWN
from data.vocabulary import train_tokenizers


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_sentences_of_a_sample_come_from_the_whole_corpus(kind, monkeypatch):
    """Words of the last quarter are in the vocabulary; the word of one skipped line is not."""
    monkeypatch.setattr(vocabulary, "TRAINING_SENTENCES", 20)
    early, late = ["abba cada baba daca"] * 45, ["xyzzy zuxy yxuz uzzy"] * 15
    early[1] = "abba cada baba daca kkkk"  # the stride is 120 // 20 + 1 = 7
    trained, _ = train_tokenizers(
        DataConfig(tokenizer=kind, vocab_size=60), early + late, early + late
    )
    assert UNKNOWN not in trained.encode("xyzzy cada")
    assert UNKNOWN in trained.encode("kkkk")
    monkeypatch.setattr(vocabulary, "TRAINING_SENTENCES", 120)
    trained, _ = train_tokenizers(DataConfig(tokenizer=kind, vocab_size=60), early[:60], early[:59])
    assert UNKNOWN not in trained.encode("kkkk")  # a corpus within the limit is used whole


def test_an_alphabet_of_a_quarter_of_the_vocabulary_is_covered_whole():
    """Above a quarter, characters that make up less than 0.05 % of the text are left out."""
    letters = [chr(ord("가") + i) for i in range(9)]
    lines = ["".join(letters[:8])] * 600 + [letters[8]]  # ▁ and the space make up for ten and more
    alphabet = len(set("".join(lines)))
    for size, known in ((4 * alphabet, True), (4 * alphabet - 1, False)):
        trained, _ = train_tokenizers(DataConfig(vocab_size=size), lines, lines)
        assert (UNKNOWN not in trained.encode(letters[8])) == known

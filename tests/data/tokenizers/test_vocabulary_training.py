"""Training of vocabularies: the alphabet, and large texts in another process."""

from pathlib import Path

import pytest

from seq2seq.config.data_config import TOKENIZERS, DataConfig
from seq2seq.config.special_tokens import UNKNOWN
from seq2seq.data.tokenizers import vocabulary_training
from seq2seq.data.tokenizers.vocabulary import make_tokenizer, tokenizer_sha256
from seq2seq.data.tokenizers.vocabulary_sample import SAMPLE_CHARACTERS, SAMPLE_PAIRS
from seq2seq.data.tokenizers.vocabulary_training import sentence_parts, train_tokenizers
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.workers import Workers

SOURCE = ["abba cada baba daca", "dada caba"] * 30
TARGET = ["xyzzy zuxy yxuz uzzy", "uxu zyz"] * 30


def test_an_alphabet_of_a_quarter_of_the_vocabulary_is_covered_whole():
    """Above a quarter, characters that make up less than 0.05 % of the text are left out."""
    letters = [chr(ord("가") + i) for i in range(9)]
    lines = ["".join(letters[:8])] * 600 + [letters[8]]  # ▁ and the space make up for ten and more
    alphabet = len(set("".join(lines)))
    for size, known in ((4 * alphabet, True), (4 * alphabet - 1, False)):
        trained, _ = train_tokenizers(DataConfig(vocab_size=size), lines, lines)
        assert (UNKNOWN not in trained.encode(letters[8])) == known


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_is_trained_on_lines_of_any_length(kind):
    lines = ["fünf " * 699 + "e", "drei " * 4000, "z" * 9000]
    assert [len(line.encode()) for line in lines] == [4195, 20_000, 9000]
    trained, _ = train_tokenizers(DataConfig(tokenizer=kind, vocab_size=40), SOURCE, lines)
    for word in ("fünf", "drei", "z"):
        assert UNKNOWN not in trained.encode(word)


def test_long_lines_are_cut_at_spaces_where_possible():
    for line in ("fünf " * 699 + "e", "drei " * 4000, "漢" * 5000):
        parts = list(sentence_parts(line))
        assert "".join(parts) == line and max(len(part.encode()) for part in parts) <= 4192
        assert all(part.startswith(" ") for part in parts[1:]) == (" " in line)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_is_made_of_its_kind_and_its_content(kind):
    trained, _ = train_tokenizers(DataConfig(tokenizer=kind, vocab_size=40), SOURCE, TARGET)
    made = make_tokenizer(kind, trained.serialized())
    assert tokenizer_sha256(made) == tokenizer_sha256(trained)
    assert [made.encode(text) for text in TARGET] == [trained.encode(text) for text in TARGET]


def test_a_large_text_gives_the_same_vocabularies_as_a_small_one(monkeypatch):
    """They are trained in another process, also if one of the two sides needs no SentencePiece."""
    used = []

    class Watched(Workers):
        def submit(self, *task):
            used.append(task)
            return super().submit(*task)

    monkeypatch.setattr(vocabulary_training, "Workers", Watched)
    size = sum(map(len, SOURCE + TARGET))
    for fields in ({}, {"joint_vocab": False, "target_tokenizer": "words"}):
        config = DataConfig(tokenizer="bpe", vocab_size=40, **fields)
        arguments = config, SOURCE, TARGET, [">>t<<"]
        monkeypatch.setattr(vocabulary_training, "LARGE_TEXT", size + 1)
        here = train_tokenizers(*arguments)
        assert not used
        monkeypatch.setattr(vocabulary_training, "LARGE_TEXT", size)
        apart = train_tokenizers(*arguments)
        assert used.pop()
        assert list(map(tokenizer_sha256, apart)) == list(map(tokenizer_sha256, here))
        assert (apart[0] is apart[1]) == config.joint_vocab
    with pytest.raises(UserError, match="config.data.vocab_size must be at least") as caught:
        train_tokenizers(DataConfig(tokenizer="bpe", vocab_size=6), SOURCE, TARGET)
    assert used and caught.value.code == CONFIGURATION


def test_vocabularies_without_sentencepiece_are_trained_in_this_process(monkeypatch):
    monkeypatch.setattr(vocabulary_training, "LARGE_TEXT", 1)
    monkeypatch.setattr(vocabulary_training, "_train_serialized", None)
    assert train_tokenizers(DataConfig(tokenizer="words"), SOURCE, TARGET)[0].kind == "words"


def test_the_limits_are_those_of_the_documentation():
    text = " ".join(
        (Path(__file__).parents[3] / "docs" / "TRAINING.md").read_text(encoding="utf-8").split()
    )
    assert f"{SAMPLE_PAIRS:,} pairs and {SAMPLE_CHARACTERS / 1e6:.1f} million characters" in text
    assert (
        f"above {vocabulary_training.LARGE_TEXT / 1e6:g} million characters it runs in a process"
        in text
    )

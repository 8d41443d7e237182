"""Pretokenised input and output: the results are those of text, on either side."""

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.decoding.results import Item
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.errors import UserError
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import scored
from tests.support.tiny import WORDS, write_run

LINES = ["eins zwei drei", "", "elf", "sieben 鯨 acht", "vier fünf sechs zehn"]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Sources are searched as ids, so a quick search of these is enough."""
    with quick_searches():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with random weights and a SentencePiece vocabulary."""
    config = DataConfig(tokenizer="bpe", vocab_size=45)
    tokenizer, _ = train_tokenizers(config, WORDS * 9, [])
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def text(run):
    return Translator.load(run, nbest=2)


@pytest.fixture(scope="module")
def pieces(run):
    return Translator.load(run, source_pieces=True, target_pieces=True, nbest=2)


def as_pieces(translator, line):
    tokenizer = translator.source_tokenizer
    return " ".join(map(tokenizer.piece, tokenizer.encode(line)))


def test_pieces_have_the_translations_of_their_text(run, text, pieces):
    tokenizer = text.target_tokenizer
    lines = [as_pieces(text, line) for line in LINES]
    expected, translations = text.translate(LINES), pieces.translate(lines)
    best = [nbest[0] for nbest in translations]
    assert len({nbest[0] for nbest in expected}) > 3
    assert [
        [tokenizer.decode(pieces.target_tokenizer.encode(line)) for line in nbest]
        for nbest in translations
    ] == expected
    assert any(line.split(" ") != tokenizer.decode(tokenizer.encode(line)) for line in best)
    assert Translator.load(run, source_pieces=True, nbest=2).translate(lines) == expected
    assert Translator.load(run, target_pieces=True, nbest=2).translate(LINES) == translations


def test_prefixes_are_pieces(text, pieces):
    prefixes = [*WORDS[:4], ""]
    lines = [as_pieces(text, line) for line in LINES]
    expected = text.stream([Item(a, a, prefix=b) for a, b in zip(LINES, prefixes, strict=True)])
    pairs = [(a, as_pieces(text, b)) for a, b in zip(lines, prefixes, strict=True)]
    translations = list(pieces.stream([Item(a, a, prefix=b) for a, b in pairs]))
    scores = [[(h.score, h.length) for h in translation.hypotheses] for translation in translations]
    assert scores == [
        [(h.score, h.length) for h in translation.hypotheses] for translation in expected
    ]
    for (line, prefix), translation in zip(pairs, translations, strict=True):
        assert not line or translation.text.startswith(prefix)


def test_a_prefix_with_an_unknown_piece_is_refused(pieces):
    with pytest.raises(UserError, match="line 1: its prefix is not in .*, got 'nowhere'; change"):
        list(pieces.stream([Item("eins", "eins", prefix="nowhere")]))


def test_given_targets_are_pieces(text, pieces):
    pairs = list(zip(LINES, LINES[::-1], strict=True))
    lines = [tuple(as_pieces(text, side) for side in pair) for pair in pairs]
    expected = scored(text, pairs)
    assert scored(pieces, lines) == expected and expected.count(None) == 0

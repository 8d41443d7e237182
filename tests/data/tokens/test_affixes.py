"""Tokens around texts: rows of training equal rows made by hand; languages and pieces are found."""

from dataclasses import replace

import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import Special
from seq2seq.data.batching.batches import fixed_batches
from seq2seq.data.batching.packing import RowLayout
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokens.affixes import Affixes, affixes_of
from seq2seq.data.tokens.encoding import encode_pairs
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from tests.data.tokens.test_pairs import a_corpus
from tests.support.models.tiny_tokenizers import multilingual

SOURCES, TARGETS = ["ein Hund", "Hunde"], ["ein Hund und", "ein"]
ENG, KOR, CC = 61, 62, 63
NLLB = {"source_begin": "{source}", "target_begin": "{target}"}
CC25 = {"source_end": "{source}", "target_start": "{target}"}
LANGUAGES = {"source_language": "eng_Latn", "target_language": "kor_Hang"}
# Fields, and what they stand for.
FAMILIES = [
    ({}, Affixes()),
    (NLLB | LANGUAGES, Affixes((ENG,), (), (KOR,))),
    ({"source_begin": "<s>", "target_begin": "<s>"}, Affixes((1,), (), (1,))),
    (CC25 | LANGUAGES, Affixes((), (ENG,), (), KOR)),
    ({"source_begin": "{target}", "target_language": "cc"}, Affixes((CC,))),
    (
        {"source_begin": "<s> {source}", "source_end": "{target} <s>", **LANGUAGES},
        Affixes((1, ENG), (KOR, 1)),
    ),
]


@pytest.mark.parametrize("fields, affixes", FAMILIES, ids=str)
def test_rows_of_training_equal_rows_made_by_hand(fields, affixes):
    tokenizer, config = multilingual(), DataConfig(**fields)
    assert affixes_of(config, (tokenizer, tokenizer)) == affixes
    pairs, _, dropped = encode_pairs(a_corpus(SOURCES, TARGETS), tokenizer, tokenizer, config)
    assert not dropped
    start = 1 if affixes.start is None else affixes.start
    special = Special(start=start)
    (batch,) = fixed_batches(pairs, 2, RowLayout(40, 40, special, len(affixes.source_end)))
    sources = [
        [*affixes.source_begin, *tokenizer.encode(text), 2, *affixes.source_end] for text in SOURCES
    ]
    labels = [[*affixes.target_begin, *tokenizer.encode(text), 2] for text in TARGETS]
    inputs = [[start, *target[:-1]] for target in labels]
    for side, rows in (("source", sources), ("labels", labels), ("decoder_input", inputs)):
        expected = [id_ for row in rows for id_ in row]
        row = getattr(batch, side)[0].tolist()
        assert row == expected + [0] * (40 - len(row[: len(expected)])), side
    lengths = [len(row) for row in sources]
    segments = np.repeat([1, 2, 0], [*lengths, 40 - sum(lengths)])
    assert (batch.source_segments[0] == segments).all()


def test_a_piece_may_be_typed_with_decomposed_characters():
    letters = ListTokenizer("characters", "é\n".encode())
    affixes = affixes_of(DataConfig(source_begin="e\u0301", target_begin="é"), (letters, letters))
    assert affixes.source_begin == affixes.target_begin == (4,)


def test_the_tokens_around_texts_count_in_the_lengths_of_rows():
    tokenizer = multilingual()
    source, target = (len(tokenizer.encode(texts[0])) + 2 for texts in (SOURCES, TARGETS))
    for fields, extra in ((NLLB, (0, 0)), (CC25, (0, -1)), ({}, (-1, -1))):
        fits = DataConfig(source_length=source + extra[0], target_length=target + extra[1])
        fits = replace(fits, **fields, **LANGUAGES)
        for change, count in (({}, 1), ({"source_length": source + extra[0] - 1}, 0)):
            config = replace(fits, **change)
            _, kept, _ = encode_pairs(
                a_corpus(SOURCES[:1], TARGETS[:1]), tokenizer, tokenizer, config
            )
            assert len(kept) == count, fields
        _, _, dropped = encode_pairs(
            a_corpus(["", "ein"], ["ein", " "]), tokenizer, tokenizer, fits
        )
        assert dropped == {"empty after tokenizing": [0, 1]}


def test_rows_without_room_for_a_text_are_refused():
    tokenizer, texts = multilingual(), a_corpus(SOURCES[:1], TARGETS[:1])
    config = DataConfig(source_begin="<s> </s>", target_begin="<s>", target_length=3)
    for source_length, target_length, message in (
        (3, 3, "data.source_length must be at least 4: "),
        (4, 2, "data.target_length must be at least 3: "),
        (4, 3, ""),
    ):
        changed = replace(config, source_length=source_length, target_length=target_length)
        if message:
            with pytest.raises(UserError, match=message) as refused:
                encode_pairs(texts, tokenizer, tokenizer, changed)
            assert refused.value.code == CONFIGURATION
        else:
            encode_pairs(texts, tokenizer, tokenizer, changed)


@pytest.mark.parametrize(
    "fields, code, message",
    [
        (NLLB | {"target_language": "cc"}, DATA, "line 3: source_language is missing"),
        (NLLB | LANGUAGES | {"target_language": "kor"}, DATA, "did you mean kor_Hang?"),
        (CC25 | {"source_language": "cc"}, DATA, "line 3: target_language is missing"),
        ({"source_begin": "<x>"}, CONFIGURATION, "data.source_begin: '<x>' is unknown"),
        ({"target_start": "<x>"}, CONFIGURATION, "data.target_start: '<x>' is unknown"),
    ],
)
def test_an_unknown_or_missing_language_or_piece_is_one_line(fields, code, message):
    with pytest.raises(UserError) as refused:
        affixes_of(DataConfig(**fields), (multilingual(),) * 2, "line 3: {}", DATA)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert refused.value.code == code

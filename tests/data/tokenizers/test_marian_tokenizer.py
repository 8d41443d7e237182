"""The tokenizer of MarianMT directories returns the same ids and texts as that of transformers."""

import json

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor

from seq2seq.config.special_tokens import UNKNOWN
from seq2seq.data.tokenizers.marian_tokenizer import (
    M2MTokenizer,
    MarianTokenizer,
    with_appended_pad,
    without_appended_pad,
)
from seq2seq.data.tokenizers.tokenizer import ids_without_piece
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers
from seq2seq.pretrained.marian_files import load_marian_tokenizers
from seq2seq.runtime.errors import CHECKPOINT, UserError
from tests.support.models.tiny_marian import SENTENCES, sentencepiece, write_vocabularies

TEXTS = [
    *SENTENCES[:4], "", " ", "  two   spaces\tand a tab ",
    "나는 밥을 먹었다.", "Zwei 犬 und Мужчина",
    "🐕🐕 in the 🌲 park 👩‍👩‍👧", ">>deu<< A woman reads.", ">>fra<<A woman", ">>xyz<< unknown tag",
    ">>deu<< a << b <<", ">> no tag", "a >>deu<< inside", ">><< empty", "e\u0301 é ﬁ Ⅷ ½ ™",
    "a\u00a0b\u200bc", "\u202eright to left עברית العربية", "…—„“”‚‘’«»", "ab" * 300,
    "\x00\x07control", "▁under ▁bars",
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["one vocabulary", "two vocabularies"])
def directory(request, tmp_path):
    write_vocabularies(tmp_path, request.param)
    return tmp_path


def test_ids_and_texts_are_those_of_transformers(directory):
    transformers = pytest.importorskip("transformers")
    reference = transformers.MarianTokenizer.from_pretrained(directory)
    source, target = load_marian_tokenizers(directory)
    encoded = source.encode_many(TEXTS)
    assert [[*ids, 0] for ids in encoded] == [reference(text).input_ids for text in TEXTS]
    assert [[*ids, 0] for ids in target.encode_many(TEXTS)] == [
        reference(text_target=text).input_ids for text in TEXTS
    ]
    assert any(1 in ids for ids in encoded)
    assert source.id_of(">>deu<<") in encoded[TEXTS.index(">>deu<< A woman reads.")]
    choose = np.random.default_rng(0)
    for _ in range(50):
        ids = choose.integers(2, target.size - 1, choose.integers(1, 20))
        ids = ids[
            ids != source.size - 1
        ].tolist()  # the reference drops the source's pad from the target
        assert target.decode([0, *ids, target.size - 1]) == target.decode(ids)
        assert target.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_without_a_config_the_files_say_how_many_vocabularies_there_are(directory):
    stated = load_marian_tokenizers(directory)
    (directory / "tokenizer_config.json").unlink()
    for tokenizer, expected in zip(load_marian_tokenizers(directory), stated, strict=True):
        assert tokenizer.vocabulary == expected.vocabulary


def test_saving_a_tokenizer_in_a_run_and_loading_it_change_nothing(directory, tmp_path):
    tokenizers = load_marian_tokenizers(directory)
    save_tokenizers(str(tmp_path / "vocab"), *tokenizers)
    for tokenizer, loaded in zip(tokenizers, load_tokenizers(str(tmp_path / "vocab")), strict=True):
        assert isinstance(loaded, MarianTokenizer)
        assert (tokenizer.model, tokenizer.vocabulary) == (loaded.model, loaded.vocabulary)
        assert tokenizer.encode_many(TEXTS) == loaded.encode_many(TEXTS)


def test_an_appended_pad_can_be_removed(directory):
    for tokenizer in load_marian_tokenizers(directory):
        padded = with_appended_pad(tokenizer, tokenizer.size + 5)
        assert padded.id_of("<pad>") == tokenizer.size + 5 == padded.size - 1
        assert without_appended_pad(padded).vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize("kind, code", [(MarianTokenizer, ">>ko<<"), (M2MTokenizer, "__ko__")])
def test_special_tokens_and_codes_in_a_text_are_unknown_characters(kind, code):
    """SentencePiece returns characters it does not have as they are, several as one piece."""
    names = ["<s>", "<pad>", "</s>", "<unk>", code, "▁"]
    model = sentencepiece(["나는 밥을 먹었다.", "밥을 먹는다."] * 3, 30)
    tokenizer = kind(model, {name: i for i, name in enumerate(names)})
    word = code if kind is M2MTokenizer else "犬"  # a tag anywhere in a text of MarianMT is a tag
    assert tokenizer.encode(f"</s> {word} <s><pad> <unk>") == [5, 3] * 4
    assert tokenizer.languages == {"ko": 4}
    tagged = [4, 5, 3] if kind is MarianTokenizer else [5, 3, 5, 3]
    assert tokenizer.encode(f"{code} </s>") == tagged


def m2m(size=60):
    """(an M2M-100 tokenizer with codes behind its pieces, its vocab.json)"""
    model = sentencepiece(SENTENCES, size, model_type="bpe")
    processor = SentencePieceProcessor(model_proto=model)
    pieces = map(processor.id_to_piece, range(3, processor.get_piece_size()))
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces, reverse=True)]
    vocabulary = {piece: i for i, piece in enumerate(names)}
    codes = {f"__{code}__": len(names) + i for i, code in enumerate(("af", "de", "ko"))}
    return M2MTokenizer(model, vocabulary | codes), vocabulary, processor


def test_the_codes_of_m2m_follow_the_pieces_and_occur_in_no_text():
    tokenizer, vocabulary, processor = m2m()
    size = len(vocabulary)
    assert tokenizer.languages == {"af": size, "de": size + 1, "ko": size + 2}
    assert ids_without_piece(tokenizer, size + 6) == [size + 3, size + 4, size + 5]
    for text in [*TEXTS, "__de__ Hunde", "__ko__", "</s> <unk> <pad>"]:
        expected = [
            UNKNOWN if piece in ("</s>", "<pad>", "<s>") else vocabulary.get(piece, UNKNOWN)
            for piece in processor.encode(text, out_type=str)
        ]
        ids = tokenizer.encode(text)
        assert ids == expected and max(ids, default=0) < size, text
        if UNKNOWN not in ids:
            assert tokenizer.decode([2, size + 1, *ids, 2]) == processor.decode(
                processor.encode(text)
            )


@pytest.mark.parametrize(
    "name, content",
    [
        ("vocab.json", "[]"),
        ("vocab.json", "{"),
        ("vocab.json", '{"</s>": 0}'),
        ("vocab.json", '{"</s>": 0, "<unk>": 0}'),
        ("vocab.json", '{"</s>": 0, "<unk>": "1"}'),
        ("source.spm", "version https://git-lfs"),
        ("target.spm", None),
        ("vocab.json", None),
        ("tokenizer_config.json", json.dumps({"eos_token": "<eos>"})),
        ("tokenizer_config.json", json.dumps({"sp_model_kwargs": {"enable_sampling": True}})),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content):
    write_vocabularies(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=name) as caught:
        load_marian_tokenizers(tmp_path)
    assert caught.value.code == CHECKPOINT

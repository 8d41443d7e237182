"""Tokenizers of vocab.json and merges.txt or of a tokenizer.json, compared with `tokenizers`."""

import json
import random
import sys

import pytest

from seq2seq.data.tokenizers.json_tokenizer import MARK, JsonTokenizer
from seq2seq.data.tokenizers.tokenizer import ids_without_piece
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, make_tokenizer, save_tokenizers
from seq2seq.pretrained.tokenizer_files import (
    load_byte_level_tokenizer,
    load_json_tokenizer,
    load_mbart_tokenizer,
    load_nllb_tokenizer,
    load_t5_tokenizer,
)
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from tests.support.models.tiny_marian import SENTENCES
from tests.support.models.tiny_tokenizers import CODES, T5, model, spelled, texts, write

tokenizers = pytest.importorskip("tokenizers")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def random_lines(count=1500):
    """Unicode of all planes, white space, emoji, Korean, and words of the vocabulary."""
    choose = random.Random(1)
    parts = [
        *" \t\u3000\u2003'",
        "나는",
        "밥을",
        "👩‍👩‍👧",
        "🏽",
        "Hunde",
        "spielen",
        "'s",
        "123",
        "é",
        "e\u0301",
    ]
    lines = []
    for _ in range(count):
        drawn = (chr(choose.randrange(0x20, 0x2FFFF)) for _ in range(4))
        letters = [c for c in drawn if not 0xD800 <= ord(c) < 0xE000 and c != MARK]
        lines.append("".join(choose.choices([*parts, *letters], k=choose.randrange(12))))
    return lines + texts(50)


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A directory with vocab.json and merges.txt of a trained BPE; <mask> is the last."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        [*SENTENCES, "나는 밥을 먹었다. 👩‍👩‍👧"] * 3, vocab_size=330, special_tokens=[*SPECIAL],
        show_progress=False,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp("bart")
    trained.save_model(str(directory))
    vocabulary = json.loads((directory / "vocab.json").read_text())
    return write(directory, vocab__json=vocabulary | {"<mask>": len(vocabulary)})


def library(directory):
    """The same BPE as the library builds it from the files, without special tokens."""
    bpe = tokenizers.models.BPE.from_file(f"{directory}/vocab.json", f"{directory}/merges.txt")
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def test_byte_level_bpe_has_the_ids_and_texts_of_the_library(bart, tmp_path):
    reference, lines = library(bart), random_lines()
    mask = reference.token_to_id("<mask>")
    expected = [line.ids for line in reference.encode_batch(lines)]
    for directory in (bart, only_json(bart, tmp_path / "json")):
        tokenizer = load_byte_level_tokenizer(directory, mask + 1)
        assert tokenizer.size == mask + 1 and not tokenizer.without_piece
        assert tokenizer.encode_many(lines) == expected
        for line, ids in zip(lines, expected, strict=True):
            one_line = line.replace("\n", " ").replace("\r", " ")
            assert tokenizer.decode([2, 0, *ids, mask, 1, mask + 9, 2]) == one_line
        assert [tokenizer.id_of(piece) for piece in (*SPECIAL, "<mask>")] == [0, 1, 2, 3, mask]
        assert [tokenizer.id_of(tokenizer.piece(i)) for i in range(mask + 1)] == [*range(mask + 1)]
        for line in spelled():
            ids = tokenizer.encode(line)
            assert ids == reference.encode(line).ids and tokenizer.decode(ids) == line
            assert not {0, 1, 2, 3, mask} & {*ids}
        save_tokenizers(str(tmp_path / "vocab"), tokenizer, tokenizer)
        again = load_tokenizers(str(tmp_path / "vocab"))[0]
        assert again.encode_many(lines) == expected and again.size == mask + 1
        assert again.serialized() == tokenizer.serialized()


def only_json(bart, directory):
    """The same as the one tokenizer.json that transformers writes, which adds <s> and </s>."""
    tokenizer = library(bart)
    tokenizer.add_special_tokens([*SPECIAL, "<mask>"])
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    assert tokenizer.encode("ein </s>").ids[-2:] == [2, 2]
    return directory


def test_ids_that_the_model_does_not_have_are_dropped(bart, tmp_path):
    """bart-large-cnn has one row less than its vocabulary, whose last id is <mask>."""
    whole = load_byte_level_tokenizer(bart, 1000)
    assert ids_without_piece(whole, whole.size + 2) == [whole.size, whole.size + 1]
    for directory in (bart, only_json(bart, tmp_path / "json")):
        tokenizer = load_byte_level_tokenizer(directory, whole.size - 1)
        assert tokenizer.size == whole.size - 1 and tokenizer.id_of("<mask>") is None
        assert tokenizer.encode_many(texts()) == whole.encode_many(texts())
    write(tmp_path / "gap", vocab__json={"a": 0, "<unk>": 1, "b": 5}, merges__txt="#version: 0.2\n")
    tokenizer = load_byte_level_tokenizer(tmp_path / "gap", 8)
    assert ids_without_piece(tokenizer, 8) == [2, 3, 4, 6, 7]
    assert tokenizer.decode([0, 3, 5, 6, 99]) == "ab" and tokenizer.decode([1, 0]) == " ⁇ a"


def unigram(normalizer, special=(), pieces=()):
    """A tokenizer.json as transformers writes it for a SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=model(**T5))
    own = range(processor.get_piece_size())
    vocabulary = [(processor.id_to_piece(i), processor.get_score(i)) for i in own]
    vocabulary += [(piece, 0.0) for piece in pieces]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=2))
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *special])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.normalizer = normalizer
    return tokenizer.to_str(), processor


def test_a_tokenizer_json_alone_is_like_the_sentencepiece_model(tmp_path):
    content, processor = unigram(tokenizers.normalizers.NFKC(), CODES, ["<2ko>"])
    size = processor.get_piece_size()
    tokenizer = load_t5_tokenizer(write(tmp_path, tokenizer__json=content), size + 9)
    assert tokenizer.languages == {"ko": size} | {c: size + 1 + i for i, c in enumerate(CODES)}
    codes = [*tokenizer.languages.values()]
    # Without white space: NFKC alone does not normalise it as SentencePiece does.
    for line in [*SENTENCES[:6], "ein 犬 und", *spelled()]:
        ids = tokenizer.encode(line)
        assert ids == processor.encode(line), line
        expected = " ".join(processor.decode(ids).split())
        assert " ".join(tokenizer.decode([0, *codes, *ids, 1]).split()) == expected
    assert load_nllb_tokenizer(tmp_path, size + 9).languages == tokenizer.languages
    again = make_tokenizer(tokenizer.kind, tokenizer.serialized())
    assert again.languages == tokenizer.languages
    assert tokenizer.encode(f"{MARK}</s>") == tokenizer.encode("\ufffd</s>")


def test_a_tokenizer_json_without_normaliser_or_languages_is_refused(tmp_path):
    write(tmp_path, tokenizer__json=unigram(None, CODES)[0])
    with pytest.raises(UserError, match="normalizer=null is not supported") as caught:
        load_mbart_tokenizer(tmp_path, 500)
    assert caught.value.code == CHECKPOINT
    write(tmp_path, tokenizer__json=unigram(tokenizers.normalizers.NFKC())[0])
    with pytest.raises(UserError, match="lists no language codes"):
        load_mbart_tokenizer(tmp_path, 500)


@pytest.mark.parametrize(
    "change",
    [
        {"model": None}, {"model": {"type": "BPE"}}, {"added_tokens": None},
        {"added_tokens": [{"special": True, "content": "<s>", "id": "0"}]},
        {"added_tokens": [{"special": True, "content": "<s>", "id": 7, "single_word": False,
                           "lstrip": False, "rstrip": False, "normalized": False}]},
        {"added_tokens": ["<s>"]}, {"decoder": {"type": "Unknown"}},
        {"pre_tokenizer": ["ByteLevel"]},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": "1"}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "c"]]}},
        {"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}, "normalizer": {"type": "NFKC"}},
        {"model": {"type": "WordLevel", "vocab": {"a": 1 << 60}, "unk_token": "a"}},
    ],
)  # fmt: skip
def test_a_damaged_tokenizer_json_is_refused(bart, tmp_path, change):
    document = load_byte_level_tokenizer(bart, 1000).document
    write(tmp_path, tokenizer__json=document | change)
    with pytest.raises(UserError, match="tokenizer.json is malformed") as caught:
        load_json_tokenizer(tmp_path, 1 << 61)
    assert caught.value.code == CHECKPOINT and "\n" not in str(caught.value)


def test_without_the_library_the_message_has_the_command(bart, monkeypatch):
    content = load_byte_level_tokenizer(bart, 1000).serialized()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[tokenizers\]'") as caught:
        JsonTokenizer.load(content)
    assert caught.value.code == CONFIGURATION

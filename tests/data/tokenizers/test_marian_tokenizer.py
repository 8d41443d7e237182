"""The tokenizer of MarianMT directories returns the same ids and texts as that of transformers."""

import json

import numpy as np
import pytest
from tiny_marian import SENTENCES, write_vocabularies

from seq2seq.data.tokenizers.marian_tokenizer import (
    MarianTokenizer,
    with_appended_pad,
    without_appended_pad,
)
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers
from seq2seq.interop.marian_files import load_marian_tokenizers
from seq2seq.runtime.errors import CHECKPOINT, UserError

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

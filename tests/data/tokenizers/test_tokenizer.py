"""Tokenizers: encoding and decoding, training, saving and loading."""

import json
import re
from collections import Counter

import numpy as np
import pytest

from seq2seq.config.data_config import TOKENIZERS, DataConfig
from seq2seq.config.special_tokens import END, LIST_SPECIALS, PAD, START, UNKNOWN, UNKNOWN_TEXT
from seq2seq.data.tokenizers import tokenizer as tokenizer_module
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.tokenizer import encode_truncated
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers, tokenizer_sha256
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError

GERMAN = [
    f"Der {noun} {verb} den {object_noun} ."
    for noun in ("Hund", "Mann", "Ball", "Bär")
    for verb in ("sieht", "sucht", "hört")
    for object_noun in ("Vogel", "Fisch", "König")
]
ENGLISH = [
    f"The {noun} {verb} the {object_noun} ."
    for noun in ("dog", "man", "ball", "bear")
    for verb in ("sees", "seeks", "hears")
    for object_noun in ("bird", "fish", "king")
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    """A joint tokenizer of each kind."""
    return train_tokenizers(DataConfig(tokenizer=request.param, vocab_size=127), GERMAN, ENGLISH)[0]


def refused(code, call, *args):
    with pytest.raises(UserError) as caught:
        call(*args)
    assert caught.value.code == code
    return str(caught.value)


def test_decoding_undoes_encoding(tokenizer):
    for text in GERMAN + ENGLISH:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(UNKNOWN < i < tokenizer.size for i in ids)


def test_encode_many_equals_encode_of_each_text(tokenizer):
    texts = [*GERMAN, "", "Quark!"]
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]


def test_decoding_drops_padding_start_and_end_and_accepts_numpy(tokenizer):
    ids = tokenizer.encode(GERMAN[0])
    framed = np.array([START, *ids, END, PAD, PAD], np.int32)
    assert tokenizer.decode(framed) == GERMAN[0]
    assert tokenizer.decode([]) == ""


def test_unknown_text_decodes_to_unknown_text(tokenizer):
    ids = tokenizer.encode("Der 鯨 .")
    assert UNKNOWN in ids
    assert UNKNOWN_TEXT in tokenizer.decode(ids)


def test_special_tokens_cannot_be_written_in_text(tokenizer):
    assert not {PAD, START, END} & set(tokenizer.encode("<pad> <s> </s> Hund"))


def test_decoded_text_has_no_line_ends(tokenizer):
    lines = [f"{text}\r\n{text}" for text in GERMAN]
    config = DataConfig(tokenizer=tokenizer.kind, vocab_size=127)
    trained, _ = train_tokenizers(config, lines, lines)
    for checked in (tokenizer, trained):
        assert not {"\n", "\r"} & set(checked.decode(checked.encode(lines[0])))
        assert not {"\n", "\r"} & set("".join(checked.decode([i]) for i in range(checked.size)))


def test_the_same_sentences_give_the_same_vocabulary(tokenizer):
    config = DataConfig(tokenizer=tokenizer.kind, vocab_size=127)
    assert tokenizer_sha256(train_tokenizers(config, GERMAN, ENGLISH)[0]) == tokenizer_sha256(
        tokenizer
    )
    assert tokenizer_sha256(train_tokenizers(config, GERMAN, GERMAN)[0]) != tokenizer_sha256(
        tokenizer
    )


def test_vocab_size_is_a_limit(tokenizer):
    assert tokenizer.size <= 127
    config = DataConfig(tokenizer=tokenizer.kind, vocab_size=997)
    large, _ = train_tokenizers(config, GERMAN, ENGLISH)
    assert tokenizer.size <= large.size < 997


def test_words_are_ranked_by_frequency_then_alphabet():
    config = DataConfig(tokenizer="words", vocab_size=4 + 11)
    words = train_tokenizers(config, GERMAN, ENGLISH)[0].serialized().decode().split("\n")[:-1]
    counts = Counter(" ".join(GERMAN + ENGLISH).split(" "))
    assert words == sorted(counts, key=lambda word: (-counts[word], word))[:11]


def test_special_tokens_in_the_text_are_no_words():
    texts = [f"a {' '.join(LIST_SPECIALS)} b"] * 3
    words, _ = train_tokenizers(DataConfig(tokenizer="words"), texts, texts)
    assert words.serialized() == b"a\nb\n"
    assert words.encode(texts[0]) == [4, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 5]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "words"])
def test_a_user_defined_piece_of_the_source_is_one_piece_at_any_place(kind):
    """Even if the training text does not have it, and in text that normalisation would change."""
    pieces = [">>deu<<", ">>kor<<", "<ﬀ>"]
    config = DataConfig(tokenizer=kind, vocab_size=97, joint_vocab=False)
    source, target = train_tokenizers(config, GERMAN, ENGLISH, pieces)
    for piece in pieces:
        for text in (piece, f"{piece} {GERMAN[1]}", f"{GERMAN[1]} {piece} {GERMAN[2]}"):
            assert source.encode(text).count(source.id_of(piece)) == 1
            assert source.decode(source.encode(text)) == text
        assert target.id_of(piece) is None
    joint, _ = train_tokenizers(DataConfig(tokenizer=kind, vocab_size=97), GERMAN, ENGLISH, pieces)
    assert None not in map(joint.id_of, pieces)
    if kind != "words":
        assert (source.user_defined, target.user_defined) == (set(pieces), set())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "words"])
def test_a_tag_at_the_start_is_one_token_and_does_not_change_the_tokens_of_the_text_after_it(kind):
    tags = [">>deu<<", ">>zle_Latn<<"]
    tokenizer, _ = train_tokenizers(
        DataConfig(tokenizer=kind, vocab_size=97), GERMAN, ENGLISH, [*tags, "<x>"]
    )
    boundary = [] if kind == "words" else [tokenizer.id_of("▁")]
    x = tokenizer.id_of("<x>")
    for text in GERMAN:
        usual = tokenizer.encode(text)
        for tag in tags:
            ids = [tokenizer.id_of(tag), *usual]
            assert tokenizer.encode(f"{tag} {text}") == ids
            assert tokenizer.encode_many([text, f"{tag} {text}"]) == [usual, ids]
            assert tokenizer.decode(ids) == f"{tag} {text}"
            assert tokenizer.encode(f"{text} {tag}") == [*usual, *boundary, ids[0]]
        assert tokenizer.encode(f"<x> {text}") == [*boundary, x, *usual]
    if kind != "words":
        pieces = [tokenizer.piece(token) for token in range(4, tokenizer.size)]
        words = [piece[1:] for piece in pieces if piece[0] == "▁" != piece]
        word = next(candidate for candidate in words if len(tokenizer.encode(candidate)) == 1)
        ids = [*tokenizer.encode(word), tokenizer.id_of(tags[0])]
        assert tokenizer.encode(f"{word}{tags[0]}") == ids


def test_characters_are_not_only_letters():
    lines = ["a b\u2028c\0\u0085d", "\u3000e"]
    tokenizer, _ = train_tokenizers(DataConfig(tokenizer="characters"), lines, lines)
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines


def test_a_joint_vocabulary_is_one_object_and_separate_ones_have_one_side():
    source, target = train_tokenizers(DataConfig(tokenizer="words"), GERMAN, ENGLISH)
    assert source is target
    config = DataConfig(
        tokenizer="words", target_tokenizer="characters", joint_vocab=False, target_vocab_size=11
    )
    source, target = train_tokenizers(config, GERMAN, ENGLISH)
    assert (source.kind, target.kind) == ("words", "characters")
    assert target.size == 11
    assert set(source.encode("dog ball")) == {UNKNOWN}


@pytest.mark.parametrize("joint", [True, False])
def test_saved_tokenizers_are_loaded_unchanged(tmp_path, tokenizer, joint):
    config = DataConfig(tokenizer=tokenizer.kind, vocab_size=127, joint_vocab=joint)
    saved = train_tokenizers(config, GERMAN, ENGLISH)
    save_tokenizers(str(tmp_path / "vocab"), *saved)
    loaded = load_tokenizers(str(tmp_path / "vocab"))
    assert (loaded[0] is loaded[1]) == joint
    for original, restored, text in zip(saved, loaded, (GERMAN[1], ENGLISH[1]), strict=True):
        assert (original.kind, original.size) == (restored.kind, restored.size)
        assert tokenizer_sha256(original) == tokenizer_sha256(restored)
        assert original.encode(text) == restored.encode(text)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_missing_or_damaged_vocabulary_is_refused_by_name(tmp_path, tokenizer):
    directory = str(tmp_path)
    assert "tokenizers.json" in refused(CHECKPOINT, load_tokenizers, directory)
    save_tokenizers(directory, tokenizer, tokenizer)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        for damaged in (b"", content[:-7], bytes([content[0] ^ 1]) + content[1:]):
            path.write_bytes(damaged)
            assert directory in refused(CHECKPOINT, load_tokenizers, directory)
        path.unlink()
        assert path.name in refused(CHECKPOINT, load_tokenizers, directory)
        path.write_bytes(content)
    load_tokenizers(directory)


def test_a_description_cannot_refer_to_another_directory(tmp_path, tokenizer):
    save_tokenizers(str(tmp_path), tokenizer, tokenizer)
    path = tmp_path / "tokenizers.json"
    content = json.loads(path.read_text())
    for value in ("../../etc/passwd", None, 7, [], {}):
        content["joint"]["kind"] = value
        path.write_text(json.dumps(content))
        refused(CHECKPOINT, load_tokenizers, str(tmp_path))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_size_it_needs(kind):
    config = DataConfig(tokenizer=kind, vocab_size=11)
    message = refused(CONFIGURATION, train_tokenizers, config, GERMAN, ENGLISH)
    assert "config.data.vocab_size must be at least" in message
    needed = int(message.split("at least ")[1].split()[0])
    config.vocab_size = needed
    assert train_tokenizers(config, GERMAN, ENGLISH)[0].size == needed


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_sentences_in_which_nothing_is_visible_are_refused(kind):
    """Or of which SentencePiece leaves nothing: its space ▁, and lines with ▅."""
    cases = {"": "no characters", " ": "U\\+0020", "\0": "U\\+0000", "\x01": "U\\+0001"}
    cases |= {"\u200b": "U\\+200B", "\ufeff": "U\\+FEFF", "\u00ad": "U\\+00AD"}
    if kind in ("unigram", "bpe"):
        cases |= dict.fromkeys("▁▅", "other characters than ▁")
    for character, got in cases.items():
        sentences = [character, f"{character} {character * 3}"[: 5 * len(character)]]
        config = DataConfig(tokenizer=kind, normalization="nmt_nfkc")
        message = refused(DATA, train_tokenizers, config, sentences, sentences)
        assert re.search(f"no vocabulary of {kind} can be trained: .*{got}", message)
        assert "INTERNAL" not in message


def test_texts_are_truncated_in_groups_so_that_few_long_ones_are_encoded_together(monkeypatch):
    letters, groups = ListTokenizer("characters", b"a\nb\n"), []
    texts = ["a" * length for length in (3, 0, 4, 2, 25, 1, 9, 9, 2)]

    def recorded(group):
        groups.append(sum(map(len, group)))
        return [letters.encode(text) for text in group]

    monkeypatch.setattr(tokenizer_module, "TOGETHER", 10)
    monkeypatch.setattr(letters, "encode_many", recorded)
    encoded = list(encode_truncated(letters, texts, 4))
    assert encoded == [([4] * min(len(text), 4), max(0, len(text) - 4)) for text in texts]
    assert sum(groups) == 55 and all(total < 10 + 25 for total in groups) and len(groups) > 3
    assert list(encode_truncated(letters, [], 4)) == []

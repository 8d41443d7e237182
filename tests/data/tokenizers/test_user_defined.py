"""User-defined pieces and byte fallback, with properties of SentencePiece and of texts."""

import random
import re
from itertools import product

import pytest
from sentencepiece import SentencePieceProcessor

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import UNKNOWN
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.runtime.errors import CONFIGURATION, UserError

TAGS = [">>deu<<", "[num]", ',"x;y"']  # no two can share a character of a text
WORDS = "[1] und >> << nummer deutsch num >>x d>> eins, zwei; deu".split()
SUBWORDS = ["unigram", "bpe"]
CHARACTERS = "abcdeäß鯨안녕😀👍🏽\u200dאश्\U0010ffff\u0301"  # most are not in the corpus


def sentences(words, count=200, seed=0):
    choose = random.Random(seed)
    return [" ".join(choose.choices(words, k=5)) for _ in range(count)]


def trained(kind, texts, **fields):
    return train_tokenizers(DataConfig(tokenizer=kind, **fields), texts, texts)[0]


def pieces_of(tokenizer, text):
    return [tokenizer.piece(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize("kind", [*SUBWORDS, "characters"])
def test_a_user_defined_piece_is_one_piece_anywhere_in_a_text(kind, tmp_path):
    tokenizer = trained(kind, sentences(WORDS), vocab_size=90, user_defined=" ".join(TAGS))
    assert [tokenizer.id_of(tag) for tag in TAGS] == [4, 5, 6]  # after the special ones
    save_tokenizers(str(tmp_path), tokenizer, tokenizer)
    loaded, _ = load_tokenizers(str(tmp_path))
    choose = random.Random(1)
    for _ in range(300):
        text = "".join(choose.choices([*TAGS, *WORDS, " "], k=6)).strip()
        text = re.sub(" +", " ", text)
        expected = re.findall("|".join(map(re.escape, TAGS)), text)
        assert [p for p in pieces_of(tokenizer, text) if p in TAGS] == expected, text
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert loaded.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", [*SUBWORDS, "characters"])
def test_pieces_of_the_corpus_that_overlap_do_not_split_a_user_defined_piece(kind):
    corpus = sentences("bc bbdab cdbb cc dc ad caac".split())
    tokenizer = trained(kind, corpus, vocab_size=40, user_defined="cb")
    for text in map("".join, product("abcd", repeat=4)):
        assert pieces_of(tokenizer, text).count("cb") == text.count("cb"), text


def test_a_longer_user_defined_piece_comes_before_its_beginning():
    for pieces in ("<a> <a>b", "<a>b <a>"):
        tokenizer = trained("characters", ["abc"], vocab_size=40, user_defined=pieces)
        assert pieces_of(tokenizer, "c<a>b<a>a") == ["c", "<a>b", "<a>", "a"]


def test_a_vocabulary_of_words_has_user_defined_pieces_that_are_not_in_the_corpus():
    texts = [*sentences(WORDS), "und und und " * 99]
    tokenizer = trained("words", texts, vocab_size=4 + 3 + 2, user_defined="<num> a und")
    assert pieces_of(tokenizer, "<num> a und b") == ["<num>", "a", "und", "<unk>"]
    assert len({tokenizer.piece(i) for i in range(tokenizer.size)}) == tokenizer.size == 9
    assert tokenizer.decode(tokenizer.encode("und <num>")) == "und <num>"


@pytest.mark.parametrize("kind", [*SUBWORDS, "words", "characters"])
def test_pieces_of_the_config_are_in_both_vocabularies_those_of_the_call_in_the_source(kind):
    """One that is named twice is there once."""
    fields = dict(joint_vocab=False, user_defined="<num> <num>", tokenizer=kind)
    config = DataConfig(vocab_size=90, **fields)
    tags = [">>x<<", "<num>"]
    source, target = train_tokenizers(config, sentences(WORDS), sentences("abc"), tags)
    assert [source.id_of("<num>"), source.id_of(">>x<<")] == [4, 5]
    assert [target.id_of("<num>"), target.id_of(">>x<<")] == [4, None]
    for tokenizer in (source, target):
        assert len({tokenizer.piece(i) for i in range(tokenizer.size)}) == tokenizer.size
    config.joint_vocab = True
    joint, _ = train_tokenizers(config, sentences(WORDS), sentences("abc"), tags)
    assert [joint.id_of("<num>"), joint.id_of(">>x<<")] == [4, 5]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_byte_fallback_encodes_characters_that_were_not_in_the_corpus(kind):
    texts, choose = sentences(WORDS), random.Random(3)
    plain = trained(kind, texts, vocab_size=90)
    bytes_ = trained(kind, texts, vocab_size=90 + 256, byte_fallback=True)
    assert bytes_.size > 256 + 4
    processor = SentencePieceProcessor(model_proto=plain.serialized())
    for _ in range(100):
        text = "".join(choose.choices(CHARACTERS, k=8))
        normalised = processor.normalize(text).replace("▁", " ").strip()
        assert bytes_.decode(bytes_.encode(text)) == normalised
        assert UNKNOWN not in bytes_.encode(text)
        assert (UNKNOWN in plain.encode(text)) == any(
            plain.id_of(character) is None for character in normalised
        )


@pytest.mark.parametrize("kind", SUBWORDS)
def test_bytes_and_user_defined_pieces_count_towards_the_size(kind):
    config = DataConfig(
        tokenizer=kind, vocab_size=100, byte_fallback=True, user_defined=" ".join(TAGS)
    )
    with pytest.raises(UserError, match="3 user-defined pieces, 256 bytes, got 100") as refused:
        train_tokenizers(config, sentences(WORDS), [])
    assert refused.value.code == CONFIGURATION
    config.vocab_size = int(re.search(r"at least (\d+)", str(refused.value))[1])
    assert train_tokenizers(config, sentences(WORDS), [])[0].size <= config.vocab_size


def test_a_vocabulary_of_words_without_room_for_words_is_refused():
    with pytest.raises(
        UserError, match="vocab_size must be at least 7 for 2 user-defined"
    ) as refused:
        trained("words", ["a b c"], vocab_size=6, user_defined="x y")
    assert refused.value.code == CONFIGURATION
    assert trained("words", ["a b b"], vocab_size=7, user_defined="x y").size == 7


@pytest.mark.parametrize(
    "piece", ["<s>", "</s>", "<pad>", "<unk>", "<0x0A>", "a▁b", "▁", "a\u3000"]
)
def test_a_piece_that_cannot_be_user_defined_is_refused(piece):
    with pytest.raises(UserError, match="data.user_defined must be pieces") as refused:
        Config(data=DataConfig(user_defined=f"<num> {piece}".replace("\u3000", "▁"))).validate()
    assert refused.value.code == CONFIGURATION
    Config(data=DataConfig(user_defined="<num> <0x> s>")).validate()


def test_byte_fallback_without_subwords_is_refused():
    for fields in ({"tokenizer": "words"}, {"target_tokenizer": "words", "joint_vocab": False}):
        config = Config(data=DataConfig(byte_fallback=True, **fields))
        config.model.tied_embeddings = "two-way"
        with pytest.raises(UserError, match="data.byte_fallback must be false") as refused:
            config.validate()
        assert refused.value.code == CONFIGURATION

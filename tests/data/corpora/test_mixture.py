"""Mixtures of corpora: their parts have weights and tags, and pairs keep their file and line."""

import os

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import (
    check_corpus,
    corpus_tags,
    mixture,
    read_corpus,
    split_spec,
)
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.encoding import encode_pairs
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


@pytest.fixture
def files(tmp_path):
    """Two files of 5 and 7 pairs; the second also has a blank line and one that is too long."""
    first, second = tmp_path / "one.tsv", tmp_path / "other.tsv"
    first.write_text("".join(f"a{i}\tA{i}\n" for i in range(5)))
    lines = [f"b{i}\tB{i}\n" for i in range(7)]
    second.write_text("".join(["\t\n", *lines[:3], "b b b b b\tB\n", *lines[3:]]))
    return first, second


def test_the_corpora_of_a_mixture_keep_their_lines_and_weights(files):
    first, second = files
    config = DataConfig(
        corpus=f"2*tsv:{first} +0.5 * tsv:{second}",
        tokenizer="characters",
        source_length=7,
        target_length=7,
    )
    corpus = read_corpus(config.corpus, "train", config)
    assert corpus.source == [f"a{i}" for i in range(5)] + [
        "b0",
        "b1",
        "b2",
        "b b b b b",
        "b3",
        "b4",
        "b5",
        "b6",
    ]
    assert [corpus.where(i) for i in (0, 4, 5, 12)] == [
        f"{first}:1",
        f"{first}:5",
        f"{second}:2",
        f"{second}:9",
    ]
    assert corpus.counts.dropped == {"blank": 1}
    assert corpus.fingerprints.keys() == {str(first), str(second)}
    assert corpus.names == [str(first), str(second)]
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, _, dropped = encode_pairs(corpus, *tokenizers, config)
    assert dropped == {"source longer than 6 tokens": [8]}
    assert len(pairs.source.lengths) == 12
    assert [(origin.num_pairs, origin.weight) for origin in corpus.origins] == [(5, 2.0), (8, 0.5)]


def test_a_single_corpus_has_its_weight(files):
    corpus = read_corpus(f"3*tsv:{files[0]}", "train", DataConfig())
    assert [origin.weight for origin in corpus.origins] == [3.0] and len(corpus.source) == 5


def test_a_mixture_is_parsed_and_a_malformed_one_is_refused(files):
    parts = mixture("2*tsv:a.tsv + text:b*c,d+0.25*tfds:x/y:train")
    assert [(part.weight, part.spec) for part in parts] == [
        (2.0, "tsv:a.tsv"),
        (1.0, "text:b*c,d"),
        (0.25, "tfds:x/y:train"),
    ]
    assert [part.spec for part in mixture("text:My + Data/a,C++/b")] == ["text:My + Data/a,C++/b"]
    for wrong in ("0*tsv:a", "x*tsv:a", "-1*tsv:a", "1e9*tsv:a", "nan*tsv:a", "*tsv:a"):
        with pytest.raises(UserError, match="weight must be a number above 0") as caught:
            mixture(wrong)
        assert caught.value.code == CONFIGURATION
    for wrong in ("", "2*", "foo:b", "2*foo:b"):
        with pytest.raises(UserError, match="a corpus must be one of"):
            mixture(wrong)
    first, second = files
    with pytest.raises(UserError, match="training data only"):
        check_corpus(f"tsv:{first} + 2*tsv:{second}", "valid", DataConfig())
    check_corpus(f"tsv:{first} + tsv:{second}", "valid", DataConfig())
    with pytest.raises(UserError, match="does not exist") as caught:
        check_corpus(f"tsv:{first} + tsv:{first}x", "train", DataConfig())
    assert caught.value.code == DATA


@pytest.mark.parametrize("name", ["$NO_SUCH", "${NO_SUCH}"])
def test_a_path_with_a_variable_that_is_not_set_names_the_variable(name, files, monkeypatch):
    folder, file = os.path.split(files[0])
    spec = f"tsv:{name}/{file}"
    with pytest.raises(UserError, match="environment variable NO_SUCH is not set; ") as caught:
        check_corpus(spec, "train", DataConfig())
    assert caught.value.code == DATA
    monkeypatch.setenv("NO_SUCH", folder)
    check_corpus(spec, "train", DataConfig())


def test_a_mixture_has_the_held_out_splits_of_its_corpora(files):
    config = DataConfig(corpus=f"0.5*builtin:korean_english + tsv:{files[0]}")
    assert split_spec(config, "valid") == split_spec(config, "test") == "builtin:korean_english"
    assert split_spec(config, "train") == config.corpus
    assert split_spec(DataConfig(corpus=f"tsv:{files[0]}"), "valid") == ""


def test_the_parts_of_a_mixture_have_weights_and_tags():
    spec = "2*tag:>>deu<<:text:a,b + tag:>>kor<<:tsv:c:d +0.5* tag:*:tfds:x/y:train+tsv:tag"
    assert [
        (part.weight, part.tag, part.corpus.name, part.corpus.rest) for part in mixture(spec)
    ] == [
        (2.0, ">>deu<<", "text", "a,b"),
        (1.0, ">>kor<<", "tsv", "c:d"),
        (0.5, "*", "tfds", "x/y:train"),
        (1.0, "", "tsv", "tag"),
    ]
    specs = ["tag:>>deu<<:text:a,b", "tag:>>kor<<:tsv:c:d", "tag:*:tfds:x/y:train", "tsv:tag"]
    assert [part.spec for part in mixture(spec)] == specs
    assert corpus_tags(f"{spec} + tag:>>deu<<:tsv:e") == (">>deu<<", ">>kor<<", "*")
    assert corpus_tags("tsv:a") == corpus_tags("") == ()


@pytest.mark.parametrize(
    "tag", ["", " ", "to German", "\u3000", "▁de", "<s>", "<pad>", "</s>", "<unk>", "<0x41>"]
)
def test_a_tag_with_a_space_or_of_a_special_token_is_refused(tag):
    with pytest.raises(UserError, match="tag must be text without ▁ or spaces") as caught:
        mixture(f"tsv:a + tag:{tag}:tsv:b")
    assert caught.value.code == CONFIGURATION and repr(f"tag:{tag}:tsv:b") in str(caught.value)


@pytest.mark.parametrize(
    "spec", ["tag:>>deu<<", "tag:>>deu<<:", "tag:>>deu<<:csv:a", "tag:a:tag:b"]
)
def test_a_tag_without_a_corpus_is_refused(spec):
    with pytest.raises(UserError, match="a corpus must be one of") as caught:
        mixture(spec)
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("reverse", [False, True])
def test_each_source_begins_with_the_tag_of_its_part_even_if_reversed(files, reverse, split):
    first, second = files
    spec = f"tag:>>x<<:tsv:{first} + tsv:{second} + tag:>>y<<:tsv:{first}"
    tagged = read_corpus(spec, split, DataConfig(reverse=reverse))
    plain = read_corpus(
        spec.replace("tag:>>x<<:", "").replace("tag:>>y<<:", ""), split, DataConfig()
    )
    sides = plain.target, plain.source
    sources, targets = sides if reverse else sides[::-1]
    tags = [">>x<< "] * 5 + [""] * 8 + [">>y<< "] * 5
    assert tagged.source == [tag + text for tag, text in zip(tags, sources, strict=True)]
    assert tagged.target == targets
    assert [tagged.where(i) for i in range(18)] == [plain.where(i) for i in range(18)]
    assert tagged.fingerprints == plain.fingerprints


def test_held_out_splits_keep_the_tag_of_their_part():
    config = DataConfig(corpus="2*tag:>>eng<<:builtin:korean_english + tag:>>deu<<:tsv:a")
    assert split_spec(config, "valid") == "tag:>>eng<<:builtin:korean_english"

"""Mixtures of corpora: pairs are taken according to their weight and keep their file and line."""

import os
from collections import Counter
from itertools import pairwise

import pytest

from data.config import DataConfig
from data.corpora import check_corpus, corpus_tags, mixture, read_corpus, split_spec
from data.pairs import Pairs, encode_pairs, pairs_of_epoch, ragged, taken_pairs
from data.vocabulary import train_tokenizers
from runtime.errors import CONFIGURATION, DATA, UserError

SEED = 3


@pytest.fixture
def files(tmp_path):
    """Two files of 5 and 7 pairs; the second also has a blank line and one that is too long."""
    one, other = tmp_path / "one.tsv", tmp_path / "other.tsv"
    one.write_text("".join(f"a{i}\tA{i}\n" for i in range(5)))
    lines = [f"b{i}\tB{i}\n" for i in range(7)]
    other.write_text("".join(["\t\n", *lines[:3], "b b b b b\tB\n", *lines[3:]]))
    return one, other


def test_an_integer_weight_is_the_number_of_times_an_epoch_takes_each_pair():
    for epoch in range(4):
        counts = Counter(taken_pairs(((5, 2.0), (7, 1.0)), SEED, epoch).tolist())
        assert counts == {**dict.fromkeys(range(5), 2), **dict.fromkeys(range(5, 12), 1)}


def test_no_pair_is_taken_again_before_all_others():
    for count, weight in ((7, 0.5), (11, 0.3), (5, 2.4), (13, 1 / 3)):
        seen = Counter(range(count))
        for epoch in range(17):
            taken = taken_pairs(((count, weight),), SEED, epoch)
            assert abs(len(taken) - count * weight) < 1
            seen.update(taken.tolist())
            assert max(seen.values()) - min(seen.values()) <= 1
        assert abs(sum(seen.values()) - count - 17 * count * weight) < 1


def test_the_taken_pairs_depend_on_seed_and_epoch_only():
    weights = ((101, 0.5), (53, 1.5))
    taken = taken_pairs(weights, SEED, 1).tolist()
    assert taken == taken_pairs(weights, SEED, 1).tolist() == sorted(taken)
    assert taken != taken_pairs(weights, SEED, 2).tolist()
    assert taken != taken_pairs(weights, SEED + 1, 1).tolist()


def test_each_pass_and_each_corpus_has_its_own_order():
    halves = [taken_pairs(((97, 0.5), (97, 0.5)), SEED, epoch) for epoch in (0, 2)]
    taken = [set((half[half // 97 == i] % 97).tolist()) for half in halves for i in (0, 1)]
    assert all(one != other for i, one in enumerate(taken) for other in taken[:i])


def test_pairs_of_epoch_selects_the_taken_pairs():
    sides = [[[10 * side + i] * (i + 1) for i in range(12)] for side in (1, 2)]
    pairs = Pairs(ragged(sides[0]), ragged(sides[1]), ((5, 0.5), (7, 3.0)))
    for epoch in range(3):
        taken, found = taken_pairs(pairs.weights, SEED, epoch), pairs_of_epoch(pairs, SEED, epoch)
        for side, expected in zip(found[:2], sides, strict=True):
            assert [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)] == [
                expected[i] for i in taken
            ]
    once = pairs._replace(weights=((5, 1.0), (7, 1.0)))
    assert pairs_of_epoch(once, SEED, 1) is once


def test_the_corpora_of_a_mixture_keep_their_lines_and_weights(files):
    one, other = files
    config = DataConfig(
        corpus=f"2*tsv:{one} +0.5 * tsv:{other}",
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
        f"{one}:1",
        f"{one}:5",
        f"{other}:2",
        f"{other}:9",
    ]
    assert corpus.dropped == {"blank": 1}
    assert corpus.fingerprints.keys() == {str(one), str(other)}
    assert corpus.names == [str(one), str(other)]
    tokenizers = train_tokenizers(config, corpus.source, corpus.target)
    pairs, _, dropped = encode_pairs(corpus, *tokenizers, config)
    assert dropped == {"source longer than 6 tokens": [8]}
    assert pairs.weights == ((5, 2.0), (7, 0.5))


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
    one, other = files
    with pytest.raises(UserError, match="training data only"):
        check_corpus(f"tsv:{one} + 2*tsv:{other}", "valid", DataConfig())
    check_corpus(f"tsv:{one} + tsv:{other}", "valid", DataConfig())
    with pytest.raises(UserError, match="does not exist") as caught:
        check_corpus(f"tsv:{one} + tsv:{one}x", "train", DataConfig())
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


def encode(spec, **options):
    config = DataConfig(corpus=spec, tokenizer="characters", **options)
    corpus = read_corpus(config.corpus, "train", config)
    return encode_pairs(corpus, *train_tokenizers(config, corpus.source, corpus.target), config)


def test_a_corpus_of_which_an_epoch_takes_no_pair_is_refused(files):
    one, other = files
    with pytest.raises(UserError, match="0.1 takes none of 5 pairs") as caught:
        encode(f"0.1*tsv:{one} + tsv:{other}")
    assert caught.value.code == CONFIGURATION
    one.write_text("a long line	A\n" * 3)
    with pytest.raises(UserError, match=f"{one}: none of 3 pairs left") as caught:
        encode(f"tsv:{one} + tsv:{other}", source_length=7)
    assert caught.value.code == DATA


def test_a_mixture_has_the_held_out_splits_of_its_corpora(files):
    config = DataConfig(corpus=f"0.5*builtin:korean_english + tsv:{files[0]}")
    assert split_spec(config, "valid") == split_spec(config, "test") == "builtin:korean_english"
    assert split_spec(config, "train") == config.corpus
    assert split_spec(DataConfig(corpus=f"tsv:{files[0]}"), "valid") == ""


def test_the_parts_of_a_mixture_have_weights_and_tags():
    spec = "2*tag:>>deu<<:text:a,b + tag:>>kor<<:tsv:c:d +0.5* tag:*:tfds:x/y:train+tsv:tag"
    assert [(part.weight, part.tag, part.kind.name, part.rest) for part in mixture(spec)] == [
        (2.0, ">>deu<<", "text", "a,b"),
        (1.0, ">>kor<<", "tsv", "c:d"),
        (0.5, "*", "tfds", "x/y:train"),
        (1.0, "", "tsv", "tag"),
    ]
    specs = ["tag:>>deu<<:text:a,b", "tag:>>kor<<:tsv:c:d", "tag:*:tfds:x/y:train", "tsv:tag"]
    assert [part.spec for part in mixture(spec)] == specs
    assert corpus_tags(f"{spec} + tag:>>deu<<:tsv:e") == (">>deu<<", ">>kor<<", "*")
    assert corpus_tags("tsv:a") == corpus_tags("") == ()


@pytest.mark.parametrize("tag", ["", " ", "to German", "\u3000", "<s>", "<pad>", "</s>", "<unk>"])
def test_a_tag_with_a_space_or_of_a_special_token_is_refused(tag):
    with pytest.raises(UserError, match="tag must be text without spaces") as caught:
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
    one, other = files
    spec = f"tag:>>x<<:tsv:{one} + tsv:{other} + tag:>>y<<:tsv:{one}"
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

"""Corpora in memory: duplicates are dropped by option, within a part of a mixture."""

import random

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import read_corpus

# Lines 2 and 5 repeat line 1; 6 repeats 4; line 3 has the target of line 1; 7 swaps the sides of 1.
LINES = ["a\tx", "a\tx", "b\tx", "a\ty", "a\tx", "a\ty", "x\ta", "ax\t ", "b\tx"]
KEPT = [1, 3, 4, 7]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def pairs_of(corpus):
    return list(zip(corpus.source, corpus.target, strict=True))


def test_the_first_of_identical_pairs_is_kept_in_its_order_and_the_others_are_counted(path):
    corpus = read_corpus(f"tsv:{path}", "train", DataConfig(deduplicate=True))
    assert pairs_of(corpus) == [tuple(LINES[number - 1].split("\t")) for number in KEPT]
    assert [corpus.where(i) for i in range(4)] == [f"{path}:{number}" for number in KEPT]
    assert corpus.counts.dropped == {"blank": 1, "duplicate": 4}
    places = [f"{path}:{number}" for number in (2, 5, 6, 9)]
    assert corpus.counts.examples == {"blank": [f"{path}:8"], "duplicate": places}
    assert [origin.num_pairs for origin in corpus.origins] == [4]


def test_all_pairs_are_kept_by_default_and_in_held_out_data(path):
    for split, deduplicate in (("train", False), ("valid", True), ("test", True)):
        corpus = read_corpus(f"tsv:{path}", split, DataConfig(deduplicate=deduplicate))
        assert len(corpus.source) == len(LINES) - 1 and "duplicate" not in corpus.counts.dropped


def test_a_corpus_without_duplicates_is_unchanged(path):
    path.write_text("a\tx\nb\tx\n")
    spec = f"tsv:{path}"
    assert read_corpus(spec, "train", DataConfig(deduplicate=True)) == read_corpus(
        spec, "train", DataConfig()
    )


def test_pairs_of_different_parts_of_a_mixture_are_not_compared(path):
    spec = f"tsv:{path} + 2*tag:>>z<<:tsv:{path}"
    corpus = read_corpus(spec, "train", DataConfig(deduplicate=True))
    assert [(origin.num_pairs, origin.weight) for origin in corpus.origins] == [(4, 1.0), (4, 2.0)]
    assert corpus.source[4:] == [f">>z<< {text}" for text in corpus.source[:4]]
    assert corpus.counts.dropped == {"blank": 2, "duplicate": 8}
    assert len(corpus.counts.examples["duplicate"]) == 5


@pytest.mark.parametrize("reverse", [False, True])
def test_random_pairs_are_those_of_a_dictionary(tmp_path, reverse):
    """A dict keeps the order of the first insertions."""
    choose = random.Random(1)
    pairs = [
        (choose.choice("abcd") * choose.randint(1, 3), choose.choice("xyz")) for _ in range(97)
    ]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    corpus = read_corpus(f"tsv:{path}", "train", DataConfig(deduplicate=True, reverse=reverse))
    expected = list(dict.fromkeys(pair[::-1] if reverse else pair for pair in pairs))
    assert pairs_of(corpus) == expected
    assert corpus.counts.dropped == {"duplicate": 97 - len(expected)}
    assert len(corpus.counts.examples["duplicate"]) == 5

"""Identical pairs are found in blocks of any size, as a dictionary finds them."""

import random

import pytest

from seq2seq.data.corpora.duplicates import DuplicateFilter


@pytest.mark.parametrize("seed", range(10))
def test_first_occurrences_are_those_of_a_set(seed):
    choose = random.Random(seed)
    seen, duplicates = set(), DuplicateFilter()
    for _ in range(choose.randint(1, 30)):
        count = choose.choice([0, 1, 3, 40])
        source = [choose.choice("ab") * choose.randint(0, 40) for _ in range(count)]
        target = [choose.choice("ab") * choose.randint(0, 3) for _ in range(count)]
        expected = []
        for pair in zip(source, target, strict=True):
            expected.append(pair not in seen)
            seen.add(pair)
        assert duplicates.first_occurrences(source, target).tolist() == expected


def test_the_sides_of_a_pair_are_told_apart():
    source, target = ["a", "ab", "", "abc", "a\0", "a"], ["bc", "c", "abc", "", "b", "\0b"]
    assert DuplicateFilter().first_occurrences(source, target).all()


def test_a_filter_has_eight_bytes_per_distinct_pair_in_few_runs():
    duplicates = DuplicateFilter()
    for block in range(64):
        texts = [f"{block} {i // 2}" for i in range(200)]  # each twice
        duplicates.first_occurrences(texts, texts)
    assert sum(run.nbytes for run in duplicates._runs) == 8 * 64 * 100
    assert len(duplicates._runs) <= 7  # log2(64) + 1

"""Counts of blocks are merged to those of the corpus."""

import json
import random

import pytest

from seq2seq.data.corpora.counts import EXAMPLES, Counts, Invalid, Problem
from seq2seq.runtime.errors import DATA, UserError

ODD = Problem("odd", "an even number", "correct it")
BIG = Problem("big", "at most 9", "correct that")


def counts_of(numbers):
    """Counts of some numbers one by one: 0 is dropped, 7 is replaced, 11 and 13 are invalid."""
    total = Counts()
    for place, number in numbers:
        counts = Counts(kept=1, loss_weights=(number, number))
        if number == 0:
            counts = Counts(dropped={"zero": 1}, examples={"zero": [place]})
        elif number == 7:
            counts = Counts(kept=1, examples={"seven": [place]}, replaced=1)
        elif number in (11, 13):
            problem = ODD if number == 11 else BIG
            counts = Counts(invalid=(Invalid(problem, 1, [f"{number} at {place}"]),))
        total = total.merged(counts)
    return total


@pytest.mark.parametrize("seed", range(10))
def test_merged_counts_are_those_of_all_pairs(seed):
    choose = random.Random(seed)
    numbers = [(f"f:{i}", choose.choice([0, 1, 2, 7, 11, 13])) for i in range(50)]
    merged = Counts()
    for start in range(0, 50, 1 + seed):
        merged = merged.merged(counts_of(numbers[start : start + 1 + seed]))
    values = [number for _, number in numbers]
    assert merged.kept == sum(number in (1, 2, 7) for number in values)
    assert merged.dropped == {"zero": values.count(0)}
    assert merged.replaced == values.count(7)
    weights = [number for number in values if number in (1, 2)]
    assert merged.loss_weights == (min(weights), max(weights))
    for reason, number in (("zero", 0), ("seven", 7)):
        places = [place for place, value in numbers if value == number]
        assert merged.examples[reason] == places[:EXAMPLES]
    order = [number for number in dict.fromkeys(values) if number in (11, 13)]
    assert [invalid.problem for invalid in merged.invalid] == [
        ODD if n == 11 else BIG for n in order
    ]
    for invalid, number in zip(merged.invalid, order, strict=True):
        got = [f"{number} at {place}" for place, value in numbers if value == number]
        assert (invalid.num_lines, invalid.got) == (len(got), got[:EXAMPLES])


def test_counts_are_the_same_after_json():
    counts = counts_of([("f:1", 0), ("f:2", 7), ("f:3", 1)])
    assert Counts.from_json(json.loads(json.dumps(counts.to_json()))) == counts


def test_the_check_names_the_corpus():
    for counts, message in (
        (Counts(), "a, b: no usable pairs: the corpus is empty"),
        (Counts(dropped={"x": 2, "y": 3}), "a, b: 0 of 5 pairs left: 2 x, 3 y"),
        (Counts(kept=2, loss_weights=(0.0, 0.0)), "a, b: all loss weights are 0"),
        (counts_of([("f:1", 11), ("f:2", 13)]), "1 invalid line: expected an even number, got 11 "
         "at f:1; correct it; 1 invalid line: expected at most 9, got 13 at f:2; correct that"),
    ):  # fmt: skip
        with pytest.raises(UserError) as caught:
            counts.check(["a", "b", "a"])
        assert caught.value.code == DATA and str(caught.value).startswith(message)
    Counts(kept=1, loss_weights=(0.0, 1.0)).check(["a"])

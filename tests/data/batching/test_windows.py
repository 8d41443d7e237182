"""Windows contain the slots of an epoch once, fit into rows, and depend on their slots only."""

import numpy as np
import pytest

from seq2seq.data.batching.order import EpochOrder
from seq2seq.data.batching.windows import Windows, num_windows, row_lengths_in_order, window_slots
from seq2seq.data.tokens.training_pairs import Part
from tests.support.memory_pairs import MemoryPairs

CAPACITIES = 32, 40


class Lengths(MemoryPairs):
    """Pairs of random lengths of up to a row, without tokens; records what is looked up."""

    def __init__(self, *parts, seed=0):
        random, count = np.random.default_rng(seed), sum(part.num_pairs for part in parts)
        self.parts, self.events = parts, []
        self.sides = [np.minimum(random.geometric(0.12, count) + 1, most) for most in CAPACITIES]

    def row_lengths(self, index):
        self.events.append(index.tolist())
        return tuple(side[index] for side in self.sides)

    def release(self):
        self.events.append("release")


@pytest.mark.parametrize("size", [1, 7, 10])
@pytest.mark.parametrize("slots", [1, 4, 5, 6, 10, 14, 15, 16, 97])
def test_windows_have_every_slot_once_and_about_equal_sizes(slots, size):
    windows = [window_slots(slots, n, size) for n in range(num_windows(slots, size))]
    assert np.concatenate(windows).tolist() == list(range(slots))
    assert all(len(window) == size for window in windows[:-1])
    assert len(windows) == 1 or size / 2 <= len(windows[-1]) < 1.5 * size


def rows_of(plan):
    return [plan.pairs[i:j] for i, j in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


def test_an_epoch_has_each_pair_by_weight_and_rows_that_fit():
    lengths = Lengths(Part(700, 2.0), Part(900))
    windows = Windows(lengths, CAPACITIES, 1, 500)
    assert (windows.num_pairs(2), windows.count(2)) == (2300, 5)
    planned = [windows.plan(2, n) for n in range(5)]
    rows = [row for window in planned for row in rows_of(window.plan)]
    counts = np.bincount(np.concatenate(rows), minlength=1600)
    assert counts.tolist() == [2] * 700 + [1] * 900
    for row in rows:
        assert all(
            0 < side[row].sum() <= capacity
            for side, capacity in zip(lengths.sides, CAPACITIES, strict=True)
        )
    for window in planned:
        assert window.num_pairs == len(window.plan.pairs)
        assert window.tokens == sum(side[window.plan.pairs].sum() for side in lengths.sides)


def test_a_window_asks_only_for_its_own_pairs():
    """In ascending order, with a release after each of at most 64 parts."""
    lengths = Lengths(Part(2000))
    windows = Windows(lengths, CAPACITIES, 1, 500)
    plan = windows.plan(3, 2).plan
    asked, released = lengths.events[::2], lengths.events[1::2]
    assert set(released) == {"release"} and len(released) == len(asked) == 64
    assert [pair for part in asked for pair in part] == sorted(plan.pairs.tolist())
    slots = window_slots(2000, 2, 500)
    assert sorted(plan.pairs.tolist()) == sorted(EpochOrder((Part(2000),), 1, 3)(slots).tolist())


def test_a_plan_depends_on_seed_epoch_and_window():
    def pairs_of(seed, epoch, window):
        return Windows(Lengths(Part(1000)), CAPACITIES, seed, 500).plan(epoch, window).plan.pairs

    plans = [pairs_of(*place).tolist() for place in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))]
    assert pairs_of(1, 0, 0).tolist() == plans[0]
    assert len(set(map(tuple, plans))) == 4


@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_lengths_are_those_of_the_pairs_in_their_order(count):
    lengths = Lengths(Part(100))
    index = np.random.default_rng(count).integers(0, 100, count)
    for row_lengths, side in zip(row_lengths_in_order(lengths, index), lengths.sides, strict=True):
        np.testing.assert_array_equal(row_lengths, side[index])


def test_a_pair_that_is_longer_than_a_row_is_refused():
    windows = Windows(Lengths(Part(50)), (32, 3), 1, 500)
    with pytest.raises(ValueError, match="tokens: expected at most 3"):
        windows.plan(0, 0)


@pytest.mark.parametrize("size", [1 << 12, 1 << 14])
def test_rows_have_at_most_five_percent_padding(size):
    """On both sides together, with lengths as in translation, in each window."""
    random = np.random.default_rng(0)
    source = random.gamma(3, 5, 20_000).astype(int) + 2
    target = np.maximum(2, source + random.integers(-2, 3, 20_000))
    lengths = Lengths(Part(20_000))
    lengths.sides = np.minimum(source, 128), np.minimum(target, 128)
    windows = Windows(lengths, (128, 128), 0, size)
    for number in range(windows.count(0)):
        window = windows.plan(0, number)
        assert 0.95 <= window.tokens / (256 * window.plan.num_rows) <= 1

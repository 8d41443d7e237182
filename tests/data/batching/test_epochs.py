"""Epochs of training: their batches, and iterating over them from any position."""

import threading
import traceback
from itertools import islice

import numpy as np
import pytest

from seq2seq.data.batching.batches import Batches, DataPosition, num_batches, pairs_left_out
from seq2seq.data.batching.packing import pack_pairs
from seq2seq.data.batching.windows import WINDOW
from tests.data.batching.test_batches import (
    LAYOUT,
    ROWS,
    SEED,
    SOURCE,
    TARGET,
    assert_same,
    batches_of,
    random_pairs,
)
from tests.support.memory_pairs import MemoryPairs, batches_in_windows


@pytest.mark.parametrize("count", [1, 3, 53, 211])
def test_a_window_drops_its_incomplete_last_batch(count):
    """Unless it is the only one; `pairs_left_out` counts the pairs of the dropped rows."""
    plan = pack_pairs(random_pairs(count).row_lengths, (SOURCE, TARGET), (0,))
    for size in range(1, plan.num_rows + 2):
        batches = num_batches(plan, size)
        rows = batches * size
        assert rows <= plan.num_rows < rows + size or (batches == 1 and plan.num_rows < size)
        assert pairs_left_out(plan, size) == len(plan.pairs[plan.offsets[: rows + 1][-1] :])


@pytest.mark.parametrize("window", [16, 48, WINDOW])
def test_iterating_resumes_from_any_position(window):
    """Of every third one."""
    batches = batches_of(random_pairs(97), window=window)
    steps = list(islice(batches.iterate(DataPosition()), 40))
    positions = [position for position, _, _ in steps]
    assert positions[0] == DataPosition() and positions[-1].epoch >= 2
    assert len({position.window for position in positions}) == {16: 6, 48: 2, WINDOW: 1}[window]
    assert positions == sorted(set(positions))
    for (position, _, following), after in zip(steps, positions[1:], strict=False):
        assert following == after
        counters = zip(position, after, strict=True)
        first = next(
            i for i, (counter, other_counter) in enumerate(counters) if counter != other_counter
        )
        assert after[first] == position[first] + 1 and not any(after[first + 1 :])
    for number, (position, batch, following) in islice(enumerate(steps), 0, None, 3):
        fresh = batches_of(random_pairs(97), window=window)
        assert_same(fresh[position], batch)
        assert following == fresh.next_position(position)
        for again, step in zip(fresh.iterate(position), steps[number : number + 3], strict=False):
            assert (again[0], again[2]) == (step[0], step[2])
            assert_same(again[1], step[1])


def test_windows_of_other_sizes_have_other_batches():
    small, large = (batches_of(random_pairs(253), window=window) for window in (60, 80))
    assert (small[DataPosition()].source != large[DataPosition()].source).any()


def test_a_position_past_the_end_of_its_window_is_the_start_of_the_next():
    batches = batches_of(random_pairs(253), window=84)
    for window, start in ((0, (0, 1, 0)), (1, (0, 2, 0)), (2, (1, 0, 0)), (3, (1, 0, 0))):
        for index in (99, 30):
            position, batch, _ = next(batches.iterate(DataPosition(0, window, index)))
            assert position == start
            assert_same(batch, batches[position])
    with pytest.raises(IndexError, match="batch 99 is not in its window: expected 0 to"):
        batches[DataPosition(0, 0, 99)]


def test_an_epoch_may_have_one_pair():
    steps = list(islice(batches_of(random_pairs(1)).iterate(DataPosition()), 3))
    assert [position for position, _, _ in steps] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_the_memory_of_what_is_read_is_released_once_per_batch():
    """In the thread that reads it; the planning of windows is another thread."""
    threads = []

    class Watched(MemoryPairs):
        def release(self):
            threads.append(threading.current_thread().name)

    batches = Batches(Watched(random_pairs(253)), ROWS, LAYOUT, SEED)
    items = batches._generate(DataPosition(), lambda batch: batch)
    for count in range(5):
        assert threads.count(threading.current_thread().name) == count
        next(items)


def test_an_error_in_the_thread_is_raised_with_its_position_and_traceback():
    class Broken(MemoryPairs):
        def select(self, index):
            if self.calls["select"] == 3:
                raise IndexError("broken")
            self.calls["select"] += 1
            return super().select(index)

    stream = Batches(Broken(random_pairs(253)), ROWS, LAYOUT, SEED).iterate(DataPosition())
    assert [next(stream)[0].index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError) as caught:
        next(stream)
    report = "".join(traceback.format_exception(caught.value))
    assert "while making batch 3 of window 0 of epoch 0" in report
    assert "in select" in report


def test_a_failure_of_planning_is_raised_at_the_batch_that_needs_it():
    """A pair of the second window is too long."""
    pairs = random_pairs(253)
    good = batches_of(pairs, window=84)
    last = max(p for p, _, _ in islice(good.iterate(DataPosition()), 12) if p[:2] == (0, 0))
    second = good.pair_indices(DataPosition(0, 1, 0))[0]

    class Broken(MemoryPairs):
        def row_lengths(self, index):
            sides = super().row_lengths(index)
            return np.where(index == second, TARGET + 1, sides[0]), sides[1]

    broken = batches_in_windows(84, Broken(pairs), ROWS, LAYOUT, SEED)
    stream = broken.iterate(DataPosition())
    assert [next(stream)[0] for _ in range(last.index + 1)][-1] == last
    with pytest.raises(ValueError, match="a pair has 32 tokens") as caught:
        next(stream)
    assert caught.value.__notes__ == ["while making batch 0 of window 1 of epoch 0"]

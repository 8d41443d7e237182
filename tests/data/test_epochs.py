"""Epochs of training: their batches, and iterating over them from any position."""

import traceback
from itertools import islice

import pytest
from test_batches import ROWS, SEED, SOURCE, TARGET, assert_same, planned, random_pairs

from data.batches import Batches, DataPosition, batch_pairs, num_batches, pairs_left_out


@pytest.mark.parametrize("count", [1, 3, 53, 211])
def test_an_epoch_of_training_drops_its_incomplete_last_batch(count):
    """Unless it is the only one; `pairs_left_out` counts the pairs of the dropped rows."""
    pairs = random_pairs(count)
    plan = planned(pairs)
    rows = len(plan.offsets) - 1
    for size in range(1, rows + 2):
        batches = num_batches(plan, size)
        assert batches * size <= rows < (batches + 1) * size or (batches == 1 and rows < size)
        used = sum(len(batch_pairs(plan, index, size)) for index in range(batches))
        assert pairs_left_out(plan, size) == count - used
        assert (pairs_left_out(plan, size) == 0) == (rows % size == 0 or rows < size)


def test_iterating_resumes_from_any_position():
    batches = Batches(lambda _: random_pairs(53), ROWS, SOURCE, TARGET, SEED)
    assert pairs_left_out(batches.plan(0), ROWS) > 0
    steps = list(islice(batches.iterate(DataPosition()), 3 * num_batches(batches.plan(0), ROWS)))
    positions = [position for position, _, _ in steps]
    assert positions[0] == DataPosition() and positions[-1].epoch >= 2
    for epoch in range(2):
        indices = [index for at, index in positions if at == epoch]
        assert indices == list(range(num_batches(batches.plan(epoch), ROWS)))
    for position, batch, following in steps:
        fresh = Batches(lambda _: random_pairs(53), ROWS, SOURCE, TARGET, SEED)
        assert_same(fresh[position], batch)
        again = next(fresh.iterate(position))
        assert_same(again[1], batch)
        assert (again[0], again[2]) == (position, following)
        assert following == fresh.next_position(position)
    assert positions[1:] == [following for _, _, following in steps[:-1]]


def test_a_position_past_the_last_batch_of_an_epoch_is_the_start_of_the_next():
    """Checkpoints of earlier versions may have the position of an incomplete batch."""
    batches = Batches(lambda _: random_pairs(53), ROWS, SOURCE, TARGET, SEED)
    past = DataPosition(0, num_batches(batches.plan(0), ROWS))
    position, batch, following = next(batches.iterate(past))
    assert (position, following) == (DataPosition(1, 0), DataPosition(1, 1))
    assert_same(batch, batches[position])


def test_an_epoch_may_have_one_pair():
    batches = Batches(lambda _: random_pairs(1), ROWS, SOURCE, TARGET, SEED)
    steps = list(islice(batches.iterate(DataPosition()), 3))
    assert [position for position, _, _ in steps] == [(0, 0), (1, 0), (2, 0)]


def test_an_error_in_the_thread_is_raised_with_its_position_and_traceback():
    pairs = random_pairs(53)
    broken = pairs._replace(target=pairs.target._replace(ids=pairs.target.ids[:-1]))
    with pytest.raises(IndexError) as caught:
        batches = Batches(lambda _: broken, ROWS, SOURCE, TARGET, SEED)
        list(islice(batches.iterate(DataPosition()), 97))
    report = "".join(traceback.format_exception(caught.value))
    assert "while making batch" in report
    assert "in pack_side" in report

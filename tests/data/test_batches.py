"""Batches contain every pair once per epoch, contiguous, unchanged and reproducible."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data.batches import (
    batch_pairs,
    fixed_batches,
    make_batch,
    pack_side,
    plan_epoch,
    useful_share,
)
from data.pairs import Pairs, ragged
from data.tokenizer import END, OUR_IDS, PAD, START

ROWS, SOURCE, TARGET, SEED = 5, 23, 31, 7


def random_pairs(count, seed=0, source=SOURCE, target=TARGET):
    """Pairs of random ids and lengths; the longest ones fill a row."""
    random = np.random.default_rng(seed)
    sides = [
        [random.integers(4, 97, length).tolist() for length in random.integers(1, capacity, count)]
        for capacity in (source, target)
    ]
    return Pairs(ragged(sides[0]), ragged(sides[1]))


def unpacked(batch):
    """The pairs of a batch as `(source, input, labels)`, found by their segments, row by row."""
    found = []
    for row in range(len(batch.row_ids)):
        source_of, target_of = batch.source_segments[row], batch.target_segments[row]
        for segment in range(1, max(source_of.max(), target_of.max()) + 1):
            found.append(
                (
                    batch.source[row][source_of == segment].tolist(),
                    batch.target[row][target_of == segment].tolist(),
                    batch.labels[row][target_of == segment].tolist(),
                )
            )
    return found


def as_lists(side):
    return [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]


def expected(pairs):
    """The expected result of `unpacked`, in the order of the pairs."""
    return [
        ([*one, END], [START, *other], [*other, END])
        for one, other in zip(*map(as_lists, pairs[:2]), strict=True)
    ]


def counted(items):
    return Counter(str(item) for item in items)


def planned(pairs, epoch=0, seed=SEED):
    return plan_epoch(*pairs.slots, SOURCE, TARGET, seed, epoch)


def all_batches(plan, rows_per_batch=ROWS):
    """The number of batches, including an incomplete last one."""
    return -(-(len(plan.offsets) - 1) // rows_per_batch)


def assert_same(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("count", [1, 2, 37, 997])
def test_an_epoch_unpacks_to_every_pair_exactly_once(count):
    pairs = random_pairs(count)
    for epoch in range(2):
        plan = planned(pairs, epoch)
        found = [
            pair
            for index in range(all_batches(plan))
            for pair in unpacked(make_batch(pairs, plan, index, ROWS, SOURCE, TARGET))
        ]
        assert counted(found) == counted(expected(pairs))


def test_rows_never_exceed_either_capacity():
    pairs = random_pairs(997)
    plan = planned(pairs)
    for slots, capacity in zip(pairs.slots, (SOURCE, TARGET), strict=True):
        assert slots.max() == capacity
        assert np.add.reduceat(slots[plan.pairs], plan.offsets[:-1]).max() <= capacity


def test_a_batch_equals_that_of_a_loop_over_its_tokens():
    pairs = random_pairs(211)
    plan = planned(pairs)
    wanted = expected(pairs)
    for index in range(all_batches(plan)):
        batch = make_batch(pairs, plan, index, ROWS, SOURCE, TARGET)
        source = np.zeros((3, ROWS, SOURCE), int)
        target = np.zeros((4, ROWS, TARGET), int)
        source[0], target[0], target[1] = PAD, PAD, PAD
        for row, (i, j) in enumerate(list(pairwise(plan.offsets))[index * ROWS :][:ROWS]):
            s = t = 0
            for segment, pair in enumerate(plan.pairs[i:j], start=1):
                tokens, inputs, labels = wanted[pair]
                for position, token in enumerate(tokens):
                    source[:, row, s] = token, segment, position
                    s += 1
                for position, both in enumerate(zip(inputs, labels, strict=True)):
                    target[:, row, t] = *both, segment, position
                    t += 1
        assert_same(batch, (*source, *target, np.arange(ROWS), None))
        assert {values.dtype for values in batch[:8]} == {np.dtype(np.int32)}


def test_the_worked_example_of_pack_side_is_right():
    """The arrays in its docstring; the special ids start, end and padding are 1, 2 and 0."""
    side = ragged([[7, 8], [9], [5, 6, 4]])
    packed = pack_side(side, np.array([0, 1, 2]), np.array([0, 2, 3]), (2, 6), OUR_IDS)
    assert [array.tolist() for array in packed] == [
        [[1, 7, 8, 1, 9, 0], [1, 5, 6, 4, 0, 0]],
        [[7, 8, 2, 9, 2, 0], [5, 6, 4, 2, 0, 0]],
        [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]],
        [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]],
    ]


def test_labels_are_the_shifted_input_and_end_within_their_pair():
    pairs = random_pairs(97)
    for batch in fixed_batches(pairs, ROWS, SOURCE, TARGET):
        same = batch.target_segments[:, 1:] == batch.target_segments[:, :-1]
        same &= batch.target_segments[:, 1:] > 0
        np.testing.assert_array_equal(batch.labels[:, :-1][same], batch.target[:, 1:][same])
        last = (batch.target_segments > 0) & ~np.pad(same, ((0, 0), (0, 1)))
        assert (batch.labels[last] == END).all()


def test_a_pair_does_not_depend_on_the_other_pairs_of_its_row():
    single = random_pairs(1)
    others = random_pairs(11, seed=1, source=5, target=7)
    combined = Pairs(
        *(
            ragged(as_lists(one) + as_lists(other))
            for one, other in zip(single[:2], others[:2], strict=True)
        )
    )
    for epoch in range(3):
        plan = planned(combined, epoch)
        assert expected(single)[0] in unpacked(make_batch(combined, plan, 0, 13, SOURCE, TARGET))


def test_every_batch_has_the_same_shape_and_the_last_is_padded_with_empty_rows():
    pairs = random_pairs(53)
    plan = planned(pairs)
    rows = len(plan.offsets) - 1
    size = next(size for size in range(2, rows) if rows % size)
    batches = list(fixed_batches(pairs, size, SOURCE, TARGET))
    assert {batch.source.shape for batch in batches} == {(size, SOURCE)}
    assert {batch.labels.shape for batch in batches} == {(size, TARGET)}
    last = make_batch(pairs, plan, all_batches(plan, size) - 1, size, SOURCE, TARGET)
    for values in last[:7]:
        assert not values[rows % size :].any()
    assert last.source_segments[: rows % size].any(axis=1).all()
    with pytest.raises(IndexError):
        make_batch(pairs, plan, all_batches(plan, size), size, SOURCE, TARGET)


def test_batch_pairs_lists_the_pairs_of_a_batch_in_order():
    pairs = random_pairs(53)
    plan = planned(pairs)
    for index in range(all_batches(plan)):
        batch = make_batch(pairs, plan, index, ROWS, SOURCE, TARGET)
        wanted = [expected(pairs)[pair] for pair in batch_pairs(plan, index, ROWS)]
        assert unpacked(batch) == wanted


def test_the_order_depends_on_seed_and_epoch_only():
    pairs = random_pairs(211)
    assert_same(planned(pairs), planned(pairs))
    for changed in (planned(pairs, epoch=1), planned(pairs, seed=SEED + 1)):
        assert changed.pairs.tolist() != planned(pairs).pairs.tolist()


def test_the_pairs_that_share_a_row_change_with_the_epoch():
    pairs = random_pairs(997)

    def row_mates(plan):
        return {
            frozenset(two)
            for i, j in pairwise(plan.offsets)
            for two in pairwise(plan.pairs[i:j].tolist())
        }

    first, second = row_mates(planned(pairs, 0)), row_mates(planned(pairs, 1))
    assert len(first & second) < 0.1 * len(first)


def test_rows_of_natural_lengths_have_less_than_5_percent_padding():
    random = np.random.default_rng(0)
    length = np.exp(random.normal(np.log(23), 0.6, 4999))
    noise = np.exp(random.normal(0, 0.15, (2, 4999)))
    slots = np.clip((length * noise).astype(int), 2, 256)
    plan = plan_epoch(*slots, 256, 256, SEED, 0)
    pairs = Pairs(*(ragged([[4] * (slot - 1) for slot in side]) for side in slots))
    assert useful_share(pairs, plan, 256, 256) > 0.95
    assert len(plan.offsets) - 1 >= max(side.sum() for side in slots) / 256


def test_the_useful_share_is_the_share_of_nonzero_segments():
    plan = planned(pairs := random_pairs(53))
    batch = make_batch(pairs, plan, 0, len(plan.offsets) - 1, SOURCE, TARGET)
    places = np.concatenate([batch.source_segments.ravel(), batch.target_segments.ravel()])
    assert useful_share(pairs, plan, SOURCE, TARGET) == pytest.approx((places > 0).mean())


def test_a_pair_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="24 tokens: expected at most 23"):
        plan_epoch(np.array([3, 24]), np.array([2, 2]), SOURCE, TARGET, SEED, 0)

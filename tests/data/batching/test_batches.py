"""Batches contain their pairs contiguous, unchanged and reproducible; each process its own rows."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest

from seq2seq.config.special_tokens import END, PAD, START
from seq2seq.data.batching.batches import (
    Batches,
    DataPosition,
    fixed_batches,
    num_batches,
    own_rows,
)
from seq2seq.data.batching.packing import RowLayout
from seq2seq.data.batching.windows import WINDOW, Windows
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.data.tokens.training_pairs import Part
from tests.support.memory_pairs import MemoryPairs, batches_in_windows

ROWS, SOURCE, TARGET, SEED = 5, 23, 31, 7
LAYOUT = RowLayout(SOURCE, TARGET)


def random_pairs(count, seed=0, source=SOURCE, target=TARGET):
    """Pairs of random ids and lengths; the longest ones fill a row."""
    random = np.random.default_rng(seed)
    sides = [
        [random.integers(4, 97, length).tolist() for length in random.integers(1, capacity, count)]
        for capacity in (source, target)
    ]
    return Pairs(ragged(sides[0]), ragged(sides[1]))


def weighted(pairs, seed=3):
    """The pairs with random loss weights."""
    count = len(pairs.source.offsets) - 1
    weights = np.random.default_rng(seed).exponential(3.0, count)
    return pairs._replace(loss_weights=weights.astype(np.float32))


def batches_of(pairs, parts=(), window=WINDOW, **options):
    arguments = MemoryPairs(pairs, parts), ROWS, LAYOUT, SEED
    return batches_in_windows(window, *arguments, **options)


def unpacked(batch):
    """The pairs of a batch as `(source, input, labels)`, found by their segments, row by row."""
    pairs = []
    for row in range(len(batch.row_ids)):
        source_of, target_of = batch.source_segments[row], batch.target_segments[row]
        for segment in range(1, max(source_of.max(), target_of.max()) + 1):
            pairs.append(
                (
                    batch.source[row][source_of == segment].tolist(),
                    batch.decoder_input[row][target_of == segment].tolist(),
                    batch.labels[row][target_of == segment].tolist(),
                )
            )
    return pairs


def as_lists(side):
    return [side.ids[i:j].tolist() for i, j in pairwise(side.offsets)]


def expected(pairs):
    """The expected result of `unpacked`, in the order of the pairs."""
    return [
        ([*source, END], [START, *target], [*target, END])
        for source, target in zip(*map(as_lists, pairs[:2]), strict=True)
    ]


def counted(items):
    return Counter(str(item) for item in items)


def assert_same(actual, wanted):
    for left, right in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("count", [1, 2, 37, 497])
def test_fixed_batches_unpack_to_every_pair_exactly_once(count):
    pairs = random_pairs(count)
    batches = list(fixed_batches(pairs, ROWS, LAYOUT))
    unpacked_pairs = [pair for batch in batches for pair in unpacked(batch)]
    assert counted(unpacked_pairs) == counted(expected(pairs))
    for batch, again in zip(batches, fixed_batches(pairs, ROWS, LAYOUT), strict=True):
        assert_same(batch, again)


def test_a_batch_equals_that_of_a_loop_over_its_tokens():
    """The pairs of each row are those of the plan of its window."""
    pairs = random_pairs(211)
    wanted, batches = expected(pairs), batches_of(pairs)
    plan = Windows(MemoryPairs(pairs), (SOURCE, TARGET), SEED, 1 << 20).plan(1, 0).plan
    for index in range(num_batches(plan, ROWS)):
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
        batch = batches[DataPosition(1, 0, index)]
        assert_same(batch, (*source, *target, np.arange(ROWS), None))
        assert {values.dtype for values in batch[:8]} == {np.dtype(np.int32)}


def test_labels_are_the_shifted_input_and_end_within_their_pair():
    for batch in fixed_batches(random_pairs(97), ROWS, LAYOUT):
        same = batch.target_segments[:, 1:] == batch.target_segments[:, :-1]
        same &= batch.target_segments[:, 1:] > 0
        np.testing.assert_array_equal(batch.labels[:, :-1][same], batch.decoder_input[:, 1:][same])
        last = (batch.target_segments > 0) & ~np.pad(same, ((0, 0), (0, 1)))
        assert (batch.labels[last] == END).all()


def test_a_pair_does_not_depend_on_the_other_pairs_of_its_row():
    single = random_pairs(1)
    other_pairs = random_pairs(11, seed=1, source=5, target=7)
    combined = Pairs(
        *(
            ragged(as_lists(side) + as_lists(other_side))
            for side, other_side in zip(single[:2], other_pairs[:2], strict=True)
        )
    )
    (batch,) = fixed_batches(combined, 13, LAYOUT)
    assert expected(single)[0] in unpacked(batch)


def test_fixed_batches_have_one_shape_and_the_last_is_padded_with_empty_rows():
    pairs = random_pairs(53)
    rows = sum(batch.target_segments.any(axis=1).sum() for batch in fixed_batches(pairs, 1, LAYOUT))
    size = next(size for size in range(2, rows) if rows % size)
    batches = list(fixed_batches(pairs, size, LAYOUT))
    assert {batch.source.shape for batch in batches} == {(size, SOURCE)}
    assert {batch.labels.shape for batch in batches} == {(size, TARGET)}
    last = batches[-1]
    for values in last[:7]:
        assert not values[rows % size :].any()
    assert last.source_segments[: rows % size].any(axis=1).all()


def test_pair_indices_are_those_of_the_pairs_of_a_batch_in_order():
    pairs = random_pairs(353)
    batches = batches_of(pairs, window=100)
    for position, batch, _ in islice(batches.iterate(DataPosition()), 60):
        indices = batches.pair_indices(position)
        assert unpacked(batch) == [expected(pairs)[pair] for pair in indices]
    assert position.epoch == 1


@pytest.mark.parametrize("processes, parts", [(2, 2), (2, 4), (3, 6), (4, 4), (7, 7)])
def test_the_batch_does_not_depend_on_the_number_of_processes(processes, parts):
    """The rows of all processes are the global batch, then empty rows. Each pair is read once."""
    pairs = weighted(random_pairs(153))
    whole = batches_of(pairs, window=40)
    stores = [MemoryPairs(pairs) for _ in range(processes)]
    rows_of = [own_rows(ROWS, parts, i, processes) for i in range(processes)]
    parts_of_process = [
        batches_in_windows(40, store, ROWS, LAYOUT, SEED, rows=rows)
        for store, rows in zip(stores, rows_of, strict=True)
    ]
    for position, batch, _ in islice(whole.iterate(DataPosition()), 20):
        for store in stores:
            store.selected.clear()
        parts_of_batch = [batches[position] for batches in parts_of_process]
        together = [np.concatenate(arrays) for arrays in zip(*parts_of_batch, strict=True)]
        assert len(together[0]) == -(-ROWS // parts) * parts
        assert_same(batch, [array[:ROWS] for array in together])
        assert not any(array[ROWS:].any() for array in (*together[:7], together[8]))
        read = [pair for store in stores for pair in store.selected]
        assert read == whole.pair_indices(position).tolist()


@pytest.mark.parametrize("window", [64, 200, 1000])
def test_an_epoch_takes_each_pair_by_weight_except_those_left_out(window):
    pairs, parts = random_pairs(353), (Part(150, 2.0), Part(203))
    batches = batches_of(pairs, parts, window=window)
    for epoch in range(2):
        taken, position = Counter(), DataPosition(epoch)
        number = 0
        while position.epoch == epoch:
            taken.update(batches.pair_indices(position).tolist())
            position, number = batches.next_position(position), number + 1
        wanted = Counter({pair: 2 if pair < 150 else 1 for pair in range(353)})
        assert not taken - wanted
        windows = [batches.summary(DataPosition(epoch, n)) for n in range(-(-503 // window))]
        missing = (wanted - taken).total()
        assert missing < len(windows) * ROWS * 12
        if len(windows) == 1:
            assert windows[0] == (503, number, missing, windows[0].useful, True)
        else:
            assert all(abs(window.batches - number) <= len(windows) + 1 for window in windows)
            assert {window[:1] + window[4:] for window in windows} == {(503, False)}


def test_the_useful_share_is_the_share_of_nonzero_segments():
    """In a window of 17 batches of one row."""
    pairs = random_pairs(53)
    batches = Batches(MemoryPairs(pairs), 1, LAYOUT, SEED)
    summary = batches.summary(DataPosition())
    items = list(islice(batches.iterate(DataPosition()), summary.batches))
    places = np.concatenate(
        [
            part.ravel()
            for _, batch, _ in items
            for part in (batch.source_segments, batch.target_segments)
        ]
    )
    assert summary.useful == pytest.approx((places > 0).mean()) and summary.left_out == 0

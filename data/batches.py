"""From pairs of token ids to packed batches. Axes: B rows of the global batch, S source, T target.

Several pairs share a row and are distinguished by segment ids 1, 2, 3, …; 0 is padding. A plan
assigns the pairs of an epoch to rows. It depends on the lengths, the seed and the epoch only, and a
batch is a slice of a plan, so any batch can be made at any time on any machine.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from data.loss_weights import label_weights
from data.pairs import Pairs, Ragged, ragged
from data.tokenizer import OUR_IDS, Special
from runtime.prefetch import Prefetched

OPEN_ROWS = 32  # more rows pack better, but slower
SORTED_PAIRS = 256  # pairs sorted by length at a time: 1 to 2 % more useful tokens
BATCHES_AHEAD = 4


class Plan(NamedTuple):
    """The rows of an epoch: row r holds the pairs `pairs[offsets[r]:offsets[r + 1]]`."""

    pairs: np.ndarray  # int32
    offsets: np.ndarray  # int64, one more than rows


class Batch(NamedTuple):
    """One global batch, int32. The labels are the target shifted by one: target + end."""

    source: np.ndarray  # [B, S] source + end
    source_segments: np.ndarray  # [B, S] 1, 2, 3, … within the row, 0 is padding
    source_positions: np.ndarray  # [B, S] 0, 1, 2, … within the segment
    target: np.ndarray  # [B, T] start + target: the decoder's input
    labels: np.ndarray  # [B, T] target + end
    target_segments: np.ndarray  # [B, T]
    target_positions: np.ndarray  # [B, T]
    row_ids: np.ndarray  # [B] the row's index in the global batch
    loss_weights: np.ndarray | None = None  # [B, T] float32, of the labels; None: all are 1


class DataPosition(NamedTuple):
    """The position of training in its data: the next batch is batch `index` of `epoch`."""

    epoch: int = 0
    index: int = 0


def plan_epoch(
    source_slots: np.ndarray,
    target_slots: np.ndarray,
    source_capacity: int,
    target_capacity: int,
    seed: int,
    epoch: int,
) -> Plan:
    """Packs every pair once into rows of `source_capacity` and `target_capacity` tokens.

    `source_slots`, `target_slots`: the tokens of each pair, ends included (`Pairs.slots`).
    ValueError if a pair is longer than a row.
    """
    for slots, capacity in ((source_slots, source_capacity), (target_slots, target_capacity)):
        if len(slots) and slots.max() > capacity:
            raise ValueError(f"a pair has {slots.max()} tokens: expected at most {capacity}")
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = random.permutation(len(source_slots))
    longest = np.maximum(source_slots, target_slots)[order]
    order = order[np.lexsort((-longest, np.arange(len(order)) // SORTED_PAIRS))]
    rows = first_fit(order, source_slots, target_slots, source_capacity, target_capacity)
    rows = ragged([rows[i] for i in random.permutation(len(rows)).tolist()])
    return Plan(rows.ids, rows.offsets)


def first_fit(
    order: np.ndarray,
    source_slots: np.ndarray,
    target_slots: np.ndarray,
    source_capacity: int,
    target_capacity: int,
) -> list[list[int]]:
    """The pairs of each row: a pair goes to the first open row with room on both sides.

    If there is none, a new row is opened; at OPEN_ROWS rows the fullest one is closed first.
    """
    source_of, target_of = source_slots.tolist(), target_slots.tolist()  # lists are faster here
    closed, opened, source_room, target_room = [], [], [], []
    for pair in order.tolist():
        source, target = source_of[pair], target_of[pair]
        for row, room in enumerate(source_room):
            if source <= room and target <= target_room[row]:
                break
        else:
            if len(opened) == OPEN_ROWS:
                full = min(range(OPEN_ROWS), key=lambda i: min(source_room[i], target_room[i]))
                closed.append(opened.pop(full))
                del source_room[full], target_room[full]
            row = len(opened)
            opened.append([])
            source_room.append(source_capacity)
            target_room.append(target_capacity)
        source_room[row] -= source
        target_room[row] -= target
        opened[row].append(pair)
    return closed + opened


def num_batches(plan: Plan, rows_per_batch: int) -> int:
    """The number of batches in an epoch of training.

    An incomplete last batch is dropped: its gradient would be noisier, and the update no smaller.
    An epoch smaller than one batch is one batch.
    """
    return max(1, (len(plan.offsets) - 1) // rows_per_batch)


def pairs_left_out(plan: Plan, rows_per_batch: int) -> int:
    """The number of pairs in the incomplete last batch of an epoch, which training drops."""
    rows = num_batches(plan, rows_per_batch) * rows_per_batch
    return int(plan.offsets[-1] - plan.offsets[min(rows, len(plan.offsets) - 1)])


def useful_share(pairs: Pairs, plan: Plan, source_capacity: int, target_capacity: int) -> float:
    """The share of the rows of both sides that is not padding."""
    used = sum(int(slots[plan.pairs].sum()) for slots in pairs.slots)
    return used / ((len(plan.offsets) - 1) * (source_capacity + target_capacity))


def batch_pairs(plan: Plan, index: int, rows_per_batch: int) -> np.ndarray:
    """The indices of the pairs of batch `index` of a plan, in the order of its rows."""
    rows = plan.offsets[index * rows_per_batch : (index + 1) * rows_per_batch + 1]
    return plan.pairs[rows[0] : rows[-1]]


def make_batch(
    pairs: Pairs,
    plan: Plan,
    index: int,
    rows_per_batch: int,
    source_capacity: int,
    target_capacity: int,
    special: Special = OUR_IDS,
) -> Batch:
    """Batch `index` of a plan, `[rows_per_batch, capacity]` per side, padded with empty rows.

    IndexError past the last row.
    """
    stop = -(-(len(plan.offsets) - 1) // rows_per_batch)  # an incomplete last batch included
    if not 0 <= index < stop:
        raise IndexError(f"batch {index} is not in the plan: expected 0 to {stop - 1}")
    rows = plan.offsets[index * rows_per_batch : (index + 1) * rows_per_batch + 1]
    members = batch_pairs(plan, index, rows_per_batch)
    rows = rows - rows[0]
    source = pack_side(pairs.source, members, rows, (rows_per_batch, source_capacity), special)
    target = pack_side(pairs.target, members, rows, (rows_per_batch, target_capacity), special)
    loss_weights = None
    if pairs.loss_weights is not None:
        loss_weights = label_weights(pairs.loss_weights[members], rows, target[2])
    row_ids = np.arange(rows_per_batch, dtype=np.int32)
    return Batch(source[1], *source[2:], *target, row_ids, loss_weights)


def fixed_batches(
    pairs: Pairs,
    rows_per_batch: int,
    source_capacity: int,
    target_capacity: int,
    special: Special = OUR_IDS,
) -> Iterator[Batch]:
    """All pairs once, always in the same batches, for validation; the last one is padded with
    empty rows."""
    plan = plan_epoch(*pairs.slots, source_capacity, target_capacity, seed=0, epoch=0)
    for index in range(-(-(len(plan.offsets) - 1) // rows_per_batch)):
        yield make_batch(
            pairs, plan, index, rows_per_batch, source_capacity, target_capacity, special
        )


class Batches:
    """All training batches: `batches[position]` is a pure function of seed and position."""

    def __init__(
        self,
        pairs: Callable[[int], Pairs],
        rows_per_batch: int,
        source_capacity: int,
        target_capacity: int,
        seed: int,
        special: Special = OUR_IDS,
    ):
        """`pairs(epoch)` returns the pairs of an epoch, which may differ between epochs."""
        self.special = special
        self.pairs = lru_cache(maxsize=2)(pairs)
        self.shape = rows_per_batch, source_capacity, target_capacity
        self.plan = lru_cache(maxsize=2)(
            lambda epoch: plan_epoch(
                *self.pairs(epoch).slots, source_capacity, target_capacity, seed, epoch
            )
        )

    def __getitem__(self, position: DataPosition) -> Batch:
        """The batch at a position."""
        epoch, index = position
        return make_batch(self.pairs(epoch), self.plan(epoch), index, *self.shape, self.special)

    def next_position(self, position: DataPosition) -> DataPosition:
        """The position after this one: the next batch, or the first one of the next epoch."""
        epoch, index = position
        last = index + 1 >= num_batches(self.plan(epoch), self.shape[0])
        return DataPosition(epoch + 1, 0) if last else DataPosition(epoch, index + 1)

    def iterate(
        self, position: DataPosition, place: Callable[[Batch], Any] = lambda batch: batch
    ) -> Prefetched[tuple[DataPosition, Any, DataPosition]]:
        """Endless items (position, place(batch), next position), starting at `position`.

        A thread makes the plans and places the batches in advance. An error in the thread is raised
        here when its batch is due, with its traceback and position. A position past the last batch
        of its epoch, as in checkpoints of versions that used incomplete batches, is the start of
        the next epoch.
        """
        return Prefetched(self._generate(position, place), BATCHES_AHEAD)

    def _generate(self, position, place):
        while True:
            try:
                if position.index >= num_batches(self.plan(position.epoch), self.shape[0]):
                    position = DataPosition(position.epoch + 1, 0)
                item = position, place(self[position]), self.next_position(position)
            except Exception as error:
                error.add_note(f"while making batch {position.index} of epoch {position.epoch}")
                raise
            yield item
            position = item[2]


def pack_side(
    side: Ragged, members: np.ndarray, rows: np.ndarray, shape: tuple[int, int], special: Special
) -> list[np.ndarray]:
    """`[inputs, labels, segments, positions]` of one side, each of `shape` [B, capacity].

    Row r holds the pairs `members[rows[r]:rows[r + 1]]`. All pairs are first computed as one
    stream of tokens, which is then scattered into the rows.

    Example: the targets [7 8], [9], [5 6 4] in rows of capacity 6, pairs 0 and 1 in row 0, pair 2
    in row 1: members = [0 1 2], rows = [0 2 3]. s is the start token, e the end token, - padding.

        for each pair                      for each token of the stream
        lengths   3  2  4  (with e)        pair      0 0 0  1 1  2 2 2 2
        starts    0  3  5  in the stream   position  0 1 2  0 1  0 1 2 3
        stops     3  5  9                  place     0 1 2  3 4  6 7 8 9  in the flat batch
        row       0  0  1                  labels    7 8 e  9 e  5 6 4 e
        column    0  3  0  in the row      inputs    s 7 8  s 9  s 5 6 4
        segment   1  2  1

        result    inputs     s 7 8 s 9 -   labels     7 8 e 9 e -
                             s 5 6 4 - -              5 6 4 e - -
                  segments   1 1 1 2 2 0   positions  0 1 2 0 1 0
                             1 1 1 1 0 0              0 1 2 3 0 0
    """
    num_rows, capacity = shape
    first_ids = side.offsets[members]
    lengths = side.offsets[members + 1] - first_ids + 1
    stops = np.cumsum(lengths)
    starts = stops - lengths
    pairs_per_row = np.diff(rows)
    row = np.repeat(np.arange(len(pairs_per_row)), pairs_per_row)
    column = starts - starts[rows[:-1]][row]
    segment = np.arange(len(members)) - rows[:-1][row] + 1

    pair = np.repeat(np.arange(len(members)), lengths)
    position = np.arange(len(pair)) - starts[pair]
    place = (row * capacity + column)[pair] + position
    labels = np.full(len(pair), special.end, np.int32)
    is_text = np.ones(len(pair), bool)
    is_text[stops - 1] = False
    labels[is_text] = side.ids[(first_ids[pair] + position)[is_text]]
    inputs = np.empty_like(labels)
    inputs[1:] = labels[:-1]
    inputs[starts] = special.start

    packed = []
    pad = special.pad
    for values, filler in ((inputs, pad), (labels, pad), (segment[pair], 0), (position, 0)):
        array = np.full(num_rows * capacity, filler, np.int32)
        array[place] = values
        packed.append(array.reshape(num_rows, capacity))
    return packed

"""From pairs of token ids to packed batches. Axes: B rows of the global batch, S source, T target.

Several pairs share a row, told apart by segment ids 1, 2, 3, …; 0 is padding. Which pairs meet in
which row is a plan: made once per epoch from nothing but the lengths, the seed and the epoch. So
batch i of epoch e is a slice of a plan: any batch can be made at any time, on any machine.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.pairs import Pairs, ragged
from data.tokenizer import OUR_IDS, Special
from runtime.prefetch import Prefetched

OPEN_ROWS = 32  # more fill rows better, slowly
SORTED_PAIRS = 256  # long pairs first among so many: 1 to 2 % more useful tokens
BATCHES_AHEAD = 4


class Plan(NamedTuple):
    """The rows of an epoch: row r holds the pairs `pairs[offsets[r]:offsets[r + 1]]`."""

    pairs: np.ndarray  # int32
    offsets: np.ndarray  # int64, one more than rows


class Batch(NamedTuple):
    """One global batch, all int32. Labels are the target one ahead: target + end, per pair."""

    source: np.ndarray  # [B, S] source + end
    source_segments: np.ndarray  # [B, S] 1, 2, 3, … within the row, 0 is padding
    source_positions: np.ndarray  # [B, S] 0, 1, 2, … within the segment
    target: np.ndarray  # [B, T] start + target: the decoder's input
    labels: np.ndarray  # [B, T] target + end
    target_segments: np.ndarray  # [B, T]
    target_positions: np.ndarray  # [B, T]
    rows: np.ndarray  # [B] the row's index in the global batch


class DataPosition(NamedTuple):
    """Where training is in its data; the next batch to take is batch `index` of `epoch`."""

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
    """Packs every pair once into rows of `source_capacity` and `target_capacity` places.

    `source_slots`, `target_slots`: the places each pair takes, ends included (`Pairs.slots`).
    Pairs in random order go to the first open row with room on both sides; where there is none,
    the fullest row is closed for a new one. ValueError if a pair is longer than a row.
    """
    for slots, capacity in ((source_slots, source_capacity), (target_slots, target_capacity)):
        if len(slots) and slots.max() > capacity:
            raise ValueError(f"a pair takes {slots.max()} places of a row of {capacity}")
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    order = random.permutation(len(source_slots))
    longest = np.maximum(source_slots, target_slots)[order]
    order = order[np.lexsort((-longest, np.arange(len(order)) // SORTED_PAIRS))]
    source_of, target_of = source_slots.tolist(), target_slots.tolist()  # lists are faster here
    closed, members, source_room, target_room = [], [], [], []
    for pair in order.tolist():
        source, target = source_of[pair], target_of[pair]
        for row, room in enumerate(source_room):
            if source <= room and target <= target_room[row]:
                break
        else:
            if len(members) == OPEN_ROWS:
                full = min(range(OPEN_ROWS), key=lambda i: min(source_room[i], target_room[i]))
                closed.append(members.pop(full))
                del source_room[full], target_room[full]
            row = len(members)
            members.append([])
            source_room.append(source_capacity)
            target_room.append(target_capacity)
        source_room[row] -= source
        target_room[row] -= target
        members[row].append(pair)
    rows = closed + members
    rows = [rows[i] for i in random.permutation(len(rows)).tolist()]
    members = ragged(rows)
    return Plan(members.ids, members.offsets)


def num_batches(plan: Plan, rows_per_batch: int) -> int:
    """Batches in an epoch of training.

    An incomplete last batch is left out: a step on few rows would be as large as any other, and
    noisier. An epoch smaller than one batch is one batch.
    """
    return max(1, (len(plan.offsets) - 1) // rows_per_batch)


def pairs_left_out(plan: Plan, rows_per_batch: int) -> int:
    """Pairs in the incomplete last batch of an epoch, which training leaves out."""
    rows = num_batches(plan, rows_per_batch) * rows_per_batch
    return int(plan.offsets[-1] - plan.offsets[min(rows, len(plan.offsets) - 1)])


def useful_share(pairs: Pairs, plan: Plan, source_capacity: int, target_capacity: int) -> float:
    """The share of places, both sides, that hold a token or an end."""
    used = sum(int(slots[plan.pairs].sum()) for slots in pairs.slots)
    return used / ((len(plan.offsets) - 1) * (source_capacity + target_capacity))


def batch_pairs(plan: Plan, index: int, rows_per_batch: int) -> np.ndarray:
    """The pairs of batch `index` of a plan in the order of its rows: to say what is in it."""
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
    """Batch `index` of a plan, `[rows_per_batch, capacity]` a side, filled up with empty rows.

    IndexError past the last row.
    """
    if not 0 <= index < -(-(len(plan.offsets) - 1) // rows_per_batch):
        raise IndexError(
            f"batch {index} of {rows_per_batch} rows in a plan of {len(plan.offsets) - 1}"
        )
    rows = plan.offsets[index * rows_per_batch : (index + 1) * rows_per_batch + 1]
    members = batch_pairs(plan, index, rows_per_batch)
    where = members, rows - rows[0], rows_per_batch
    source = _packed(pairs.source, *where, source_capacity, special)
    target = _packed(pairs.target, *where, target_capacity, special)
    return Batch(source[1], *source[2:], *target, np.arange(rows_per_batch, dtype=np.int32))


def fixed_batches(
    pairs: Pairs,
    rows_per_batch: int,
    source_capacity: int,
    target_capacity: int,
    special: Special = OUR_IDS,
) -> Iterator[Batch]:
    """All pairs once, in batches that are always the same, for validation; the last one is filled
    up with empty rows."""
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
        """`pairs(epoch)` are those of an epoch: always the same ones, or not."""
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
        self, position: DataPosition
    ) -> Prefetched[tuple[DataPosition, Batch, DataPosition]]:
        """Batches without end from a position on, each between its position and the next one.

        A thread computes them ahead, and the plans of new epochs. An error there is raised here
        when its batch is due, with its traceback and position. A position past the last batch of
        its epoch (of a checkpoint from when incomplete batches were used) is the next epoch's.
        """
        return Prefetched(self._from(position), BATCHES_AHEAD)

    def _from(self, position):
        while True:
            try:
                if position.index >= num_batches(self.plan(position.epoch), self.shape[0]):
                    position = DataPosition(position.epoch + 1, 0)
                item = position, self[position], self.next_position(position)
            except Exception as error:
                error.add_note(f"while making batch {position.index} of epoch {position.epoch}")
                raise
            yield item
            position = item[2]


def _packed(side, members, rows, num_rows, capacity, special):
    """`(inputs, labels, segments, positions)`, each [B, capacity], of the pairs in these rows.

    `members` are the pairs one after the other, row r's are `members[rows[r]:rows[r + 1]]`.
    """
    begins = side.offsets[members]
    lengths = side.offsets[members + 1] - begins + 1  # and the end
    stops = np.cumsum(lengths)
    starts = stops - lengths  # where a pair starts in the stream of all tokens of the batch
    per_row = np.diff(rows)
    row = np.repeat(np.arange(len(per_row)), per_row)
    column = starts - starts[rows[:-1]][row]
    segment = np.arange(len(members)) - rows[:-1][row] + 1
    pair = np.repeat(np.arange(len(members)), lengths)
    position = np.arange(len(pair)) - starts[pair]
    place = (row * capacity + column)[pair] + position
    labels = np.full(len(pair), special.end, np.int32)
    inside = np.ones(len(pair), bool)
    inside[stops - 1] = False
    labels[inside] = side.ids[(begins[pair] + position)[inside]]
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

"""Pairs of token ids packed into rows. Axes: B rows, S source, T target.

Several pairs share a row and are distinguished by segment ids 1, 2, 3, …; 0 is padding. A plan
assigns pairs to rows. It depends on their lengths and a key only.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32, Int64

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import OUR_IDS, Special
from seq2seq.data.batching.loss_weights import label_weights
from seq2seq.data.batching.order import ROWS, Permutation
from seq2seq.data.tokens.pairs import Pairs, Ragged, Sides, ragged
from seq2seq.model.target_shift import shift_right

OPEN_ROWS = 32  # more rows pack better, but slower
SORTED_PAIRS = 256  # pairs sorted by length at a time: 1 to 2 % more useful tokens


class Plan(NamedTuple):
    """The pairs of each row: row r holds the pairs `pairs[offsets[r]:offsets[r + 1]]`."""

    pairs: Int64[np.ndarray, " P"]
    offsets: Int64[np.ndarray, " rows+1"]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1


class RowLayout(NamedTuple):
    """What all rows have in common."""

    source_capacity: int  # tokens of a row
    target_capacity: int
    special: Special = OUR_IDS
    source_end: int = 0  # tokens of each source that follow its end token

    @property
    def capacities(self) -> tuple[int, int]:
        """The tokens of a row of either side."""
        return self.source_capacity, self.target_capacity


def row_layout(config: DataConfig, special: Special) -> RowLayout:
    """The layout of the rows of a run."""
    source_end = len(config.source_end.split())
    return RowLayout(config.source_length, config.target_length, special, source_end)


class Batch(NamedTuple):
    """Rows of a global batch, int32.

    `source` is the encoder's input: each source and an end token, which may precede the last tokens
    of the source (`RowLayout.source_end`). `labels` are what the decoder must predict: each target
    and an end token. `decoder_input` is a start token and each target, the labels shifted by one
    place (`shift_right`).
    """

    source: Int32[np.ndarray, "B S"]
    source_segments: Int32[np.ndarray, "B S"]  # 1, 2, 3, … within the row, 0 is padding
    source_positions: Int32[np.ndarray, "B S"]  # 0, 1, 2, … within the segment
    decoder_input: Int32[np.ndarray, "B T"]
    labels: Int32[np.ndarray, "B T"]
    target_segments: Int32[np.ndarray, "B T"]
    target_positions: Int32[np.ndarray, "B T"]
    row_ids: Int32[np.ndarray, " B"]  # the row's index in the global batch
    loss_weights: Float32[np.ndarray, "B T"] | None = None  # of the labels; None: all are 1


def pack_pairs(sides: Sides, capacities: tuple[int, int], key: tuple[int, ...]) -> Plan:
    """Packs every pair once into rows of `capacities` (source, target) tokens.

    `sides` are the tokens of each pair in a row of either side, ends included. `key` determines the
    order of the rows. ValueError if a pair is longer than a row.
    """
    for tokens, capacity in zip(sides, capacities, strict=True):
        if len(tokens) and tokens.max() > capacity:
            raise ValueError(f"a pair has {tokens.max()} tokens: expected at most {capacity}")
    # Sorted by length in small groups, which packs better than the given order.
    groups = np.arange(len(sides[0])) // SORTED_PAIRS
    by_length = np.lexsort((-np.maximum(*sides), groups))
    rows = first_fit(by_length, *sides, *capacities)
    shuffled = Permutation(len(rows), (*key, ROWS))(np.arange(len(rows)))
    packed = ragged([rows[i] for i in shuffled.tolist()])
    return Plan(packed.ids.astype(np.int64), packed.offsets)


def first_fit(
    order: Int[np.ndarray, " P"],
    source_lengths: Int[np.ndarray, " P"],
    target_lengths: Int[np.ndarray, " P"],
    source_capacity: int,
    target_capacity: int,
) -> list[list[int]]:
    """The pairs of each row: a pair goes to the first open row with room on both sides.

    If there is none, a new row is opened; at OPEN_ROWS rows the fullest one is closed first.
    """
    source_of, target_of = source_lengths.tolist(), target_lengths.tolist()  # lists are faster here
    closed: list[list[int]] = []
    opened: list[list[int]] = []
    source_room: list[int] = []  # of each open row
    target_room: list[int] = []
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


def pack_rows(
    pairs: Pairs,
    offsets: Int[np.ndarray, " offsets"],
    rows: range,
    layout: RowLayout,
    weight_scale: float | None = None,
) -> Batch:
    """These rows of a global batch.

    The first holds the pairs `offsets[0]` to `offsets[1] - 1`, and so on; later rows are empty.
    `weight_scale` multiplies the loss weights of the pairs (loss_weights.py); None: no weights.
    """
    special = layout.special
    _, source, source_segments, source_positions = pack_side(
        pairs.source, offsets, (len(rows), layout.source_capacity), special, layout.source_end
    )
    inputs, labels, target_segments, target_positions = pack_side(
        pairs.target, offsets, (len(rows), layout.target_capacity), special
    )
    loss_weights = None
    if pairs.loss_weights is not None and weight_scale is not None:
        loss_weights = label_weights(pairs.loss_weights, offsets, target_segments, weight_scale)
    return Batch(
        source,
        source_segments,
        source_positions,
        inputs,
        labels,
        target_segments,
        target_positions,
        np.array(rows, np.int32),
        loss_weights,
    )


def pack_side(
    side: Ragged,
    rows: np.ndarray,
    shape: tuple[int, int],
    special: Special,
    after_end: int = 0,
) -> list[np.ndarray]:
    """`[inputs, labels, segments, positions]` of one side, each of `shape` [B, capacity].

    Row r holds the sequences `rows[r]` to `rows[r + 1] - 1`. The end token of each precedes its
    last `after_end` tokens. All sequences are first computed as one stream of tokens, which is then
    scattered into the rows. Only the inputs of the target side are used.

    Example: the targets [7 8], [9], [5 6 4] in rows of capacity 6, pairs 0 and 1 in row 0, pair 2
    in row 1: rows = [0 2 3]. s is the start token, e the end token, - padding.

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
    # Of each pair: [pairs].
    lengths = side.lengths + 1
    stops = np.cumsum(lengths)
    starts = stops - lengths
    pairs_per_row = np.diff(rows)  # [rows with pairs]
    row = np.repeat(np.arange(len(pairs_per_row)), pairs_per_row)
    first_of_row = rows[:-1][row]
    column = starts - starts[first_of_row]
    segment = np.arange(len(lengths)) - first_of_row + 1

    # Of each token of the stream: [tokens].
    pair = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(pair)) - starts[pair]
    place = (row * capacity + column)[pair] + position
    labels = np.full(len(pair), special.end, np.int32)
    is_text = np.ones(len(pair), bool)
    is_text[stops - 1 - after_end] = False
    labels[is_text] = side.ids
    inputs = shift_right(labels, position == 0, special.start)

    packed = []
    pad = special.pad
    for values, filler in ((inputs, pad), (labels, pad), (segment[pair], 0), (position, 0)):
        array = np.full(num_rows * capacity, filler, np.int32)  # [B · capacity]
        array[place] = values
        packed.append(array.reshape(num_rows, capacity))  # [B, capacity]
    return packed

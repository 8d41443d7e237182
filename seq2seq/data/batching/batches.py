"""Batches of training and of evaluation. Axes: B rows, S source, T target.

A batch is a slice of the rows of a window (seq2seq/data/batching/windows.py), so any batch can be
made at any time on any machine. Each process makes its own rows of the global batch only.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from seq2seq.data.batching.loss_weights import loss_weight_scale
from seq2seq.data.batching.packing import Batch, Plan, RowLayout, pack_pairs, pack_rows
from seq2seq.data.batching.planner import Planner
from seq2seq.data.batching.windows import WINDOW, PairSource, Window, Windows
from seq2seq.data.tokens.pairs import Pairs, select_pairs
from seq2seq.runtime.prefetch import Prefetched

BATCHES_AHEAD = 2


class DataPosition(NamedTuple):
    """The position of training in its data: the next batch is batch `index` of a window."""

    epoch: int = 0
    window: int = 0
    index: int = 0  # type: ignore[assignment]  # tuple.index is not used


class EpochSummary(NamedTuple):
    """The size of an epoch; estimated from one of its windows if it has several."""

    pairs: int  # that it takes; never estimated
    batches: int
    left_out: int  # pairs in the incomplete last batches of its windows
    useful: float  # share of the rows of both sides that is not padding
    exact: bool


def num_batches(plan: Plan, rows_per_batch: int) -> int:
    """The number of batches in a window of training.

    An incomplete last batch is dropped: its gradient would be noisier, and the update no smaller.
    A window smaller than one batch is one batch.
    """
    return max(1, plan.num_rows // rows_per_batch)


def pairs_left_out(plan: Plan, rows_per_batch: int) -> int:
    """The number of pairs in the incomplete last batch of a window, which training drops."""
    rows = num_batches(plan, rows_per_batch) * rows_per_batch
    return int(plan.offsets[-1] - plan.offsets[min(rows, plan.num_rows)])


def own_rows(rows_per_batch: int, multiple: int, process: int, processes: int) -> slice:
    """The rows of one of several processes, of a batch that is padded to a multiple of `multiple`.

    `multiple` is a multiple of `processes`: all devices × micro-batches.
    """
    size = -(-rows_per_batch // multiple) * multiple // processes
    return slice(process * size, (process + 1) * size)


def fixed_batches(pairs: Pairs, rows_per_batch: int, layout: RowLayout) -> Iterator[Batch]:
    """All pairs once, always in the same batches, for validation; the last one is padded with
    empty rows."""
    plan = pack_pairs(pairs.row_lengths, layout.capacities, key=(0,))
    for first in range(0, plan.num_rows, rows_per_batch):
        offsets = plan.offsets[first : first + rows_per_batch + 1]
        chosen = select_pairs(pairs, plan.pairs[offsets[0] : offsets[-1]])
        scale = None
        if chosen.loss_weights is not None:
            scale = loss_weight_scale(chosen.loss_weights, chosen.row_lengths[1])
        yield pack_rows(chosen, offsets - offsets[0], range(rows_per_batch), layout, scale)


class Batches:
    """All training batches: `batches[position]` is a pure function of seed and position."""

    def __init__(
        self,
        pairs: PairSource,
        rows_per_batch: int,
        layout: RowLayout,
        seed: int,
        rows: slice | None = None,
    ):
        """Only the `rows` of the global batch are made (None: all); those from `rows_per_batch` on
        are empty."""
        self.shape = rows_per_batch, *layout.capacities
        self._pairs, self._layout = pairs, layout
        self._rows = rows or slice(0, rows_per_batch)
        self._windows = Windows(pairs, layout.capacities, seed, WINDOW)
        self._planner = Planner(self._windows)

    def __getitem__(self, position: DataPosition) -> Batch:
        """The batch at a position, [rows of this process, …]. IndexError past the last batch."""
        window = self._planner.window(*position[:2])
        offsets = self._row_offsets(window, position.index)
        first, stop = np.minimum([self._rows.start, self._rows.stop], len(offsets) - 1)
        row_offsets = offsets[first : stop + 1]  # of the rows of this process
        start, end = row_offsets[0], row_offsets[-1]
        pairs = self._pairs.select(window.plan.pairs[start:end])
        rows = range(self._rows.start, self._rows.stop)
        scale = self._weight_scale(window, offsets)
        return pack_rows(pairs, row_offsets - start, rows, self._layout, scale)

    def pair_indices(self, position: DataPosition) -> Int64[np.ndarray, " P"]:
        """The indices in the corpus of the pairs of the global batch, in the order of its rows."""
        window = self._planner.lookup(*position[:2])
        offsets = self._row_offsets(window, position.index)
        return window.plan.pairs[offsets[0] : offsets[-1]]

    def next_position(self, position: DataPosition) -> DataPosition:
        """The position after this one: the next batch, or the first one of the next window."""
        return self._normalized(position._replace(index=position.index + 1))

    def summary(self, position: DataPosition) -> EpochSummary:
        """The size of the epoch of a position, from the window of this position."""
        rows, source, target = self.shape
        window, epoch = self._planner.lookup(*position[:2]), position.epoch
        num_pairs, exact = self._windows.num_pairs(epoch), self._windows.count(epoch) == 1
        scale = 1 if exact else num_pairs / window.num_pairs
        return EpochSummary(
            num_pairs,
            round(num_batches(window.plan, rows) * scale),
            round(pairs_left_out(window.plan, rows) * scale),
            window.tokens / (window.plan.num_rows * (source + target)),
            exact,
        )

    def iterate(
        self, position: DataPosition, place: Callable[[Batch], Any] = lambda batch: batch
    ) -> Prefetched[tuple[DataPosition, Any, DataPosition]]:
        """Endless items (position, place(batch), next position), starting at `position`.

        A thread makes and places the batches in advance. An error in the thread is raised here when
        its batch is due, with its traceback and position. A position past the end of its window is
        the start of the next window.
        """
        return Prefetched(self._generate(position, place), BATCHES_AHEAD)

    def close(self) -> None:
        """End the process that plans windows, if there is one."""
        self._planner.close()

    def _generate(
        self, position: DataPosition, place: Callable[[Batch], Any]
    ) -> Iterator[tuple[DataPosition, Any, DataPosition]]:
        while True:
            try:
                position = self._normalized(position)
                batch = self[position]
                self._pairs.release()
                item = position, place(batch), self.next_position(position)
            except Exception as error:
                epoch, window, index = position
                error.add_note(f"while making batch {index} of window {window} of epoch {epoch}")
                raise
            yield item
            position = item[2]

    def _normalized(self, position: DataPosition) -> DataPosition:
        """The position itself, or the start of the next window or epoch if it is past the end."""
        epoch, window, index = position
        if window >= self._windows.count(epoch):
            return DataPosition(epoch + 1)
        if index >= num_batches(self._planner.window(epoch, window).plan, self.shape[0]):
            return DataPosition(*self._planner.following(epoch, window))
        return position

    def _row_offsets(self, window: Window, index: int) -> Int64[np.ndarray, " offsets"]:
        """The offsets in `window.plan.pairs` of the rows of its batch `index`."""
        rows, batches = self.shape[0], num_batches(window.plan, self.shape[0])
        if not 0 <= index < batches:
            raise IndexError(f"batch {index} is not in its window: expected 0 to {batches - 1}")
        return window.plan.offsets[index * rows : (index + 1) * rows + 1]

    def _weight_scale(self, window: Window, offsets: np.ndarray) -> float | None:
        """The scale of the loss weights in the global batch; None without loss weights."""
        index = window.plan.pairs[offsets[0] : offsets[-1]]
        weights = self._pairs.loss_weights(index)
        if weights is None:
            return None
        return loss_weight_scale(weights, self._pairs.row_lengths(index)[1])

"""Token ids of a corpus, in memory or in files that are mapped into memory.

All sequences are one Ragged: sequence 2i is the source of pair i, sequence 2i + 1 its target. The
files of a store are .npy files of one dimension:

    ids.npy           uint16, or int32 if an id is at least 65,536
    offsets.npy       int64, 2 · pairs + 1
    numbers.npy       int64, the line or example of each pair in its corpus
    loss_weights.npy  float32, of each pair; missing if all are 1
    store.json        the key, facts and chunk hashes; written last (`store_files.py`)
    progress.jsonl    the journal of a store that is not complete (`store_writer.py`)
"""

import json
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int64, Num

from seq2seq.data.tokens.pairs import Pairs, Ragged, Sides, range_places
from seq2seq.data.tokens.store_files import INDEX, MappedArray, MemoryArray, is_locked, read_index

JOURNAL = "progress.jsonl"
IDS, OFFSETS, NUMBERS, WEIGHTS = "ids.npy", "offsets.npy", "numbers.npy", "loss_weights.npy"
LENGTHS_AT_ONCE = 1 << 17  # pairs; bounds the memory for temporary arrays
Array = np.ndarray | MappedArray


class TokenStore:
    """The pairs of a corpus as token ids."""

    def __init__(
        self, ids: Array, offsets: Array, numbers: Array, loss_weights: Array | None = None
    ):
        """Of n pairs: `offsets` [2n + 1], `numbers` [n], `loss_weights` [n] or None: all are 1."""
        self._ids, self._offsets, self._numbers = map(_readable, (ids, offsets, numbers))
        self._loss_weights = None if loss_weights is None else _readable(loss_weights)

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self._numbers.values)

    @property
    def has_loss_weights(self) -> bool:
        """Whether the pairs have loss weights; without, all are 1."""
        return self._loss_weights is not None

    def row_lengths(self, index: Int[np.ndarray, " P"]) -> Sides:
        """The tokens of the pairs `index` in a row of either side, the end token included, int64.

        This and the other methods that read raise DamagedStore if a file was damaged.
        """
        lengths = np.empty((2, len(index)), np.int64)
        for start in range(0, len(index), LENGTHS_AT_ONCE):
            at_once = slice(start, start + LENGTHS_AT_ONCE)
            lengths[:, at_once] = np.diff(self._bounds(index[at_once]), axis=0) + 1
        return lengths[0], lengths[1]

    def select(self, index: Int[np.ndarray, " P"]) -> Pairs:
        """The pairs `index`, in this order, with int32 ids."""
        bounds = self._bounds(index)  # [3, P]
        lengths = np.diff(bounds, axis=0)  # [2, P]
        offsets = np.zeros((2, len(index) + 1), np.int64)
        np.cumsum(lengths, axis=1, out=offsets[:, 1:])
        ids = [np.empty(total, np.int32) for total in offsets[:, -1].tolist()]
        for group in self._ids.groups(bounds[0], bounds[2]):
            for side in (0, 1):
                counts = lengths[side][group]
                stored = range_places(bounds[side][group], counts)
                selected = range_places(offsets[side][:-1][group], counts)
                ids[side][selected] = self._ids.values[stored]
        source, target = (Ragged(*side) for side in zip(ids, offsets, strict=True))
        return Pairs(source, target, loss_weights=self.loss_weights(index))

    def numbers(self, index: Int[np.ndarray, " P"]) -> Int64[np.ndarray, " P"]:
        """The line or example of each pair of `index` in its corpus."""
        return _values(self._numbers, index)

    def loss_weights(self, index: Int[np.ndarray, " P"]) -> Float32[np.ndarray, " P"] | None:
        """The loss weight of each pair of `index`; None if all are 1."""
        return None if self._loss_weights is None else _values(self._loss_weights, index)

    def release(self) -> None:
        """Unmap the resident pages of mapped files, so that memory use stays bounded."""
        for array in (self._ids, self._offsets, self._numbers, self._loss_weights):
            if array is not None:
                array.release()

    def _bounds(self, index: Int[np.ndarray, " P"]) -> Int64[np.ndarray, "3 P"]:
        """Where each source starts in the ids, where its target starts and ends."""
        first = 2 * np.asarray(index, np.int64)
        bounds = np.empty((3, len(first)), np.int64)
        for group in self._offsets.groups(first, first + 3):
            for i in range(3):
                bounds[i, group] = self._offsets.values[first[group] + i]
        return bounds


class _MappedStore(TokenStore):
    """A TokenStore of the files of a directory."""

    def __init__(self, directory: Path):
        index, file = read_index(directory)
        weakref.finalize(self, os.close, file)
        arrays = {
            name: MappedArray(directory / name, entry["bytes"], entry["sha256"])
            for name, entry in index["files"].items()
        }
        super().__init__(arrays[IDS], arrays[OFFSETS], arrays[NUMBERS], arrays.get(WEIGHTS))
        self.facts = index["facts"]


def open_store(directory: Path) -> tuple[TokenStore, dict[str, Any]]:
    """A complete store whose files are mapped, and the facts that its writer was given.

    DamagedStore if it is missing, incomplete or damaged; OSError if it cannot be read. A chunk is
    verified when it is first read.
    """
    store = _MappedStore(directory)
    return store, store.facts


def read_key(directory: Path) -> Any:
    """The key of a store or of an unfinished one; None if it cannot be read."""
    for name in (INDEX, JOURNAL):
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(directory / name, encoding="ascii") as file:
                return json.loads(file.read() if name == INDEX else file.readline())["key"]
    return None


def in_use(directory: Path) -> bool:
    """Whether a process reads or writes the store, or this is unknown."""
    return any(is_locked(directory / name) for name in (INDEX, JOURNAL))


def memory_store(blocks: Sequence[Pairs], numbers: Sequence[Int64[np.ndarray, " _"]]) -> TokenStore:
    """A TokenStore in memory of the pairs of all blocks in order, and the numbers of each."""
    sides = [side for pairs in blocks for side in (pairs.source, pairs.target)]
    dtype = id_dtype(max((int(side.ids.max(initial=0)) for side in sides), default=0))
    sequences = [interleaved(pairs, dtype) for pairs in blocks]
    lengths = [np.zeros(1, np.int64), *(block.lengths for block in sequences)]
    weights = [pairs.loss_weights for pairs in blocks if pairs.loss_weights is not None]
    return TokenStore(
        np.concatenate([np.zeros(0, dtype), *(block.ids for block in sequences)]),
        np.cumsum(np.concatenate(lengths)),
        np.concatenate([np.zeros(0, np.int64), *numbers]),
        np.concatenate(weights) if weights else None,
    )


def id_dtype(largest_id: int) -> np.dtype:
    """The dtype of stored ids."""
    return np.dtype("<u2" if largest_id < 1 << 16 else "<i4")


def interleaved(pairs: Pairs, dtype: np.dtype) -> Ragged:
    """Both sides as one Ragged: sequence 2i is source i, sequence 2i + 1 is target i."""
    lengths = np.stack([pairs.source.lengths, pairs.target.lengths], axis=1).ravel()
    is_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    ids = np.empty(len(is_source), dtype)
    ids[is_source], ids[~is_source] = pairs.source.ids, pairs.target.ids
    return Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]))


def _readable(array: Array) -> MappedArray | MemoryArray:
    return array if isinstance(array, MappedArray) else MemoryArray(array)


def _values(
    array: MappedArray | MemoryArray, index: Int[np.ndarray, " n"]
) -> Num[np.ndarray, " n"]:
    index = np.asarray(index, np.int64)
    values = np.empty(len(index), array.values.dtype)
    for group in array.groups(index, index + 1):
        values[group] = array.values[index[group]]
    return values

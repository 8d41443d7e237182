"""Token ids of a corpus in files that are mapped into memory, so that their size does not matter.

A store is a directory:
    store.json            the key of the store, and name, pairs and sha256 of each shard
    00000.safetensors, …  shards of at most SHARD_PAIRS pairs
A shard holds the arrays source, source_offsets, target, target_offsets, numbers (the line of each
pair) and, with loss weights, loss_weights. The source of pair i is
source[source_offsets[i]:source_offsets[i + 1]], the target likewise. Ids are uint16 if they fit,
else int32.

store.json is written last, so a directory with it is complete. A shard is verified when it is first
read.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.pairs import Pairs, Ragged, select_sequences
from runtime.errors import DATA, UserError
from runtime.files import file_sha256, write_atomic

SHARD_PAIRS = 1 << 17
INDEX = "store.json"
DTYPES = {"U16": np.uint16, "U32": np.uint32, "I32": np.int32, "I64": np.int64, "F32": np.float32}


class Shard(NamedTuple):
    """One file of a store."""

    name: str
    pairs: int
    sha256: str


def write_shard(directory: Path, number: int, pairs: Pairs, numbers: np.ndarray) -> Shard:
    """Write one shard; `numbers` are the lines of the pairs. OSError if the disk is full."""
    from safetensors.numpy import save

    arrays = {
        "source": _small(pairs.source.ids),
        "source_offsets": pairs.source.offsets.astype(np.uint32),
        "target": _small(pairs.target.ids),
        "target_offsets": pairs.target.offsets.astype(np.uint32),
        "numbers": numbers.astype(np.int64),
    }
    if pairs.loss_weights is not None:
        arrays["loss_weights"] = pairs.loss_weights
    content, name = save(arrays), f"{number:05}.safetensors"
    write_atomic(directory / name, content)
    return Shard(name, len(numbers), hashlib.sha256(content).hexdigest())


def finish_store(directory: Path, key: dict[str, Any], shards: Sequence[Shard]) -> None:
    """Write store.json: the store is complete."""
    index = {"key": key, "shards": [shard._asdict() for shard in shards]}
    write_atomic(directory / INDEX, json.dumps(index, indent=1) + "\n")


class TokenStore:
    """The pairs of a complete store; reads only what is asked for."""

    def __init__(self, directory: Path):
        """UserError(DATA) if store.json is missing or damaged."""
        self._directory = directory
        try:
            index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
            self.key = index["key"]
            self._shards = [Shard(**one) for one in index["shards"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(INDEX, str(error)) from None
        self._ends = np.cumsum([shard.pairs for shard in self._shards], dtype=np.int64)
        self._open: dict[int, dict[str, np.ndarray]] = {}

    def __len__(self) -> int:
        """The number of pairs."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def slots(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of the pairs `index` in a row of either side, the end token included."""
        source, target = np.empty((2, len(index)), np.int64)
        for shard, places, local in self._by_shard(index):
            for lengths, side in ((source, "source"), (target, "target")):
                offsets = shard[f"{side}_offsets"]
                lengths[places] = offsets[local + 1].astype(np.int64) - offsets[local] + 1
        return source, target

    def select(self, index: np.ndarray) -> Pairs:
        """The pairs `index`, in this order."""
        parts, order, weights = [], [], []
        for shard, places, local in self._by_shard(index):
            sides = [Ragged(shard[side], shard[f"{side}_offsets"]) for side in ("source", "target")]
            parts.append([select_sequences(side, local) for side in sides])
            order.append(places)
            if "loss_weights" in shard:
                weights.append(shard["loss_weights"][local])
        back = np.argsort(np.concatenate(order)) if order else np.zeros(0, np.int64)
        source, target = (
            select_sequences(_joined([part[side] for part in parts]), back) for side in (0, 1)
        )
        return Pairs(
            source, target, loss_weights=np.concatenate(weights)[back] if weights else None
        )

    def numbers(self, index: np.ndarray) -> np.ndarray:
        """The line of each pair of `index` in its file."""
        found = np.empty(len(index), np.int64)
        for shard, places, local in self._by_shard(index):
            found[places] = shard["numbers"][local]
        return found

    def _by_shard(self, index):
        """(arrays, places in `index`, indices within the shard) of each shard that is needed."""
        if not len(index):
            return
        shard_of = np.searchsorted(self._ends, index, side="right")
        order = np.argsort(shard_of, kind="stable")
        needed, starts = np.unique(shard_of[order], return_index=True)
        for number, places in zip(needed.tolist(), np.split(order, starts[1:]), strict=True):
            first = int(self._ends[number]) - self._shards[number].pairs
            yield self._arrays(number), places, index[places] - first

    def _arrays(self, number: int) -> dict[str, np.ndarray]:
        """The mapped arrays of a shard, which is verified at its first use."""
        if number not in self._open:
            shard = self._shards[number]
            path = self._directory / shard.name
            try:
                if file_sha256(path) != shard.sha256:
                    raise self._damaged(shard.name, f"its sha256 differs from that in {INDEX}")
                self._open[number] = mapped_arrays(path)
            except OSError as error:
                raise self._damaged(shard.name, error.strerror or str(error)) from None
        return self._open[number]

    def _damaged(self, name: str, reason: str) -> UserError:
        return UserError(
            DATA,
            f"{self._directory / name} is damaged ({reason}): expected a complete store of token "
            "ids; delete the directory, and the next start writes it again",
        )


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, mapped into memory and read-only."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    size = os.path.getsize(path) - 8 - length
    data = np.memmap(path, np.uint8, "r", 8 + length, (size,)) if size else np.zeros(0, np.uint8)
    arrays = {}
    for name, one in header.items():
        start, stop = one["data_offsets"]
        arrays[name] = np.asarray(data[start:stop]).view(DTYPES[one["dtype"]])
    return arrays


def _small(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.uint16) if not len(ids) or ids.max() < 1 << 16 else ids.astype(np.int32)


def _joined(parts: list[Ragged]) -> Ragged:
    """Several Ragged in sequence, with int32 ids."""
    lengths = [part.lengths for part in parts] or [np.zeros(0, np.int64)]
    ids = [part.ids.astype(np.int32) for part in parts] or [np.zeros(0, np.int32)]
    return Ragged(np.concatenate(ids), np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))

"""The training pairs: the token ids of the parts of a mixture, addressed by one index.

Pair i of the mixture is a pair of the part whose range contains i: the parts follow each other. The
order of training is another one (seq2seq/data/batching/order.py).
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from seq2seq.data.corpora.counts import Counts
from seq2seq.data.tokens.pairs import Pairs, Ragged, Sides, concatenate_sequences, select_sequences
from seq2seq.data.tokens.token_store import TokenStore


class Part(NamedTuple):
    """One corpus of a mixture: its number of pairs, and how often an epoch takes each of them."""

    num_pairs: int
    weight: float = 1.0

    def taken_before(self, epoch: int) -> int:
        """The number of pairs that the epochs before `epoch` took; exact for any weight."""
        return math.floor(epoch * Fraction(str(self.weight)) * self.num_pairs)


class EncodedPart(NamedTuple):
    """The token ids of one part of a mixture."""

    names: tuple[str, str]  # of source and target: files or data sets, possibly identical
    weight: float  # how often an epoch takes each pair
    store: TokenStore
    counts: Counts  # of the kept and dropped lines
    hashes: dict[str, str]  # file or data set → sha256 of all its lines


class TrainingPairs:
    """The pairs of all parts; reads only the requested pairs."""

    def __init__(self, encoded: Sequence[EncodedPart]):
        self.encoded = tuple(encoded)
        self.parts = tuple(Part(len(part.store), part.weight) for part in self.encoded)
        self._ends = np.cumsum([part.num_pairs for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def row_lengths(self, index: Int[np.ndarray, " P"]) -> Sides:
        """The tokens of the pairs `index` in a row of either side, the end token included."""
        source, target = np.empty((2, len(index)), np.int64)
        for part, places, local in self._by_part(index):
            source[places], target[places] = part.store.row_lengths(local)
        return source, target

    def select(self, index: Int[np.ndarray, " P"]) -> Pairs:
        """The pairs `index`, in this order; loss weights are 1 in a part without them."""
        if len(self.encoded) == 1:
            return self.encoded[0].store.select(index)
        by_part = list(self._by_part(index))
        selected = [part.store.select(local) for part, _, local in by_part]
        places_by_part = [np.zeros(0, np.int64), *(places for _, places, _ in by_part)]
        back = np.argsort(np.concatenate(places_by_part))
        return Pairs(
            _in_order([pairs.source for pairs in selected], back),
            _in_order([pairs.target for pairs in selected], back),
            self.loss_weights(index),
        )

    def loss_weights(self, index: Int[np.ndarray, " P"]) -> Float32[np.ndarray, " P"] | None:
        """The loss weights of the pairs `index`, 1 in a part without them; None if no part
        has them."""
        if not any(part.store.has_loss_weights for part in self.encoded):
            return None
        weights = np.ones(len(index), np.float32)
        for part, places, local in self._by_part(index):
            of_part = part.store.loss_weights(local)
            if of_part is not None:
                weights[places] = of_part
        return weights

    @property
    def counts(self) -> Counts:
        """The counts of all parts together."""
        return reduce(Counts.merged, [part.counts for part in self.encoded])

    @property
    def hashes(self) -> dict[str, str]:
        """File or data set → sha256 of all its lines."""
        return {name: sha for part in self.encoded for name, sha in part.hashes.items()}

    def release(self) -> None:
        """Return the memory of pages of files that have been read."""
        for part in self.encoded:
            part.store.release()

    def locate(self, index: Int[np.ndarray, " P"]) -> list[str]:
        """The file and line of each pair of `index`, such as train.de:777."""
        located = np.empty(len(index), object)
        for part, places, local in self._by_part(index):
            located[places] = [f"{part.names[0]}:{n}" for n in part.store.numbers(local)]
        return located.tolist()

    def _by_part(
        self, index: Int[np.ndarray, " P"]
    ) -> Iterator[tuple[EncodedPart, Int[np.ndarray, " part"], Int[np.ndarray, " part"]]]:
        """(part, places in `index`, indices within the part) of each part that has such pairs."""
        if len(self.encoded) == 1:
            yield self.encoded[0], np.arange(len(index)), index
            return
        part_of = np.searchsorted(self._ends, index, side="right")
        for number, part in enumerate(self.encoded):
            if len(places := np.flatnonzero(part_of == number)):
                first = self._ends[number] - self.parts[number].num_pairs
                yield part, places, index[places] - first


def _in_order(sides: list[Ragged], order: Int[np.ndarray, " n"]) -> Ragged:
    return select_sequences(concatenate_sequences(sides), order)

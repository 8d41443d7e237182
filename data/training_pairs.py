"""The training pairs: the token ids of the parts of a mixture, addressed by one index.

Pair i of the mixture is a pair of the part whose range contains i: the parts follow each other. The
order of training is another one (data/order.py).
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from data.counts import Counts
from data.order import Part
from data.pairs import Pairs, Ragged, concatenate_sequences, select_sequences
from data.token_store import TokenStore


class EncodedPart(NamedTuple):
    """The token ids of one part of a mixture."""

    names: tuple[str, str]  # of source and target: files or data sets, maybe the same
    weight: float  # how often an epoch takes each pair
    store: TokenStore
    counts: Counts  # of the kept and dropped lines
    hashes: dict[str, str]  # file or data set → sha256 of all its lines


class TrainingPairs:
    """The pairs of all parts; reads only the requested pairs."""

    def __init__(self, encoded: Sequence[EncodedPart]):
        self.encoded = tuple(encoded)
        self.parts = tuple(Part(len(one.store), one.weight) for one in self.encoded)
        self._ends = np.cumsum([part.count for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def slots(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of the pairs `index` in a row of either side, the end token included."""
        source, target = np.empty((2, len(index)), np.int64)
        for one, places, local in self._by_part(index):
            source[places], target[places] = one.store.slots(local)
        return source, target

    def select(self, index: np.ndarray) -> Pairs:
        """The pairs `index`, in this order; loss weights are 1 in a part without them."""
        if len(self.encoded) == 1:
            return self.encoded[0].store.select(index)
        chosen = list(self._by_part(index))
        selected = [one.store.select(local) for one, _, local in chosen]
        taken = [np.zeros(0, np.int64), *(places for _, places, _ in chosen)]
        back = np.argsort(np.concatenate(taken))
        return Pairs(
            _in_order([pairs.source for pairs in selected], back),
            _in_order([pairs.target for pairs in selected], back),
            self.loss_weights(index),
        )

    def loss_weights(self, index: np.ndarray) -> np.ndarray | None:
        """The loss weights of the pairs `index`, float32, 1 in a part without them; None if no part
        has them."""
        if not any(one.store.has_loss_weights for one in self.encoded):
            return None
        weights = np.ones(len(index), np.float32)
        for one, places, local in self._by_part(index):
            if one.store.has_loss_weights:
                weights[places] = one.store.loss_weights(local)
        return weights

    @property
    def counts(self) -> Counts:
        """The counts of all parts together."""
        return reduce(Counts.merged, [one.counts for one in self.encoded])

    @property
    def hashes(self) -> dict[str, str]:
        """File or data set → sha256 of all its lines."""
        return {name: sha for one in self.encoded for name, sha in one.hashes.items()}

    def release(self) -> None:
        """Return the memory of pages of files that have been read."""
        for one in self.encoded:
            one.store.release()

    def locate(self, index: np.ndarray) -> list[str]:
        """The file and line of each pair of `index`, such as train.de:777."""
        places = np.empty(len(index), object)
        for one, at, local in self._by_part(index):
            places[at] = [f"{one.names[0]}:{number}" for number in one.store.numbers(local)]
        return places.tolist()

    def _by_part(self, index: np.ndarray) -> Iterator[tuple[EncodedPart, np.ndarray, np.ndarray]]:
        """(part, places in `index`, indices within the part) of each part that has such pairs."""
        if len(self.encoded) == 1:
            yield self.encoded[0], np.arange(len(index)), index
            return
        part_of = np.searchsorted(self._ends, index, side="right")
        for number, one in enumerate(self.encoded):
            if len(places := np.flatnonzero(part_of == number)):
                first = self._ends[number] - self.parts[number].count
                yield one, places, index[places] - first


def _in_order(sides: list[Ragged], order: np.ndarray) -> Ragged:
    return select_sequences(concatenate_sequences(sides), order)

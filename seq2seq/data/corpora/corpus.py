"""The text of a corpus: pairs of sentences with their origins and the counts of dropped pairs."""

from array import array
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from seq2seq.data.corpora.counts import EXAMPLES, Counts, value_range


class CollectedBlock(NamedTuple):
    """The usable pairs of a block: `source[i]` and `target[i]` are a pair."""

    source: list[str]
    target: list[str]
    numbers: array  # the line (from 1) of pair i, or the number of its example
    loss_weights: array | None  # of each pair, float32; None: 1.0 for all
    counts: Counts

    def reversed(self) -> "CollectedBlock":
        """The same pairs with source and target swapped."""
        return self._replace(source=self.target, target=self.source)

    def tagged(self, tag: str) -> "CollectedBlock":
        """The same pairs with `tag` and a space before each source."""
        return self._replace(source=[f"{tag} {text}" for text in self.source])

    def without_duplicates(
        self, occurs_first: Bool[np.ndarray, " P"], name: str
    ) -> "CollectedBlock":
        """The pairs that are True in `occurs_first` (DuplicateFilter.first_occurrences); the others
        are counted as duplicates, with their places in the file or data set `name`."""
        kept = occurs_first.tolist()
        numbers = array("q", compress(self.numbers, kept))
        if len(numbers) == len(kept):
            return self
        repeated = np.flatnonzero(~occurs_first)
        places = [f"{name}:{self.numbers[i]}" for i in repeated[:EXAMPLES]]
        duplicates = Counts(-len(repeated), {"duplicate": len(repeated)}, {"duplicate": places})
        weights = self.loss_weights and array("f", compress(self.loss_weights, kept))
        counts = self.counts._replace(loss_weights=value_range(weights or ()))
        return CollectedBlock(
            list(compress(self.source, kept)),
            list(compress(self.target, kept)),
            numbers,
            weights,
            counts.merged(duplicates),
        )


class Origin(NamedTuple):
    """The origin of consecutive pairs of a corpus, and how often an epoch takes each of them."""

    names: tuple[str, str]  # of source and target: files or data sets, possibly identical
    num_pairs: int
    weight: float = 1.0


class Corpus(NamedTuple):
    """Pairs of sentences in the order of their files: `source[i]` and `target[i]` are a pair."""

    source: list[str]
    target: list[str]
    numbers: array  # the line (from 1) of pair i, or the number of its example
    origins: tuple[Origin, ...]  # of the pairs, in order
    counts: Counts  # of its lines
    fingerprints: dict[str, str]  # file or data set → sha256 of all its lines
    loss_weights: array | None = None  # of each pair, float32; None: 1.0 for all

    def where(self, index: int) -> str:
        """The origin of pair `index`, as "train.de:777"."""
        ends = np.cumsum([origin.num_pairs for origin in self.origins])
        origin = self.origins[int(np.searchsorted(ends, index, side="right"))]
        return f"{origin.names[0]}:{self.numbers[index]}"

    @property
    def names(self) -> list[str]:
        """The distinct files and data sets."""
        return list(dict.fromkeys(name for origin in self.origins for name in origin.names))


def corpus_of(
    blocks: list[CollectedBlock], origins: tuple[Origin, ...], fingerprints: dict[str, str]
) -> Corpus:
    """The pairs of all blocks, in order."""
    counts = Counts()
    source, target, numbers = [], [], array("q")
    for block in blocks:
        source += block.source
        target += block.target
        numbers += block.numbers
        counts = counts.merged(block.counts)
    return Corpus(
        source,
        target,
        numbers,
        origins,
        counts,
        fingerprints,
        _concatenated_weights(blocks),
    )


def _concatenated_weights(blocks: list[CollectedBlock]) -> array | None:
    if all(block.loss_weights is None for block in blocks):
        return None
    return array(
        "f",
        chain.from_iterable(block.loss_weights or [1.0] * len(block.source) for block in blocks),
    )

"""Training pairs in memory, as Batches and Windows read them; they record what is read."""

from collections import Counter

import pytest

from seq2seq.data.batching import batches
from seq2seq.data.batching.batches import Batches
from seq2seq.data.tokens.pairs import Pairs, select_pairs
from seq2seq.data.tokens.training_pairs import Part


class MemoryPairs:
    """`pairs` as one corpus, or as `parts` of a mixture."""

    def __init__(self, pairs: Pairs, parts: tuple[Part, ...] = ()):
        self.pairs = pairs
        self.parts = parts or (Part(len(pairs.source.offsets) - 1),)
        self.selected: list[int] = []  # the pairs whose tokens were read
        self.calls: Counter[str] = Counter()

    def row_lengths(self, index):
        self.calls["row_lengths"] += 1
        return tuple(lengths[index] for lengths in self.pairs.row_lengths)

    def loss_weights(self, index):
        weights = self.pairs.loss_weights
        return None if weights is None else weights[index]

    def select(self, index):
        self.selected += index.tolist()
        return select_pairs(self.pairs, index)

    def release(self):
        self.calls["release"] += 1


def batches_in_windows(size, *arguments, **options):
    """Batches of these arguments whose windows have `size` slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WINDOW", size)
        return Batches(*arguments, **options)

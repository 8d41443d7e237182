"""Training pairs in memory, as Batches and Windows read them; they record what is read."""

from collections import Counter

from data.order import Part
from data.pairs import Pairs, select_pairs


class MemoryPairs:
    """`pairs` as one corpus, or as `parts` of a mixture."""

    def __init__(self, pairs: Pairs, parts: tuple[Part, ...] = ()):
        self.pairs = pairs
        self.parts = parts or (Part(len(pairs.source.offsets) - 1),)
        self.selected: list[int] = []  # the pairs whose tokens were read
        self.calls: Counter[str] = Counter()

    def slots(self, index):
        self.calls["slots"] += 1
        return tuple(slots[index] for slots in self.pairs.slots)

    def loss_weights(self, index):
        weights = self.pairs.loss_weights
        return None if weights is None else weights[index]

    def select(self, index):
        self.selected += index.tolist()
        return select_pairs(self.pairs, index)

    def release(self):
        self.calls["release"] += 1

"""Windows of an epoch: consecutive slots whose pairs are packed into rows on their own.

A window is planned from its slots only, so planning needs bounded time and memory at any place of
an epoch of any size, and any window can be planned at any time on any machine.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from data.order import EpochOrder, Part
from data.packing import Plan, Sides, pack_pairs
from data.pairs import Pairs, select_pairs

WINDOW = 1 << 20  # slots; the incomplete last batch of each window is dropped
SAMPLED_WINDOW = 1 << 17  # with subword sampling, where a window holds its token ids
LOOK_UPS = 64  # parts of a window whose lengths are looked up one after another

Sampler = Callable[[Pairs, tuple[int, ...]], Pairs]  # (pairs, key) → the same pairs, resegmented


class PairSource(Protocol):
    """The training pairs of a run, which need not be in memory. Picklable."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The corpora of the mixture, in the order of the indices of their pairs."""

    def slots(self, index: np.ndarray) -> Sides:
        """The tokens of these pairs in a row of either side, ends included."""

    def loss_weights(self, index: np.ndarray) -> np.ndarray | None:
        """The loss weights of these pairs, float32; None if all are 1."""

    def select(self, index: np.ndarray) -> Pairs:
        """The token ids and loss weights of these pairs."""

    def release(self) -> None:
        """Release the memory of what has been read."""


class Window(NamedTuple):
    """The rows of a window."""

    plan: Plan  # its pairs are indices of the corpus
    slots: int  # the number of its pairs
    tokens: int  # in all of its rows, both sides, without padding
    sampled: Pairs | None = None  # the pairs in the order of `plan.pairs`, if they are sampled


def num_windows(slots: int, size: int = WINDOW) -> int:
    """The number of windows of an epoch. A rest below half a window belongs to the last one."""
    return max(1, (slots + size // 2) // size)


def window_slots(slots: int, window: int, size: int = WINDOW) -> np.ndarray:
    """The slots of a window of an epoch of `slots` slots."""
    last = window == num_windows(slots, size) - 1
    return np.arange(window * size, slots if last else (window + 1) * size)


class Windows(NamedTuple):
    """The windows of all epochs of a corpus; picklable, so that another process can plan them."""

    pairs: PairSource
    capacities: tuple[int, int]  # source and target tokens of a row
    seed: int
    size: int  # slots of a window
    sampler: Sampler | None = None

    def slots(self, epoch: int) -> int:
        """The number of pairs that an epoch takes."""
        return _num_slots(self.pairs.parts, epoch)

    def count(self, epoch: int) -> int:
        """The number of windows of an epoch."""
        return num_windows(self.slots(epoch), self.size)

    def plan(self, epoch: int, window: int) -> Window:
        """Packs the pairs of a window into rows. ValueError if a pair is longer than a row.

        A sampler is called with the key (seed, epoch, window).
        """
        key = self.seed, epoch, window
        order = EpochOrder(self.pairs.parts, self.seed, epoch)
        index, sampled = order(window_slots(order.slots, window, self.size)), None
        if self.sampler is None:
            sides = lengths_in_order(self.pairs, index)
        else:
            sampled = self.sampler(self.pairs.select(index), key)
            sides = sampled.slots
            self.pairs.release()
        packed = pack_pairs(sides, self.capacities, key)
        if sampled is not None:
            sampled = select_pairs(sampled, packed.pairs)
        plan = Plan(index[packed.pairs], packed.offsets)
        return Window(plan, len(index), sum(int(side.sum()) for side in sides), sampled)


@lru_cache(maxsize=8)
def _num_slots(parts: tuple[Part, ...], epoch: int) -> int:
    return EpochOrder(parts, 0, epoch).slots


def lengths_in_order(pairs: PairSource, index: np.ndarray) -> Sides:
    """`pairs.slots(index)`, looked up in ascending order with a release after each part.

    The pairs of a window are spread over the whole corpus. In ascending order each part reads a
    small range of the stored offsets, so the memory of the other ranges can be released.
    """
    sides = np.empty((2, len(index)), np.int32)
    for part in np.array_split(np.argsort(index), LOOK_UPS):
        if len(part):
            sides[:, part] = pairs.slots(index[part])
            pairs.release()
    return sides[0], sides[1]

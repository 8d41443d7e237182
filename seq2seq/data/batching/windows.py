"""Windows of an epoch: consecutive slots whose pairs are packed into rows on their own.

A window is planned from its slots only, so planning needs bounded time and memory at any place of
an epoch of any size, and any window can be planned at any time on any machine.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int

from seq2seq.data.batching.order import EpochOrder
from seq2seq.data.batching.packing import Plan, pack_pairs
from seq2seq.data.tokens.pairs import Pairs, Sides
from seq2seq.data.tokens.training_pairs import Part

WINDOW = 1 << 20  # slots; the incomplete last batch of each window is dropped
LOOK_UPS = 64  # groups of pairs of a window whose lengths are looked up one after another


@runtime_checkable
class PairSource(Protocol):
    """The training pairs of a run, which need not be in memory."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The corpora of the mixture, in the order of the indices of their pairs."""

    def row_lengths(self, index: Int[np.ndarray, " P"]) -> Sides:
        """The tokens of these pairs in a row of either side, ends included."""

    def loss_weights(self, index: Int[np.ndarray, " P"]) -> Float32[np.ndarray, " P"] | None:
        """The loss weights of these pairs; None if all are 1."""

    def select(self, index: Int[np.ndarray, " P"]) -> Pairs:
        """The token ids and loss weights of these pairs."""

    def release(self) -> None:
        """Release the memory of what has been read."""


class Window(NamedTuple):
    """The rows of a window."""

    plan: Plan  # its pairs are indices of the corpus
    num_pairs: int
    tokens: int  # in all of its rows, both sides, without padding


def num_windows(num_pairs: int, size: int) -> int:
    """The number of windows of an epoch. A remainder under half a window joins the last one."""
    return max(1, (num_pairs + size // 2) // size)


def window_slots(num_pairs: int, window: int, size: int) -> Int[np.ndarray, " n"]:
    """The slots of a window of an epoch that takes `num_pairs` pairs."""
    last = window == num_windows(num_pairs, size) - 1
    return np.arange(window * size, num_pairs if last else (window + 1) * size)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`."""
    return function(*arguments)


class Windows(NamedTuple):
    """The windows of all epochs of a corpus."""

    pairs: PairSource
    capacities: tuple[int, int]  # source and target tokens of a row
    seed: int
    size: int  # slots of a window

    def num_pairs(self, epoch: int) -> int:
        """The number of pairs that an epoch takes."""
        return _num_pairs(self.pairs.parts, epoch)

    def count(self, epoch: int) -> int:
        """The number of windows of an epoch."""
        return num_windows(self.num_pairs(epoch), self.size)

    def plan(self, epoch: int, window: int, run: Callable[..., Any] = call) -> Window:
        """Packs the pairs of a window into rows. ValueError if a pair is longer than a row.

        `run` calls a function, possibly in another process: of the corpus, its arguments have only
        the lengths of the window's pairs.
        """
        order = EpochOrder(self.pairs.parts, self.seed, epoch)
        index = order(window_slots(order.num_pairs, window, self.size))
        sides = row_lengths_in_order(self.pairs, index)
        packed = run(packed_window, sides, self.capacities, (self.seed, epoch, window))
        return packed._replace(plan=packed.plan._replace(pairs=index[packed.plan.pairs]))


def packed_window(sides: Sides, capacities: tuple[int, int], key: tuple[int, ...]) -> Window:
    """A window of pairs of these lengths; the pairs of its plan are places in the window."""
    plan = pack_pairs(sides, capacities, key)
    return Window(plan, len(sides[0]), sum(int(side.sum()) for side in sides))


@lru_cache(maxsize=8)
def _num_pairs(parts: tuple[Part, ...], epoch: int) -> int:
    return EpochOrder(parts, 0, epoch).num_pairs


def row_lengths_in_order(pairs: PairSource, index: Int[np.ndarray, " P"]) -> Sides:
    """`pairs.row_lengths(index)`, looked up in ascending order with a release after each group.

    The pairs of a window are spread over the whole corpus. In ascending order each group reads a
    small range of the stored offsets, so the memory of the other ranges can be released.
    """
    sides = np.empty((2, len(index)), np.int32)
    for group in np.array_split(np.argsort(index), LOOK_UPS):
        if len(group):
            sides[:, group] = pairs.row_lengths(index[group])
            pairs.release()
    return sides[0], sides[1]

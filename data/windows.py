"""Windows of an epoch: consecutive slots whose pairs are packed into rows on their own.

A window is planned from its slots only, so planning needs bounded time and memory at any place of
an epoch of any size, and any window can be planned at any time on any machine.
"""

from collections.abc import Callable

import numpy as np

from data.batches import SORTED_PAIRS, Plan, first_fit
from data.order import EpochOrder
from data.pairs import ragged

WINDOW = 1 << 20  # slots; each window leaves its incomplete last batch out

Slots = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def num_windows(slots: int, size: int = WINDOW) -> int:
    """The number of windows of an epoch. A rest below half a window belongs to the last one."""
    return max(1, (slots + size // 2) // size)


def window_slots(slots: int, window: int, size: int = WINDOW) -> np.ndarray:
    """The slots of a window of an epoch of `slots` slots."""
    last = window == num_windows(slots, size) - 1
    return np.arange(window * size, slots if last else (window + 1) * size)


def plan_window(
    order: EpochOrder,
    window: int,
    slots_of: Slots,
    capacities: tuple[int, int],
    key: tuple[int, ...],
    size: int = WINDOW,
) -> Plan:
    """Packs the pairs of a window into rows of `capacities` (source, target) tokens.

    `slots_of` are the tokens of pairs in a row of either side, ends included. `key` determines the
    order of the rows, with the window. ValueError if a pair is longer than a row.
    """
    pairs = order(window_slots(order.slots, window, size))
    sides = slots_of(pairs)
    for tokens, capacity in zip(sides, capacities, strict=True):
        if len(tokens) and tokens.max() > capacity:
            raise ValueError(f"a pair has {tokens.max()} tokens: expected at most {capacity}")
    # Sorted by length in small groups, which packs better than the random order.
    groups = np.arange(len(pairs)) // SORTED_PAIRS
    by_length = np.lexsort((-np.maximum(*sides), groups))
    rows = first_fit(by_length, *sides, *capacities)
    shuffled = np.random.Generator(np.random.PCG64([*key, window])).permutation(len(rows))
    packed = ragged([rows[i] for i in shuffled.tolist()])
    return Plan(pairs[packed.ids], packed.offsets)

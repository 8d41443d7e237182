"""A fixed map from integers to integers, read for many keys at a time.

Open addressing (Knuth, The Art of Computer Programming 3, section 6.4): a key is in the slot of its
hash or, if other keys were there before, in one of the following slots.
"""

import numpy as np

SLOTS_PER_KEY = 4  # fewer need less memory, but more steps
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, as in Knuth's Fibonacci hashing


class IntegerTable:
    """`table(keys)`: the values of these keys, −1 for keys that the table does not have."""

    def __init__(self, content: dict[int, int]):
        """Keys are from 0 to 2^63 − 1, values from 0 to 2^31 − 1."""
        bits = max(4, (SLOTS_PER_KEY * len(content)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._last = (1 << bits) - 1
        self._keys = np.full(1 << bits, -1, np.int64)  # -1: empty
        self._values = np.full(1 << bits, -1, np.int32)
        keys = np.fromiter(content.keys(), np.int64, len(content))
        values = np.fromiter(content.values(), np.int32, len(content))
        slots = self._slots(keys)
        while len(keys):
            free = np.flatnonzero(self._keys[slots] < 0)
            self._keys[slots[free]] = keys[free]  # the last one of several keys gets the slot
            placed = self._keys[slots] == keys
            self._values[slots[placed]] = values[placed]
            keys, values = keys[~placed], values[~placed]
            slots = slots[~placed] + 1 & self._last

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        """The values of `keys` (int64, none negative), as int32."""
        slots = self._slots(keys)
        stored = self._keys[slots]
        values = np.where(stored == keys, self._values[slots], -1)
        missed = np.flatnonzero((stored != keys) & (stored >= 0))  # another key is in the slot
        slots = slots[missed]
        while len(missed):
            slots = slots + 1 & self._last
            stored = self._keys[slots]
            values[missed] = np.where(stored == keys[missed], self._values[slots], -1)
            again = (stored != keys[missed]) & (stored >= 0)
            missed, slots = missed[again], slots[again]
        return values

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys.view(np.uint64) * MULTIPLIER >> self._shift).astype(np.int64)

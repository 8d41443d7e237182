"""Compiled calls of the engine: what they take, what they find, and how long one may last."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Job(NamedTuple):
    """Lines to translate together: ids without the end token; lines without ids are blank.

    `numbers` are the lines' numbers in the input, from 0; samples depend on them. A translation
    begins with its line's `prefixes` (by index in `sources`).
    """

    sources: Sequence[list[int]]
    prefixes: Mapping[int, list[int]]
    numbers: Sequence[int]


class Found(NamedTuple):
    """Hypotheses of line `index` of a job: ids without the end token, score, log-probability."""

    job: Job
    index: int
    hypotheses: list[tuple[list[int], float, float]]


class Pace:
    """How many batches a call may take, so that it lasts about `seconds`.

    Results are available when a call ends, so this bounds what a kill can lose. The first call
    takes FIRST batches and is waited for; the number in each later one follows the time per
    source position of the last call of the same bucket, or else of the slowest other bucket.
    """

    FIRST = 1

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._measured: dict[int, float] = {}  # seconds per source position, by bucket
        self._last_end = 0.0

    @property
    def known(self) -> bool:
        """Whether a call has been measured."""
        return bool(self._measured)

    def batches(self, bucket: int, positions: int, most: int) -> int:
        """Of so many source positions each; at least 1, at most `most`."""
        if not self.known:
            return min(most, self.FIRST)
        each = self._measured.get(bucket) or max(self._measured.values())
        return max(1, min(most, int(self._seconds / (each * positions))))

    def measure(self, bucket: int, positions: int, begin: float) -> None:
        """A call of so many source positions, begun at `begin`, has ended; calls run one after the
        other."""
        now = time.perf_counter()
        duration = now - max(begin, self._last_end)
        self._last_end = now
        self._measured[bucket] = max(duration, 1e-6) / positions

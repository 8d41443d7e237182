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
    """How many batches of one bucket a call may take, so that it lasts about `seconds`.

    Results are available when a call ends, so this bounds what a kill can lose. The first calls
    take FIRST batches; once one has been measured, the number follows its speed.
    """

    FIRST = 4

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._batches: dict[int, int] = {}  # by bucket
        self._last_end = 0.0

    def batches(self, bucket: int, most: int) -> int:
        """At least 1, at most `most`."""
        return max(1, min(most, self._batches.get(bucket, self.FIRST)))

    def measure(self, bucket: int, batches: int, begin: float) -> None:
        """A call of so many batches, begun at `begin`, has ended; calls run one after the other."""
        now = time.perf_counter()
        duration = now - max(begin, self._last_end)
        self._last_end = now
        self._batches[bucket] = int(self._seconds * batches / max(duration, 1e-6))

"""Timing of calls that alternate, and the search for the best batch size."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from statistics import median
from typing import Any

import jax

from seq2seq.training.memory_check import OUT_OF_MEMORY

ROUNDS = 3
MOST_REPEATS = 50
GAIN = 1.03  # a larger batch must be faster by this factor
NEXT_COST = 1.5  # expected duration of the next batch size, relative to the last one


def call_seconds(
    calls: dict[str, Callable[[], Any]],
    least: float,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> dict[str, float]:
    """The median seconds of each call over ROUNDS rounds, in which the calls alternate.

    The first call of each is not counted: it compiles. In a round a call is repeated for about
    `least` seconds; `wait` receives the last result and returns when the device is done.
    """
    repeats = {}
    for name, call in calls.items():
        wait(call())
        repeats[name] = min(MOST_REPEATS, ceil(least / max(_seconds(call, 1, wait), 1e-6)))
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            measured[name].append(_seconds(call, repeats[name], wait))
    return {name: median(seconds) for name, seconds in measured.items()}


def _seconds(call: Callable[[], Any], repeats: int, wait: Callable[[Any], Any]) -> float:
    result, start = None, time.perf_counter()
    for _ in range(repeats):
        result = call()
    wait(result)
    return (time.perf_counter() - start) / repeats


def growing_batches(
    sizes: Iterable[int], measure: Callable[[int], dict[str, Any]], rate: str, deadline: float
) -> Iterator[dict[str, Any]]:
    """The rows of `measure` for growing sizes, until one gains less than GAIN in its field `rate`,
    does not fit into memory, or would not end before `deadline` (time.monotonic()).

    Out of memory at the first size is an error.
    """
    best = 0.0
    for size in sizes:
        began = time.monotonic()
        try:
            row = measure(size)
        except Exception as error:
            if not best or not is_out_of_memory(error):
                raise
            print(f"batch {size}: out of memory", file=sys.stderr)
            return
        yield row
        now = time.monotonic()
        if row[rate] < GAIN * best or now + NEXT_COST * (now - began) > deadline:
            return
        best = max(best, row[rate])


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the host could not allocate memory (JAX, PyTorch, CTranslate2)."""
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def doublings(first: int, most: int) -> Iterator[int]:
    """first, 2 · first, … up to `most`."""
    while first <= most:
        yield first
        first *= 2

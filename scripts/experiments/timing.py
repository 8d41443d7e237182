"""Times of compiled calls, and how they grow with a length."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def median_seconds(call: Callable[[], Any], rounds: int) -> float:
    """The median time of a call over the rounds, after one call that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def growth(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p of costs ~ lengths^p, fitted to the last three lengths."""
    return float(np.polyfit(np.log(lengths[-3:]), np.log(costs[-3:]), 1)[0])


def crossing(
    lengths: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> float | None:
    """The length from which on the costs `first` exceed `second`: at their last crossing,
    interpolated between the measured lengths in logarithms. The first length if they exceed
    `second` at all lengths, None if they do not at the last length."""
    ratios = np.log(np.divide(first, second))
    (below,) = np.nonzero(ratios <= 0)
    if not len(below):
        return float(lengths[0])
    i = below[-1] + 1
    if i == len(lengths):
        return None
    share = -ratios[i - 1] / (ratios[i] - ratios[i - 1])
    return float(lengths[i - 1] * (lengths[i] / lengths[i - 1]) ** share)

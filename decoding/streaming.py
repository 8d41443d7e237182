"""Streaming: split the input into windows of lines, and put the results back in order.

The lines of a window are sorted by length and searched together. A window closes when it is full,
at the end of the input, or when the input pauses. So each line of an open pipe is answered at once,
and a file is read in full windows.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runtime.prefetch import Prefetched

IDLE = 0.1  # seconds without input after which a window that holds lines closes
LATEST = 1.0  # seconds from its first line until a window closes on a slow, steady input


def windows(items: Prefetched, size: int) -> Iterator[list]:
    """Lists of at most `size` items. An error of `items` is raised after the items before it."""
    for first in items:
        window, failed, latest = [first], None, time.monotonic() + LATEST
        try:
            while len(window) < size and items.ready(
                max(0.0, min(IDLE, latest - time.monotonic()))
            ):
                window.append(next(items))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 – raised below
            failed = error
        yield window
        if failed is not None:
            raise failed


def in_order(groups: Iterable[Mapping[int, Any]], first: int = 0) -> Iterator[Any]:
    """The values of numbers `first`, `first` + 1, … of groups that come in any order. Each value is
    yielded as soon as all values before it are."""
    waiting: dict[int, Any] = {}
    number = first
    for group in groups:
        waiting.update(group)
        while number in waiting:
            yield waiting.pop(number)
            number += 1

"""Streaming: cut an input into windows of lines, put results back in order.

A window of lines is sorted by length and searched together. It closes when it is full, at the end
of the input, or when the input pauses. A pipe is therefore answered while it stays open, and a file
is read in full windows.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runtime.prefetch import Prefetched

IDLE = 0.1  # seconds without input after which a window that holds lines closes
LATEST = 1.0  # seconds from its first line until a window closes on a slow, steady input


def windows(items: Prefetched, size: int) -> Iterator[list]:
    """Lists of at most `size` items. After an error the items before it come first."""
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
    """The values of numbers `first`, `first` + 1, … of groups that come in any order, each as soon
    as those before it are there."""
    waiting, number = {}, first
    for group in groups:
        waiting.update(group)
        while number in waiting:
            yield waiting.pop(number)
            number += 1

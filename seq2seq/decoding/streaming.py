"""Streaming: split the input into windows of lines, and put the results back in order.

The lines of a window are sorted by length and searched together. A window closes when it is full,
at the end of the input, or when the input pauses. So each line of an open pipe is answered at once,
and a file is read in full windows.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from seq2seq.decoding.results import Source, Translation, blank_translation
from seq2seq.runtime.prefetch import Prefetched

IDLE = 0.1  # seconds without input after which a window that holds lines closes
LATEST = 1.0  # seconds from its first line until a window closes on a slow, steady input

T = TypeVar("T")


def windows(items: Prefetched[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` items. An error of `items` is raised after the items before it."""
    for first in items:
        window, error, latest = [first], None, time.monotonic() + LATEST
        try:
            while len(window) < size and items.ready(
                max(0.0, min(IDLE, latest - time.monotonic()))
            ):
                window.append(next(items))
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 – raised below
            error = raised
        yield window
        if error is not None:
            raise error


def in_order(groups: Iterable[Mapping[int, T]], first: int = 0) -> Iterator[T]:
    """The values of numbers `first`, `first` + 1, … of groups that come in any order. Each value is
    yielded as soon as all values before it are."""
    waiting: dict[int, T] = {}
    number = first
    for group in groups:
        waiting.update(group)
        while number in waiting:
            yield waiting.pop(number)
            number += 1


class WindowFeed:
    """Feeds windows of sources to the engine and sets blank lines aside.

    An iterator over the windows as they are read. While none is available it yields None: at once
    if lines are in flight or blank lines wait to be yielded, else every IDLE seconds. An error of
    the input ends the iteration and is kept in `error`, so that the lines before it are translated
    first.
    """

    def __init__(self, windows: Prefetched[list[Source]]):
        self.in_flight = 0  # lines given to the engine without a result yet; the caller subtracts
        self.error: Exception | None = None
        self._windows = windows
        self._blank: dict[int, Translation] = {}

    def take_blank(self) -> dict[int, Translation]:
        """The translations of the blank lines read since the last call, by line number."""
        blank, self._blank = self._blank, {}
        return blank

    def __iter__(self) -> Iterator[list[Source] | None]:
        while True:
            if not self._windows.ready(0 if self.in_flight or self._blank else IDLE):
                yield None
                continue
            try:
                window = next(self._windows)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 – raised by the caller
                self.error = error
                return
            for source in window:
                if source.ids:
                    self.in_flight += 1
                else:
                    self._blank[source.number] = blank_translation()
            yield window

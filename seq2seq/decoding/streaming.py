"""Streaming: split the input into windows of lines, and put the results back in order.

The lines of a window are sorted by length and searched together. A window closes when it is full,
at the end of the input, or when the input pauses. So each line of an open pipe is answered at once,
and a file is read in full windows.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from threading import Event, Semaphore
from typing import TypeVar

from seq2seq.decoding.results import Item, Source, Translation, blank_translation
from seq2seq.runtime.prefetch import Prefetched, unit_weight

IDLE = 0.1  # seconds without input after which a window that holds lines closes
LATEST = 1.0  # seconds from its first line until a window closes on a slow, steady input
LONG = 1024  # characters of text and line; a line counts as one more line for each of them

T = TypeVar("T")
R = TypeVar("R")


def weight(line: tuple[int, Item]) -> int:
    """As how many lines a numbered line counts, so that long lines do not need more memory."""
    item = line[1]
    return 1 + (len(item.text) + len(item.line) + len(item.target or "")) // LONG


def windows(
    items: Prefetched[T], size: int, weight: Callable[[T], int] = unit_weight
) -> Iterator[list[T]]:
    """Lists of items until their weights reach `size`. An error of `items` is raised after the
    items before it."""
    for first in items:
        window, error, latest = [first], None, time.monotonic() + LATEST
        total = weight(first)
        try:
            while total < size and items.ready(max(0.0, min(IDLE, latest - time.monotonic()))):
                window.append(next(items))
                total += weight(window[-1])
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


def in_order_with_room(
    compute: Callable[[Iterator[tuple[int, T]]], Generator[Mapping[int, R], None, None]],
    items: Iterable[T],
    first: int,
    ahead: int,
) -> Iterator[R]:
    """What `compute` yields for the items, numbered from `first`, in order. It may read them in
    another thread, at most `ahead` more than results are yielded."""
    room, closed = Semaphore(ahead), Event()

    def has_room() -> bool:
        room.acquire()
        return not closed.is_set()

    # zip waits for room before it reads an item.
    with_room = zip(iter(has_room, False), enumerate(items, first), strict=False)
    numbered = (line for _, line in with_room)
    try:
        with closing(compute(numbered)) as groups:
            for result in in_order(groups, first):
                room.release()
                yield result
    finally:
        closed.set()
        room.release()


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
                    self._blank[source.number] = blank_translation(source.replaced)
            yield window

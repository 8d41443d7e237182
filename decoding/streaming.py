"""Streaming: read an iterator in another thread, cut it into windows, put results back in order.

A window of lines is sorted by length and searched together. It closes when it is full, at the end
of the input, or when the input pauses. A pipe is therefore answered while it stays open, and a file
is read in full windows.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

IDLE = 0.1  # seconds without input after which a window that holds lines closes
LATEST = 1.0  # seconds from its first line until a window closes on a slow, steady input
END = object()  # what `Ahead.get` returns after the last item


class Ahead:
    """Iterates in a daemon thread, at most `most` items ahead of `get`.

    `close` returns at once, even while the iterator blocks: the thread stops after that call.
    """

    def __init__(self, items: Iterable, most: int):
        self._found, self._most, self._closed = queue.SimpleQueue(), most, False
        self._room = threading.Event()
        threading.Thread(target=self._read, args=(iter(items),), daemon=True).start()

    def get(self, timeout: float | None = None) -> Any:
        """The next item, or END. Raises what the iterator raised, and queue.Empty after `timeout`
        seconds without an item."""
        item = self._found.get(timeout=timeout)
        if not self._room.is_set() and self._found.qsize() <= self._most // 2:
            self._room.set()
        if item is END:
            self._found.put(END)
        elif type(item) is Failure:
            raise item.error
        return item

    def close(self) -> None:
        """Read no further; a `get` that waits returns END."""
        self._closed = True
        self._room.set()
        self._found.put(END)

    def _read(self, items):
        try:
            while not self._closed:
                if self._found.qsize() < self._most:
                    self._found.put(next(items))
                    continue
                self._room.clear()
                if self._found.qsize() >= self._most and not self._closed:
                    self._room.wait()
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 – it belongs to the thread that calls `get`
            self._found.put(Failure(error))
        self._found.put(END)


class Failure(NamedTuple):
    """An error in the place of an item."""

    error: BaseException


def windows(items: Ahead, size: int) -> Iterator[list]:
    """Lists of at most `size` items. After an error the items before it come first."""
    while (first := items.get()) is not END:
        window, failed, latest = [first], None, time.monotonic() + LATEST
        try:
            while len(window) < size:
                item = items.get(timeout=max(0.0, min(IDLE, latest - time.monotonic())))
                if item is END:
                    break
                window.append(item)
        except queue.Empty:
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

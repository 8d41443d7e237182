"""Items of an iterator, computed ahead by a daemon thread."""

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetched(Generic[T]):
    """An iterator over `items`, which a thread computes up to `ahead` in advance.

    The consumer may wait with a limit (`ready`), so that a signal takes effect while an item takes
    long. The thread is a daemon: an item that is being computed does not delay the process's exit.
    An exception of `items` is raised here in its place, with its traceback.
    """

    def __init__(self, items: Iterator[T], ahead: int):
        self._items = items
        self._results: queue.SimpleQueue = queue.SimpleQueue()  # (item, None) or (None, exception)
        self._places = threading.Semaphore(ahead)
        self._closed = threading.Event()
        self._next = None
        threading.Thread(target=self._work, name="prefetch", daemon=True).start()

    def _work(self):
        while self._places.acquire() and not self._closed.is_set():
            try:
                self._results.put((next(self._items), None))
            except BaseException as error:  # noqa: BLE001 – also StopIteration, the end
                self._results.put((None, error))
                return

    def ready(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: without limit); whether `next` returns at once."""
        if self._next is None:
            try:
                self._next = self._results.get(timeout=timeout)
            except queue.Empty:
                return False
        return True

    def __iter__(self) -> "Prefetched[T]":
        return self

    def __next__(self) -> T:
        self.ready()
        item, error = self._next
        if error is not None:  # kept: every further call raises it
            raise error
        self._next = None
        self._places.release()
        return item

    def close(self) -> None:
        """End the thread after the item that it is computing."""
        self._closed.set()
        self._places.release()

"""Items of an iterator, computed ahead by a daemon thread."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Failure(NamedTuple):
    """An exception in the place of an item; StopIteration is the end."""

    error: BaseException


class Prefetched(Generic[T]):
    """An iterator over `items`, which a thread computes up to `ahead` in advance.

    The consumer may wait with a limit (`ready`), so that a signal takes effect while an item takes
    long. The thread is a daemon: an item that is being computed does not delay the process's exit.
    An exception of `items` is raised here in its place, with its traceback.
    """

    def __init__(self, items: Iterable[T], ahead: int):
        self._results: queue.SimpleQueue = queue.SimpleQueue()  # items, then a Failure
        self._next: list = []  # the item that `ready` has found
        self._ahead, self._closed = ahead, False
        # Set while the thread may compute: cleared by it when `ahead` items wait, set when half of
        # them are taken. A semaphore would cost 5 µs for each item.
        self._room = threading.Event()
        arguments = (iter(items),)
        threading.Thread(target=self._work, args=arguments, name="prefetch", daemon=True).start()

    def ready(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: without limit); whether `next` returns at once."""
        if not self._next:
            try:
                self._next.append(self._results.get(timeout=timeout))
            except queue.Empty:
                return False
            if not self._room.is_set() and self._results.qsize() <= self._ahead // 2:
                self._room.set()
        return True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self.ready()
        item = self._next[0]
        if type(item) is Failure:  # kept: every further call raises it
            raise item.error
        self._next.clear()
        return item

    def close(self) -> None:
        """Return at once, also while `items` blocks; the thread ends after that item. A consumer
        that waits in another thread gets the end."""
        self._closed = True
        self._room.set()
        self._results.put(Failure(StopIteration()))

    def _work(self, items):
        try:
            while not self._closed:
                if self._results.qsize() < self._ahead:
                    self._results.put(next(items))
                    continue
                self._room.clear()
                if self._results.qsize() >= self._ahead and not self._closed:
                    self._room.wait()
        except BaseException as error:  # noqa: BLE001 – also StopIteration, the end
            self._results.put(Failure(error))

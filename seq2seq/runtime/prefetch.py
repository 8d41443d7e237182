"""Prefetched: the items of an iterator, computed ahead by a daemon thread."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Failure(NamedTuple):
    """An exception in the place of an item; StopIteration marks the end."""

    error: BaseException


def unit_weight(item: object) -> int:
    """The weight of an item, if all count alike."""
    return 1


class Prefetched(Generic[T]):
    """An iterator over `items`, of which a thread computes up to `ahead` in advance.

    `weight` is a number of at least 1, as which an item counts: large items may count as several.

    The consumer may wait with a timeout (`ready`), so that a signal takes effect during the
    computation of a slow item. The thread is a daemon: an item under computation does not delay the
    exit of the process. An exception of `items` is raised by `next`, with its traceback.
    """

    def __init__(self, items: Iterable[T], ahead: int, weight: Callable[[T], int] = unit_weight):
        self._results: queue.SimpleQueue[T | Failure] = queue.SimpleQueue()
        self._next: list[T | Failure] = []  # the result that `ready` has taken from the queue
        self._ahead, self._weight, self._closed = ahead, weight, False
        self._computed = 0  # the weight of all items computed; only the thread changes it
        self._taken = 0  # the weight of those that the consumer has; only the consumer changes it
        # Set while the thread may compute. The thread clears it when `ahead` items wait; the
        # consumer sets it when half of them are taken. A semaphore would cost 5 µs per item.
        self._room = threading.Event()
        arguments = (iter(items),)
        self._thread = threading.Thread(
            target=self._work, args=arguments, name="prefetch", daemon=True
        )
        self._thread.start()

    def ready(self, timeout: float | None = None) -> bool:
        """Whether `next` returns immediately; waits up to `timeout` seconds (None: no limit)."""
        if not self._next:
            try:
                result = self._results.get(timeout=timeout)
            except queue.Empty:
                return False
            self._next.append(result)
            if not isinstance(result, Failure):
                self._taken += self._weight(result)
            if not self._room.is_set() and self._waiting <= self._ahead // 2:
                self._room.set()
        return True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self.ready()
        item = self._next[0]
        if isinstance(item, Failure):  # kept, so that every further call raises it
            raise item.error
        self._next.clear()
        return item

    def close(self) -> None:
        """End the iteration. Returns immediately, also while `items` blocks; the thread ends after
        the current item. A consumer that waits in another thread receives StopIteration."""
        self._closed = True
        self._room.set()
        self._results.put(Failure(StopIteration()))

    def join(self, timeout: float) -> None:
        """Wait for the end of the closed iteration, up to `timeout` seconds.

        Items that JAX computes need this before the process exits: Python ends a thread that asks
        for its lock after that, and inside the C++ code of JAX this aborts the process (SIGABRT).
        """
        self._thread.join(timeout)

    @property
    def _waiting(self) -> int:
        """The weight of the items that are computed and not taken."""
        return self._computed - self._taken

    def _work(self, items: Iterator[T]) -> None:
        try:
            while not self._closed:
                if self._waiting < self._ahead:
                    item = next(items)
                    self._computed += self._weight(item)
                    self._results.put(item)
                    continue
                self._room.clear()
                if self._waiting >= self._ahead and not self._closed:
                    self._room.wait()
        except BaseException as error:  # noqa: BLE001 – includes StopIteration, the end
            self._results.put(Failure(error))

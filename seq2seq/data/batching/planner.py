"""The planner: windows of training, each planned ahead while the one before it is used."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from seq2seq.data.batching.windows import Window, Windows
from seq2seq.runtime.workers import WorkerLost, Workers

IN_THREAD = 1 << 16  # pairs of an epoch: below, a process would take longer to start than to plan

Place = tuple[int, int]  # epoch and window


class Planner:
    """`planner.window(epoch, window)`; planned in a thread, which packs the pairs of large epochs
    in a worker.

    Several threads may use it. Its results depend on `windows` only: the windows that it keeps save
    time.
    """

    def __init__(self, windows: Windows):
        self._windows, self._workers = windows, Workers(1)
        self._lock = threading.Lock()
        self._planned: dict[Place, Future] = {}

    def window(self, epoch: int, window: int) -> Window:
        """A window that is used from now on: the planning of the next one starts.

        An exception of the planning is raised here. A worker that is lost is replaced once.
        """
        planned = self.lookup(epoch, window)
        done: Future[Window] = Future()
        done.set_result(planned)
        following = self.following(epoch, window)
        with self._lock:
            ahead = self._planned.get(following) or self._submit(following)
            self._planned = {(epoch, window): done, following: ahead}
        return planned

    def lookup(self, epoch: int, window: int) -> Window:
        """A window, without planning the next one."""
        place = epoch, window
        with self._lock:
            future = self._planned.get(place)
            if future is None:
                future = self._planned[place] = self._submit(place)
        try:
            return future.result()
        except WorkerLost:
            return self._submit(place).result()

    def following(self, epoch: int, window: int) -> Place:
        """The window after this one: the next one of the epoch, or the first of the next epoch."""
        last = window + 1 >= self._windows.count(epoch)
        return (epoch + 1, 0) if last else (epoch, window + 1)

    def close(self) -> None:
        """End the worker. The planning of a window then raises RuntimeError."""
        self._workers.close()

    def _submit(self, place: Place) -> Future:
        if self._windows.num_pairs(place[0]) < IN_THREAD:
            return in_thread(self._windows.plan, *place)
        return in_thread(self._windows.plan, *place, self._in_worker)

    def _in_worker(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._workers.submit(function, *arguments).result()


def in_thread(function: Callable[..., Any], *arguments: Any) -> Future:
    """The future result of `function(*arguments)` in a thread that does not delay the exit."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 – raised by future.result()
            future.set_exception(error)

    threading.Thread(target=run, name="plan", daemon=True).start()
    return future

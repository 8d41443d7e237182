"""Workers: spawned processes that run functions, beside a main process that uses JAX.

JAX starts threads, so a process that uses it must not be forked. The processes of loky are spawned
and, unlike those of `multiprocessing`, do not import the main module, so they import neither JAX
nor the command. They end when the process that started them ends.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import resource_tracker
from typing import Any
from weakref import WeakSet

from seq2seq.runtime.errors import INTERNAL, UserError
from seq2seq.runtime.streams import note

WATCH_SECONDS = 0.5  # between two checks of a worker whether its parent has ended
# loky replaces a worker whose memory grows by 0.3 GB, with a warning. A worker here may need more
# temporarily.
ENVIRONMENT = {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}


class WorkerLost(UserError):
    """A worker ended while it ran a function, for example because the system was out of memory."""


class Workers:
    """`count` processes, started by the first `submit`; ended by `close` or with this process.

    They ignore SIGINT and SIGTERM, which reach them when a terminal or a scheduler signals all
    processes of a job: the main process handles the signal and closes them. If it is killed, they
    end within a second.
    """

    def __init__(self, count: int):
        self.count, self._closed = count, False
        self._impossible = False  # to start a process
        self._executor: Any = None  # a loky ProcessPoolExecutor
        self._lock = threading.Lock()
        _open.add(self)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """The future result of `function(*arguments)` in a worker; any thread may call this.

        Function, arguments and result are pickled. The future raises the exception of the function,
        or WorkerLost, also if another worker is lost; a later call starts new workers. If no
        process can be started, this one runs the functions, with a warning. RuntimeError after
        `close`.
        """
        result: Future = Future()
        if (future := self._submitted(function, *arguments)) is not None:
            _close_all_at_exit()
            future.add_done_callback(partial(_copy, result))
            return result
        try:
            result.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 – raised by result.result()
            result.set_exception(error)
        return result

    def _submitted(self, function: Callable[..., Any], *arguments: Any) -> Future | None:
        """The future of loky, or None if the system cannot start processes: loky needs semaphores
        in /dev/shm, which may be absent, read-only or full."""
        from loky.process_executor import BrokenProcessPool

        if self._impossible and not self._closed:
            return None
        with self._lock:
            try:
                with _signals_blocked():
                    try:
                        return self._running_executor().submit(function, *arguments)
                    except BrokenProcessPool:
                        self._executor = None
                        return self._running_executor().submit(function, *arguments)
            except OSError as error:
                self._impossible = True
                note(
                    f"warning: worker processes cannot be started: {error.strerror or error}; this "
                    "process does their work, more slowly; check /dev/shm and ulimit -u"
                )
                return None

    def close(self) -> None:
        """End the processes immediately; what they have not finished raises RuntimeError."""
        with self._lock:
            self._closed = True
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)

    def __del__(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, kill_workers=True)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _running_executor(self) -> Any:
        """The executor, started if there is none."""
        from loky.process_executor import ProcessPoolExecutor

        if self._closed:
            raise RuntimeError("the workers are closed")
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.count, initializer=_end_with, initargs=(os.getpid(),), env=ENVIRONMENT
            )
        return self._executor


_open: WeakSet[Workers] = WeakSet()


@cache
def _start_trackers() -> None:
    """Start the two processes that delete the semaphores of this one if it is killed.

    That of loky would warn on stderr about each, also after an exit by a signal.
    """
    from loky.backend import resource_tracker as loky_tracker

    sys.warnoptions.append("ignore::UserWarning")  # Python processes are started with these options
    try:
        loky_tracker.ensure_running()
    finally:
        sys.warnoptions.remove("ignore::UserWarning")
    resource_tracker.ensure_running()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM in this thread; processes that it starts keep them blocked."""
    _start_trackers()  # their start would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _copy(result: Future, future: Future) -> None:
    """Set `result` to that of the finished `future` of loky."""
    from loky.process_executor import BrokenProcessPool

    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        lost = WorkerLost(
            INTERNAL,
            "a worker process ended before its result was complete; if the system was out of "
            "memory, free some; run the same command again",
        )
        lost.__cause__ = error
        result.set_exception(lost)
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(future.result())


def _end_with(parent: int) -> None:
    """In a worker: end this process when the process `parent` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="watch parent", daemon=True).start()


@cache
def _close_all_at_exit() -> None:
    """Close all workers when the interpreter exits.

    The exit handler of loky waits for unfinished functions. It runs before those of `atexit`, so
    this one is registered where loky registers its own, after it: the last one runs first.
    """
    threading._register_atexit(_close_all)  # type: ignore[attr-defined]


def _close_all() -> None:
    for workers in list(_open):
        workers.close()

"""Compilation ahead: threads compile the programs that are needed soon, while others run."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

import jax

from seq2seq.runtime.devices import return_freed_memory

POLL_SECONDS = 0.1


def wait_for(future: Future[Any], poll: Callable[[], None]) -> None:
    """Wait until a future is done. `poll` is called meanwhile and may raise."""
    while not future.done():
        wait([future], POLL_SECONDS)
        poll()


class CompilationAhead:
    """Compiles programs by key, each once, in threads. XLA compiles without the GIL.

    Threads that search with one engine share it. The lock guards its fields, because one of them
    may cancel while another one starts a compilation.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._started: dict[Hashable, Future[object]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether a program of this key was started."""
        return key in self._started

    def start(self, key: Hashable, lower: Callable[[], jax.stages.Lowered], threads: int) -> bool:
        """Compile the program of `lower`, the method of a function of `jit` with its arguments, one
        of at most `threads` at once. False if a program of this key was started before.

        `jit` keeps the program for its next call. An error is dropped: that call compiles again and
        raises it.
        """

        def compile_program() -> None:  # a result in the future would never be released
            lower().compile()
            return_freed_memory()

        with self._lock:
            if key in self._started:
                return False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(threads, "compile")
            self._started[key] = self._pool.submit(compile_program)
        return True

    def wait(self, key: Hashable, poll: Callable[[], None]) -> None:
        """Wait until the program of this key, if it was started, is compiled or has failed. `poll`
        is called meanwhile and may raise."""
        if future := self._started.get(key):
            wait_for(future, poll)

    def cancel(self) -> None:
        """Cancel the compilations that wait for a thread; those that run continue."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
            for key, future in list(self._started.items()):
                if future.cancelled():
                    del self._started[key]

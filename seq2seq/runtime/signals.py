"""SIGTERM and SIGINT: a command stops at a point where no saved result is lost.

A command calls `handle_signals` once. Its loops poll the returned flag.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from seq2seq.runtime import processes
from seq2seq.runtime.streams import write_stderr

SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_SECONDS = 0.1
RETRY_SECONDS = 0.01
# Signals within so many seconds are one: `timeout` of coreutils signals the process and its group.
SAME_SIGNAL = 0.2

T = TypeVar("T")


class Stopped(BaseException):
    """Raised where a signal takes effect; `signal` is its number, and `agreed` whether all
    processes have agreed to stop there."""

    def __init__(self, number: signal.Signals, agreed: bool = False):
        super().__init__(f"stopped by {number.name}")
        self.signal, self.agreed = number, agreed


class Status(NamedTuple):
    """The state of a loop in all processes. The loop ends if either part is set."""

    signal: signal.Signals | None
    finished: bool


class StopFlag:
    """Set by a signal and polled by loops: once per training step, evaluation batch or search call.

    Before `defer` there is nothing to save: a signal raises Stopped immediately, or at the end of
    the compiled call for which the main thread waits.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.deferred = False
        self.dropped = False  # whether Stopped was raised where Python drops exceptions
        self._started: list[np.ndarray | jax.Array] = []  # at most one, of `start_agreement`

    def set(self, number: signal.Signals) -> None:
        """Set the flag to the signal that the process has received. Before `defer`, raises
        Stopped."""
        self.signal = number
        if not self.deferred:
            self.poll()

    def defer(self) -> None:
        """From now on, handle a signal where it is polled."""
        self.deferred = True

    def poll(self) -> None:
        """Raise Stopped if the flag is set. After `defer`, several processes stop together instead
        (`agreed_status`)."""
        if self.signal and not (self.deferred and processes.count() > 1):
            self.dropped = False
            raise Stopped(self.signal)

    def agreed_status(
        self, ready: Callable[[float], bool] = lambda seconds: True, finished: bool = False
    ) -> Status:
        """Wait until `ready` in all processes; returns the signal that any of them has received,
        and whether any of them has `finished`.

        `ready(seconds)` waits at most that long. A signal or `finished` ends the wait. All
        processes call this at the same step and get the same result: all continue, or all stop. The
        first comparison is that of `start_agreement`, if it was called since the last call.
        """
        while True:
            if not self._started:
                self._started.append(self._compare(POLL_SECONDS, ready, finished))
            received, ended, any_waiting = np.asarray(self._started.pop()).tolist()
            if received or ended or not any_waiting:
                return Status(signal.Signals(received) if received else None, bool(ended))

    def start_agreement(self, ready: Callable[[float], bool], finished: bool) -> None:
        """Start the comparison of the processes whose result the next `agreed_status` returns.

        Devices run it before the programs that are started after it, and `agreed_status` does not
        wait for those. All processes call this at the same step. A single process compares nothing:
        its next `agreed_status` uses the status of that time.
        """
        if processes.count() > 1:
            self._started = [self._compare(0.0, ready, finished)]

    def _compare(
        self, seconds: float, ready: Callable[[float], bool], finished: bool
    ) -> np.ndarray | jax.Array:
        """[signal or 0, finished, waiting], the largest of each in any process."""
        waiting = not (finished or ready(seconds))
        return processes.max_over_processes(self.signal or 0, finished, waiting)

    def polled(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function with a poll before each call."""

        def poll_and_call(*arguments: object) -> T:
            self.poll()
            return function(*arguments)

        return poll_and_call


def handle_signals() -> StopFlag:
    """Handle SIGTERM and SIGINT from now on: the first one sets the returned flag.

    A second signal, at least SAME_SIGNAL seconds later, ends the process immediately, also during
    a compilation or a compiled call; everything saved before is kept. Called in the main thread.
    """
    stop = StopFlag()

    def receive(number: int, _frame: FrameType | None) -> None:
        if not stop.signal:  # `_await_second_signal` handles a second one
            stop.set(signal.Signals(number))

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The interpreter writes the number of each signal to this pipe when it arrives. Python
    # handlers run in the main thread only, and not while it is inside XLA.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_await_second_signal, args=(reader,), daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, receive)
    sys.unraisablehook = partial(_raise_again, stop, sys.unraisablehook)
    return stop


def _raise_again(stop: StopFlag, hook: Callable[[Any], object], dropped: Any) -> None:
    """Raise Stopped once more, a moment later, if Python has dropped it.

    It drops exceptions of callbacks. JAX has one for each garbage collection, and a program that
    creates many objects, such as one that loads a model, receives most signals there.
    """
    if not isinstance(dropped.exc_value, Stopped):
        hook(dropped)
        return
    stop.dropped = True

    def retry(_number: int, _frame: FrameType | None) -> None:
        if stop.dropped and stop.signal:
            stop.set(stop.signal)

    signal.signal(signal.SIGALRM, retry)
    signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)


def _await_second_signal(reader: int) -> None:
    first = math.inf  # the time at which the first signal arrived
    while byte := os.read(reader, 1):
        if (number := byte[0]) not in SIGNALS:
            continue
        now = time.monotonic()
        if now - first >= SAME_SIGNAL:
            name = signal.Signals(number).name
            write_stderr(f"stopped immediately by a second signal, {name}\n")
            os._exit(128 + number)
        first = min(first, now)

"""SIGTERM and SIGINT: asked to stop, a command stops where nothing is lost."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from runtime import processes

SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_SECONDS = 0.1


class Stopped(BaseException):
    """Leaves whatever is under way, as `signal` asked."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"stopped by {number.name}")
        self.signal = number


class StopFlag:
    """What the signals set and the loops poll: every training step, batch of an evaluation, call
    of a search.

    Before `defer` there is nothing to save, and a signal raises Stopped at once, or when the
    compiled call ends that the main thread waits for. A second signal ends the process at once,
    also inside a compilation or a compiled call; what was saved before stays.
    """

    def __init__(self):
        self.signal: signal.Signals | None = None
        self.deferred = False
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        # The interpreter writes the number of each signal there when it arrives. Python handlers
        # run in the main thread only, and not while it is inside XLA.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=_await_second, args=(reader,), daemon=True).start()
        for number in SIGNALS:
            signal.signal(number, self._set)

    def _set(self, number, _):
        if self.signal:
            _end_at_once(number)
        self.signal = signal.Signals(number)
        if not self.deferred:
            self.poll()

    def defer(self) -> None:
        """From now on a signal is handled where it is polled."""
        self.deferred = True

    def poll(self) -> None:
        """Raises Stopped if a signal has come; of several processes none may leave alone."""
        if self.signal and not (self.deferred and processes.count() > 1):
            raise Stopped(self.signal)

    def agreed(
        self, ready: Callable[[float], bool] = lambda seconds: True
    ) -> signal.Signals | None:
        """Wait until `ready` in all processes; the signal that any of them has received.

        `ready(seconds)` waits up to that long. A signal ends the wait. All processes call this at
        the same step and get the same answer: either all continue, or all stop.
        """
        while True:
            waiting = not ready(POLL_SECONDS)
            stopped_by, waiting = processes.shared(self.signal, waiting)
            if stopped_by or not waiting:
                return stopped_by

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a poll before each call."""

        def polled(*arguments):
            self.poll()
            return function(*arguments)

        return polled


def _await_second(reader: int) -> None:
    arrived = 0
    while byte := os.read(reader, 1):
        arrived += byte[0] in SIGNALS
        if arrived == 2:
            _end_at_once(byte[0])


def _end_at_once(number: int) -> None:
    print(
        f"stopped at once by a second signal, {signal.Signals(number).name}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(128 + number)

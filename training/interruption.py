"""SIGTERM and SIGINT: asked to stop, a command stops where nothing is lost."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from training import hosts

POLL_SECONDS = 0.1


class Stopped(BaseException):
    """Leaves whatever is under way, as `signal` asked."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"stopped by {number.name}")
        self.signal = number


class StopFlag:
    """What the signals set and the loops poll: every training step, batch of an evaluation, queue
    of translations.

    Before `defer` there is nothing to save, and a signal raises Stopped at once. A second signal
    ends the process where it is; what was saved before stays. (A signal that comes while XLA
    compiles is seen when that is done.)
    """

    def __init__(self):
        self.signal: signal.Signals | None = None
        self.deferred = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)

    def _set(self, number, _):
        if self.signal:
            print(f"stopped at once by a second signal, {signal.Signals(number).name}",
                  file=sys.stderr, flush=True)
            os._exit(128 + number)
        self.signal = signal.Signals(number)
        if not self.deferred:
            self.poll()

    def defer(self) -> None:
        """From now on a signal is heeded where it is polled."""
        self.deferred = True

    def poll(self) -> None:
        """Raises Stopped if a signal has come; of several processes none may leave alone."""
        if self.signal and not (self.deferred and hosts.count() > 1):
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
            stopped_by, waiting = hosts.shared(self.signal, waiting)
            if stopped_by or not waiting:
                return stopped_by

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a poll before each call."""

        def polled(*arguments):
            self.poll()
            return function(*arguments)

        return polled

"""Progress of long work on data: at most one log line every few seconds."""

import time
from collections.abc import Callable

Log = Callable[[str], None]


def throttled(log: Log, seconds: float = 5.0) -> Log:
    """A `log` that writes at most one line per `seconds` and drops the others."""
    last = time.monotonic()

    def log_if_due(line: str) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= seconds:
            last = now
            log(line)

    return log_if_due


def no_log(line: str) -> None:
    """A `log` that drops every line."""

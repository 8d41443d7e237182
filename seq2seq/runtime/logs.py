"""Log lines of long work: at most one every few seconds; durations as text."""

import math
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


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, rounded up: 3723 → "1:02:03"."""
    minutes, rest = divmod(math.ceil(round(seconds, 3)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"

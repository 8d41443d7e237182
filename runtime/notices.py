"""Progress of long work on data: a line every few seconds."""

import time
from collections.abc import Callable

Tell = Callable[[str], None]
EVERY = 10_000  # pairs between two calls


def throttled(tell: Tell, seconds: float = 5.0) -> Tell:
    """`tell`, called at most once in so many seconds; other lines are dropped."""
    last = time.monotonic()

    def perhaps(line: str) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= seconds:
            last = now
            tell(line)

    return perhaps


def silent(line: str) -> None:
    """Tells nothing."""

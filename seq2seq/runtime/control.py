"""Control: what a caller decides about the compiled calls of a translator."""

from collections.abc import Callable
from typing import NamedTuple

from seq2seq.runtime.logs import Log, no_log


def no_poll() -> None:
    """A `poll` that never ends a search."""


class Control(NamedTuple):
    """What the caller of an engine decides about its compiled calls."""

    poll: Callable[[], None] = no_poll  # called around each call; may raise to end the search
    log: Log = no_log  # called with a line about programs that are being compiled
    call_seconds: float | None = None  # the duration of a call; None: full queues

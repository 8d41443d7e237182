"""The end of a command by SIGTERM or SIGINT, of which `seq2seq.runtime.signals` tells its loops."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from seq2seq.cli.connection import stop_all_processes
from seq2seq.runtime.signals import StopFlag, Stopped, handle_signals


@contextmanager
def ended_by_signals(
    report: Callable[[str], None] = lambda message: None,
    advice: str = "",
    leave: Callable[[int], NoReturn] = sys.exit,
) -> Iterator[StopFlag]:
    """A context in which a signal raises Stopped, and which then ends the process with exit code
    128 + signal.

    `report` writes what stopped the command, with the `advice`; `leave` exits. The other processes
    of the job end with the same message, unless all of them have agreed to stop. A signal during
    the exit has no effect.
    """
    stop = handle_signals()
    try:
        yield stop
    except Stopped as stopped:
        code, message = 128 + stopped.signal, f"{stopped}{advice}"
        report(message)
        if not stopped.agreed:
            stop_all_processes(code, message)
        leave(code)
    finally:
        stop.defer()

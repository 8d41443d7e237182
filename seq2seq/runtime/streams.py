"""Standard streams that are closed when a command starts, or whose reader ends while it runs."""

import atexit
import io
import os
import select
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

from seq2seq.runtime.errors import OUTPUT, UserError, naming


class ClosedStdout(io.TextIOBase):
    """Takes the place of a closed stdout: results that are written to it are an error."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_WRONLY)

    def fileno(self) -> int:
        return self._null

    def write(self, text: str) -> NoReturn:
        raise UserError(
            OUTPUT,
            "stdout is closed: expected a stream for the results; redirect it to a file or to "
            "/dev/null",
        )


def open_closed_streams() -> None:
    """Open a null device for each standard stream that is closed, so that no file of the command
    gets its descriptor. Messages to a closed stderr are dropped, as `print` would otherwise write
    them to stdout; reading a closed stdin fails. What cannot be written at the exit changes no exit
    code."""
    if sys.stdin is None:  # in this order: each device gets the lowest free descriptor
        sys.stdin = open(os.open(os.devnull, os.O_WRONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = ClosedStdout()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    atexit.register(_end_streams)


def write_stderr(text: str) -> None:
    """Write to stderr, on a terminal in place of its last line if that has not ended, such as one
    of progress. What is lost is no error if it is a closed pipe or a file on a full disk."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    with suppress(OSError):
        _write(sys.stderr, clear + text)


def note(text: str, end: str = "\n") -> None:
    """Write a line to stderr, as `write_stderr`."""
    write_stderr(f"{text}{end}")


def write_stdout(text: str) -> None:
    """Write to stdout; it is no error if its reader has ended."""
    _write(sys.stdout, text)


def write_stored(text: str) -> None:
    """Write what a file has as well to stdout; what is lost there is no error."""
    try:
        if not isinstance(sys.stdout, ClosedStdout):
            _write(sys.stdout, text)
    except OSError:
        _drop_output(sys.stdout)


def _write(stream: TextIO, text: str) -> None:
    try:
        with naming("stdout" if stream is sys.stdout else "stderr"):
            print(text, end="", file=stream, flush=True)
    except BrokenPipeError:
        _drop_output(stream)


def _end_streams() -> None:
    """Drop what stdout and stderr still hold if they are on a full disk: the exit code would become
    120. An error of stdout has ended the command before."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop_output(stream)


def _drop_output(stream: TextIO) -> None:
    """Write what the stream holds, and all further output, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stdout_lost_its_reader() -> bool:
    """Whether stdout is a pipe whose reader has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

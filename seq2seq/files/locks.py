"""Lock files: one process at a time writes a run directory or an output file."""

import fcntl
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TextIO

from seq2seq.files.remote import is_remote
from seq2seq.files.remote_lock import STALE, RemoteLock
from seq2seq.files.temporaries import StrPath
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.logs import Log, no_log
from seq2seq.runtime.paths import expand_path, is_replaceable

SUFFIX = ".seq2seq-lock"  # of the lock of an output file
HOLDER = re.compile(r"(process \d+ on .*\n)?")  # the content of a lock file


def no_follow(path: str, flags: int) -> int:
    """An opener for `open` that raises OSError if the file is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def lock_file(path: StrPath, held: str, advice: str) -> TextIO:
    """Lock the file `path` until it is closed or the process ends, and write the holder into it.

    Raises UserError(OUTPUT) "`held` (holder); `advice`" if another process holds the lock, and if
    the file is a link or has other content: then it is not a lock of this program.
    """
    while True:
        try:
            file = open(path, "a+", encoding="utf-8", errors="replace", opener=no_follow)
        except OSError as error:
            if not os.path.islink(path):
                raise
            raise _foreign_lock(path, "a symbolic link") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
            file.close()  # the previous holder has deleted this file
        except FileNotFoundError:
            file.close()
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise UserError(OUTPUT, f"{held} ({holder}); {advice}") from None
    file.seek(0)
    if not HOLDER.fullmatch(file.read(1000)):
        file.close()
        raise _foreign_lock(path, "other content")
    file.truncate(0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {platform.node()} since {now}\n")
    file.flush()
    return file


def _foreign_lock(path: StrPath, actual: str) -> UserError:
    return UserError(
        OUTPUT,
        f"{path} is not a lock of this program: expected a file that names a process, got {actual};"
        " move it, or choose another output",
    )


def lock_path(output: str) -> str:
    """The lock file of an output file."""
    return f"{os.path.realpath(expand_path(output))}{SUFFIX}"


def locked_output(path: str, log: Log = no_log) -> AbstractContextManager[Callable[[], None]]:
    """Holds the lock of an output file, so that no other job writes it; deleted at the end.

    Raises UserError(OUTPUT) if it cannot be created or another process holds it. A pipe or a
    device is not locked. The value is a function that raises UserError(OUTPUT) if another process
    has taken over the lock, which is possible for a URL only. `log` receives warnings.
    """
    full = expand_path(path)
    if is_remote(full):
        return _locked_object(full, log)
    return _locked_file(path) if is_replaceable(full) else nullcontext(check_nothing)


def check_nothing() -> None:
    """The check of a lock that cannot be taken over."""


@contextmanager
def _locked_file(path: str) -> Iterator[Callable[[], None]]:
    name = lock_path(path)
    with _creating_lock(path):
        lock = lock_file(name, *_messages(path))
    try:
        yield check_nothing
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
        lock.close()


@contextmanager
def _locked_object(url: str, log: Log) -> Iterator[Callable[[], None]]:
    with _creating_lock(url):
        lock = RemoteLock(f"{url}.lock", *_messages(url), log)
    try:
        yield lock.check
    finally:
        try:
            lock.release()
        except OSError as error:  # the output is complete, or another error is raised
            log(f"warning: {url}.lock could not be deleted, it expires in {STALE:.0f} s: {error}")


def _messages(path: str) -> tuple[str, str]:
    held = f"{path} is being written by another job"
    return held, "wait until it ends, or set another --output"


@contextmanager
def _creating_lock(path: str) -> Iterator[None]:
    """UserError(OUTPUT) for an OSError of the body."""
    try:
        yield
    except OSError as error:
        raise UserError(
            OUTPUT, f"cannot write {path}: {error.strerror or error}; set another --output"
        ) from None


@contextmanager
def waiting_for_lock(path: StrPath, work: str, log: Log) -> Iterator[None]:
    """Hold the lock `path`; wait for the process that holds it, and log what it does (`work`)."""
    with open(path, "a", encoding="utf-8", opener=no_follow) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"waiting for another process that {work}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Lock files: one process at a time writes a run directory or an output file."""

import fcntl
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TextIO

from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.paths import expand_path, is_replaceable
from seq2seq.runtime.temporaries import StrPath

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


@contextmanager
def locked_output(path: str) -> Iterator[None]:
    """Hold the lock of an output file, so that no other job writes it; deleted at the end.

    Raises UserError(OUTPUT) if it cannot be created or another process holds it. A pipe or a
    device is not locked.
    """
    if not is_replaceable(expand_path(path)):
        yield
        return
    name = lock_path(path)
    try:
        lock = lock_file(
            name,
            f"{path} is being written by another job",
            "wait until it ends, or set another --output",
        )
    except OSError as error:
        raise UserError(
            OUTPUT, f"cannot write {path}: {error.strerror}; set another --output"
        ) from None
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
        lock.close()

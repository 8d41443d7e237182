"""Files in and out for the commands: lines of text, and outputs that appear whole or not at all.

What a line is, is as in `text_files`.
"""

import fcntl
import gzip
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import BinaryIO, TextIO

from runtime.errors import DATA, OUTPUT, UserError
from runtime.lines import LONGEST, TOO_LONG, raw_lines
from runtime.paths import expanded


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line of a file, .gz or not.

    UserError(DATA) where it cannot be read or a line is not UTF-8 or far too long.
    """
    for number, line in enumerate(raw_lines(path), start=1):
        if len(line) > LONGEST:
            raise UserError(DATA, f"{path}:{number}: {TOO_LONG}; is it text, a sentence a line?")
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                DATA,
                f"{path}:{number}: byte {line[error.start]:#04x} is not UTF-8; "
                "convert the file, with iconv for example",
            ) from None


def check_outputs(paths: Iterable[str], overwrite: bool) -> None:
    """UserError(OUTPUT) unless each file can be written and, without `overwrite`, is not there."""
    for path in map(expanded, paths):
        if os.path.isfile(path) and not overwrite:
            raise UserError(OUTPUT, f"{path} exists; give --overwrite to replace it")
        if not path or os.path.isdir(path) or not writable(path):
            raise UserError(
                OUTPUT,
                f"cannot write {path or repr(path)}; it must be a file in a "
                "directory that exists and may be written to",
            )


def writable(path: str) -> bool:
    """Whether `path` can be written: a file by creating another one in its directory, as /proc has
    write permission and holds no new files."""
    if not replaceable(path):
        return os.access(path, os.W_OK)
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            return True
    except OSError:
        return False


def replaceable(path: str) -> bool:
    """Whether a file may be put in the place of `path`: not of a pipe, a device, a directory."""
    return os.path.isfile(path) or not os.path.exists(path)


def write_lines(path: str, lines: Iterable[str]) -> int:
    """Writes lines of UTF-8, compressed where `path` ends with .gz, and returns how many.

    A file appears when all are written; a pipe or a device gets each line at once.
    """
    count, at_once = 0, not replaceable(expanded(path))
    with created(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
            count += 1
            if at_once:
                file.flush()
    return count


@contextmanager
def created(path: str) -> Iterator[BinaryIO]:
    """A file to write to, which appears at the end, if all went well, safe on the disk.

    A link stays, its target is replaced; to a pipe or a device it goes at once. What ends with .gz
    is compressed, to the same bytes each time.
    """
    path = os.path.realpath(expanded(path))
    temporary = f"{path}.tmp" if replaceable(path) else path
    try:
        with open(temporary, "wb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
                    yield compressed
            else:
                yield file
            if temporary != path:
                file.flush()
                os.fsync(file.fileno())
        if temporary != path:
            os.replace(temporary, path)
    except BaseException:
        if temporary != path and os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Replaces a small file at once, safe on the disk. Text is UTF-8."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def lock_file(path: str | os.PathLike, held: str, advice: str) -> TextIO:
    """Locks the file `path` for this process until it is closed or the process ends in any way.

    The file names the process. UserError(OUTPUT) "`held` (holder); `advice`" where another process
    has the lock.
    """
    while True:
        file = open(path, "a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
            file.close()  # the holder before has deleted this file
        except FileNotFoundError:
            file.close()
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise UserError(OUTPUT, f"{held} ({holder}); {advice}") from None
    file.truncate(0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {platform.node()} since {now}\n")
    file.flush()
    return file


@contextmanager
def locked_output(path: str) -> Iterator[None]:
    """Holds PATH.lock, so that no other job writes to the same output; deleted at the end.

    UserError(OUTPUT) where it cannot be created or another process holds it. A pipe or a device
    needs no lock.
    """
    path = os.path.realpath(expanded(path))
    if not replaceable(path):
        yield
        return
    try:
        lock = lock_file(
            f"{path}.lock",
            f"{path} is being written by another job",
            "wait for its end or choose another --output",
        )
    except OSError as error:
        raise UserError(
            OUTPUT, f"cannot write {path}: {error.strerror}; choose another --output"
        ) from None
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.lock")
        lock.close()

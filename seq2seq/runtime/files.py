"""Output files of commands, atomic writes and locks.

An atomic write goes to another name first: a file or directory appears complete or not at all.
"""

import fcntl
import gzip
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import BinaryIO, TextIO, cast

from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.paths import expand_path

StrPath = str | os.PathLike[str]


def check_outputs(paths: Iterable[str], overwrite: bool) -> None:
    """Raise UserError(OUTPUT) for a file that cannot be written, or exists without `overwrite`."""
    for path in map(expand_path, paths):
        if os.path.isfile(path) and not overwrite:
            raise UserError(OUTPUT, f"{path} exists; set --overwrite to replace it")
        if not path or os.path.isdir(path) or not is_writable(path):
            raise UserError(
                OUTPUT,
                f"cannot write {path or repr(path)}: expected a file in an existing, writable "
                "directory",
            )


def is_writable(path: str) -> bool:
    """Whether `path` can be written. For a file, another one is created in its directory: /proc
    has write permission but accepts no new files."""
    if not is_replaceable(path):
        return os.access(path, os.W_OK)
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            return True
    except OSError:
        return False


def is_replaceable(path: str) -> bool:
    """Whether `path` can be replaced by a file: False for a pipe, a device or a directory."""
    return os.path.isfile(path) or not os.path.exists(path)


def write_lines(path: str, lines: Iterable[str]) -> int:
    """Write lines as UTF-8, compressed if `path` ends with .gz; returns their number.

    A file appears when it is complete; a pipe or a device receives each line immediately.
    """
    count, unbuffered = 0, not is_replaceable(expand_path(path))
    with open_atomic(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
            count += 1
            if unbuffered:
                file.flush()
    return count


@contextmanager
def open_atomic(path: str) -> Iterator[BinaryIO]:
    """A binary file to write, which replaces `path` at the end unless an exception is raised.

    It is on the disk before it is renamed. If `path` is a symbolic link, its target is replaced. A
    pipe or a device is written directly. A path that ends with .gz is compressed reproducibly.
    """
    path = os.path.realpath(expand_path(path))
    temporary = f"{path}.tmp" if is_replaceable(path) else path
    try:
        with open(temporary, "wb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
                    yield cast(BinaryIO, compressed)
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


def write_atomic(path: StrPath, content: str | bytes) -> None:
    """Replace a small file by `content` atomically; it is on the disk first. Text is UTF-8."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    temporary = f"{os.fspath(path)}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def publish_directory(temporary: StrPath, path: StrPath) -> None:
    """Rename a complete directory to its final path, and wait until the name is on the disk."""
    os.rename(temporary, path)
    sync_to_disk(os.path.dirname(os.path.abspath(path)))


def delete_directory(path: StrPath, temporary: StrPath) -> None:
    """Delete a directory under another name, so that `path` never holds a part of it."""
    os.rename(path, temporary)
    shutil.rmtree(temporary)


def sync_to_disk(path: StrPath) -> None:
    """Wait until a file, or the list of names in a directory, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def file_sha256(path: StrPath) -> str:
    """The sha256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock_file(path: StrPath, held: str, advice: str) -> TextIO:
    """Lock the file `path` until it is closed or the process ends, and write the holder into it.

    Raises UserError(OUTPUT) "`held` (holder); `advice`" if another process holds the lock.
    """
    while True:
        file = open(path, "a+", encoding="utf-8", errors="replace")
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
    file.truncate(0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {platform.node()} since {now}\n")
    file.flush()
    return file


@contextmanager
def locked_output(path: str) -> Iterator[None]:
    """Hold the lock PATH.lock, so that no other job writes the same output; deleted at the end.

    Raises UserError(OUTPUT) if it cannot be created or another process holds it. A pipe or a
    device is not locked.
    """
    path = os.path.realpath(expand_path(path))
    if not is_replaceable(path):
        yield
        return
    try:
        lock = lock_file(
            f"{path}.lock",
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
            os.unlink(f"{path}.lock")
        lock.close()

"""Temporary files and directories: new, marked as this program's, and deleted after a kill.

What a command writes has the name NAME.RANDOM.seq2seq-tmp beside NAME until it is complete. The
name is new, so nothing of a user is replaced. The process that writes it holds a lock on it: the
next one that writes NAME deletes those without a lock, which killed processes have left.
"""

import fcntl
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from seq2seq.runtime.errors import naming

SUFFIX = "seq2seq-tmp"
MARKED = re.compile(rf"(.*)\.[0-9a-f]{{12}}\.{SUFFIX}", re.DOTALL)
LONGEST = 50  # characters of NAME that are used: a file system limits names to 255 bytes

StrPath = str | os.PathLike[str]


def is_temporary(name: str) -> bool:
    """Whether a file or directory of this name is a temporary one of this program."""
    return MARKED.fullmatch(name) is not None


class NamedFile(io.FileIO):
    """An open file to write, whose errors have its final path."""

    def __init__(self, opened: int, path: StrPath):
        super().__init__(opened, "wb")
        self.name = os.fspath(path)

    def write(self, content: Any) -> int:
        with naming(self.name):
            return super().write(content)


def named_file(opened: int, path: StrPath) -> BinaryIO:
    """A buffered `NamedFile`."""
    return io.BufferedWriter(NamedFile(opened, path))


@contextmanager
def temporary_file(path: StrPath) -> Iterator[tuple[str, BinaryIO]]:
    """The path and the binary file of a new temporary file beside `path`, deleted at the end unless
    it was renamed."""
    temporary, opened = _create(path, _create_file, os.O_WRONLY)
    try:
        with named_file(opened, path) as file:
            yield temporary, file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


@contextmanager
def temporary_directory(path: StrPath) -> Iterator[Path]:
    """A new empty directory beside `path`, deleted at the end.

    What is in it can be renamed to `path`. The directory itself stays, because its lock does.
    """
    temporary, opened = _create(path, os.mkdir, os.O_RDONLY)
    try:
        yield Path(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(opened)


def delete_directory(path: StrPath) -> str:
    """Delete a directory under another name, so that `path` never holds a part of it.

    Returns "" or a description of what could not be deleted. OSError if `path` cannot be renamed.
    """
    with temporary_directory(path) as temporary:
        os.rename(path, temporary / "deleted")
    # On NFS a directory cannot be deleted while another process reads a file in it.
    if not temporary.exists():
        return ""
    return f"{temporary} could not be deleted, the next start deletes it"


def delete_abandoned(path: StrPath) -> None:
    """Delete the temporary files and directories of `path` that no process holds."""
    directory, prefix = _directory_and_prefix(path)
    names: list[str] = []
    with suppress(OSError):  # it does not exist yet, or its names cannot be read
        names = os.listdir(directory)
    for name in names:
        if (marked := MARKED.fullmatch(name)) and marked[1] == prefix:
            temporary = os.path.join(directory, name)
            with suppress(OSError):  # it is held, deleted, or the file system has no locks
                opened = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete_temporary(temporary)
                finally:
                    os.close(opened)


def delete_temporary(path: StrPath) -> None:
    """Delete a temporary file or directory, as far as possible."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _directory_and_prefix(path: StrPath) -> tuple[str, str]:
    directory, name = os.path.split(os.path.abspath(path))
    return directory, name[:LONGEST]


def _create(path: StrPath, create: Callable[[str], None], flags: int) -> tuple[str, int]:
    """The path of what `create` has made, opened with `flags`, and locked until it is closed."""
    delete_abandoned(path)
    directory, prefix = _directory_and_prefix(path)
    while True:
        temporary = os.path.join(directory, f"{prefix}.{uuid4().hex[:12]}.{SUFFIX}")
        create(temporary)
        with suppress(FileNotFoundError):  # another process has deleted it before it was locked
            opened = os.open(temporary, flags | os.O_NOFOLLOW)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(opened, fcntl.LOCK_EX)
            if os.path.exists(temporary):
                return temporary, opened
            os.close(opened)


def _create_file(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))

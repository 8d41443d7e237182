"""Files to read, by path or URL: what names them, what tells their versions apart, their bytes."""

import io
import os
from typing import NamedTuple

from seq2seq.files import remote
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.paths import expand_path


class FileVersion(NamedTuple):
    """A version of a file: another content has another version."""

    path: str  # absolute, or a URL
    size: int
    stamp: int | str  # modification time in ns; of an object, its generation or ETag


def absolute_path(path: str) -> str:
    """The path, independent of the current directory; a URL is not changed. Variables are
    expanded."""
    full = expand_path(path)
    return full if remote.is_remote(full) else os.path.abspath(full)


def is_rereadable(path: str) -> bool:
    """Whether `path` is a regular file or a URL, which can be read several times."""
    full = expand_path(path)
    return remote.is_remote(full) or os.path.isfile(full)


def version_of(path: str) -> FileVersion:
    """The present version of a file. UserError(DATA) if it is missing or cannot be read."""
    full = absolute_path(path)
    if remote.is_remote(full):
        return FileVersion(full, *remote_file(full))
    try:
        status = os.stat(full)
    except OSError as error:
        raise UserError(
            DATA, f"{full} cannot be read: {error.strerror}; restore it and start again"
        ) from None
    return FileVersion(full, status.st_size, status.st_mtime_ns)


def remote_file(url: str) -> remote.RemoteFile:
    """The present version of an object. UserError(DATA) if it is missing or cannot be read."""
    try:
        return remote.info(url)
    except FileNotFoundError:
        raise UserError(DATA, f"{url} does not exist; check the URL") from None
    except OSError as error:
        raise UserError(
            DATA, f"{url} cannot be read: {error}; check the URL, the credentials and the network"
        ) from None


def open_raw(path: str) -> io.RawIOBase:
    """An unbuffered binary file to read. OSError if it cannot be opened."""
    full = expand_path(path)
    return remote.open_stream(full) if remote.is_remote(full) else io.FileIO(full)

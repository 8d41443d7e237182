"""Lines of text files as bytes, compressed (.gz) or not, with one line in memory at a time."""

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from runtime.errors import DATA, UserError
from runtime.paths import check_local_path, expand_path

LONGEST = 1 << 20  # bytes; a longer line is not a sentence and is truncated when it is read
TOO_LONG = f"longer than {LONGEST:,} bytes"
VARIABLE = re.compile(r"\$\{?(\w+)")  # that expand_path left, because it is not set
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Digest(Protocol):
    """A hash object of hashlib."""

    def update(self, data: bytes, /) -> None: ...


def check_file(path: str) -> None:
    """Raise UserError(DATA) unless `path` can be opened and is not empty."""
    full = expand_path(path)
    check_local_path("the corpus", full)
    shown = path if os.path.abspath(full) == path else f"{path} ({os.path.abspath(full)})"
    if not os.path.exists(full):
        if unset := VARIABLE.search(full):
            raise UserError(
                DATA,
                f"{path} does not exist: the environment variable {unset[1]} is not set; "
                "set it, or give other paths (config.data.corpus, config.data.valid, "
                "config.data.test)",
            )
        raise UserError(
            DATA,
            f"{shown} does not exist; check the path, relative to the current directory",
        )
    if os.path.isdir(full):
        raise UserError(
            DATA, f"{shown} is a directory: expected a file; name a file of one sentence per line"
        )
    if not os.access(full, os.R_OK):
        raise UserError(DATA, f"{shown} cannot be read; check its permissions")
    if os.path.isfile(full) and os.path.getsize(full) == 0:  # a pipe has size 0, too
        raise UserError(DATA, f"{shown} is empty: expected one sentence per line")


def raw_lines(path: str, digest: Digest | None = None) -> Iterator[bytes]:
    """The lines of a non-empty file as bytes; `digest` is updated with all bytes that are read.

    A line longer than LONGEST is truncated to a few bytes more, so that callers can detect it.
    Raises UserError(DATA) if the file cannot be read.
    """
    check_file(path)
    yield from file_lines(path, digest)


def file_lines(path: str, digest: Digest | None = None) -> Iterator[bytes]:
    """`raw_lines` of a file that may be empty; "-" is stdin, read line by line."""
    number = 0
    try:
        with open_binary(path) as file:
            for number, line in enumerate(truncated_lines(file, digest), 1):
                yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            DATA,
            f"{path} is damaged or cut off after line {number} ({error}); create "
            "or download it again",
        ) from None
    except OSError as error:
        raise UserError(DATA, f"{path} cannot be read: {error.strerror or error}") from None


def open_binary(path: str) -> BinaryIO:
    """A buffered binary file to read, decompressed if its name ends with .gz; "-" is stdin.

    A read returns the bytes that a pipe holds; it does not wait until the buffer is full.
    """
    if path == "-":  # not sys.stdin.buffer: a thread that reads it would block the exit
        return open(sys.stdin.fileno(), "rb", 1 << 20, closefd=False)
    if path.endswith(".gz"):
        return io.BufferedReader(gzip.open(expand_path(path), "rb"), 1 << 20)
    return open(expand_path(path), "rb", 1 << 20)


def truncated_lines(file: BinaryIO, digest: Digest | None = None) -> Iterator[bytes]:
    """The lines of a binary file without their line ends, each truncated as in `raw_lines`.

    At most one truncated line is in memory, even if a compressed file has a line of gigabytes.
    """
    continued = False  # whether the next part continues a line that was truncated
    while part := file.readline(LONGEST + 8):  # room for a byte order mark and the line end
        if digest:
            digest.update(part)
        if not continued:
            yield part.removesuffix(b"\n").removesuffix(b"\r")
        continued = not part.endswith(b"\n")

"""Lines of text files as bytes, .gz or not, with memory for one line."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from runtime.errors import DATA, UserError
from runtime.paths import check_local, expanded

LONGEST = 1 << 20  # bytes of a line: more are no sentence, and are not kept in memory
TOO_LONG = f"longer than {LONGEST:,} bytes"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def check_file(path: str) -> None:
    """UserError(DATA) unless `path` is a file that can be opened and is not empty."""
    full = expanded(path)
    check_local("the corpus", full)
    seen = path if os.path.abspath(full) == path else f"{path} ({os.path.abspath(full)})"
    if not os.path.exists(full):
        raise UserError(
            DATA,
            f"{seen} does not exist; check the path, relative to the directory the command runs in",
        )
    if os.path.isdir(full):
        raise UserError(DATA, f"{seen} is a directory; name a file of one sentence per line")
    if not os.access(full, os.R_OK):
        raise UserError(DATA, f"{seen} cannot be read; check its permissions")
    if os.path.isfile(full) and os.path.getsize(full) == 0:  # a pipe has size 0 and may be read
        raise UserError(DATA, f"{seen} is empty; it must have one sentence per line")


def raw_lines(path: str, digest=None) -> Iterator[bytes]:
    """The lines of a file as bytes, one at a time; a hashlib `digest` is fed with what was read.

    Of a line longer than LONGEST only its beginning is given, which is longer than that, too.
    UserError(DATA) where the file cannot be read.
    """
    check_file(path)
    yield from file_lines(path, digest)


def file_lines(path: str, digest=None) -> Iterator[bytes]:
    """`raw_lines` of a file that may be empty; "-" is stdin, as its lines come."""
    number = 0
    try:
        with opened(path) as file:
            for number, line in enumerate(beginnings(file, digest), 1):
                yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            DATA,
            f"{path} is damaged or cut off after line {number} ({error}); make "
            "or download it again",
        ) from None
    except OSError as error:
        raise UserError(DATA, f"{path} cannot be read: {error.strerror or error}") from None


def opened(path: str) -> BinaryIO:
    """A buffered binary file to read, decompressed where its name ends with .gz; "-" is stdin.

    A read returns what a pipe holds: it does not wait until the buffer is full.
    """
    if path == "-":  # not sys.stdin.buffer: a thread that waits in it would block the exit
        return open(sys.stdin.fileno(), "rb", 1 << 20, closefd=False)
    if path.endswith(".gz"):
        return io.BufferedReader(gzip.open(expanded(path), "rb"), 1 << 20)
    return open(expanded(path), "rb", 1 << 20)


def beginnings(file, digest=None) -> Iterator[bytes]:
    """The lines of a binary file without their ends, as `raw_lines` gives them, whatever is in it.

    Memory for one line at most, however long: a compressed file may hold gigabytes of it.
    """
    goes_on = False  # what comes is the rest of a line
    while part := file.readline(LONGEST + 8):  # a byte order mark and the end are taken off
        if digest:
            digest.update(part)
        if not goes_on:
            yield part.removesuffix(b"\n").removesuffix(b"\r")
        goes_on = not part.endswith(b"\n")

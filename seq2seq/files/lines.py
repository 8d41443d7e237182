"""Lines of text files, compressed or not, with one line in memory at a time."""

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from seq2seq.files.compression import (
    CHUNK,
    check_library,
    compression_of_content,
    compression_of_name,
)
from seq2seq.files.file_formats import other_format
from seq2seq.files.input_files import open_raw, remote_file
from seq2seq.files.remote import check_url, is_remote
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.paths import expand_path

LONGEST = 1 << 20  # bytes; a longer line is not a sentence and is truncated when it is read
SHOWN_PLACES = 5  # lines with replaced bytes that are reported each; then their number is
TOO_LONG = f"longer than {LONGEST:,} bytes"
VARIABLE = re.compile(r"\$\{?(\w+)")  # that expand_path left, because it is not set
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Digest(Protocol):
    """A hash object of hashlib."""

    def update(self, data: bytes, /) -> None: ...


def check_file(path: str) -> None:
    """Raise UserError(DATA) unless `path` can be opened and is not empty, and
    UserError(CONFIGURATION) for a URL as in `remote.check_url` and without a library that it
    needs."""
    full = expand_path(path)
    check_library(full)
    if is_remote(full):
        check_url("the corpus", full)
        if remote_file(full).size == 0:
            raise UserError(DATA, f"{full} is empty: expected one sentence per line")
        return
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


def text_lines(path: str, warn: Callable[[str], None] | None = None) -> Iterator[str]:
    """The lines of a file or stdin ("-") as text, split at \\n only.

    UserError(DATA) if the file cannot be read, and for a line longer than LONGEST bytes or not
    UTF-8. With `warn` such a line is truncated, its invalid bytes are replaced, and `warn` is
    called with a message: for replaced bytes at the first SHOWN_PLACES lines, and at the end with
    the number of lines if there are more.
    """
    replaced = 0
    for number, line in enumerate(file_lines(path), start=1):
        place = f"{path}:{number}"
        if len(line) > LONGEST:
            if warn is None:
                raise UserError(
                    DATA, f"{place}: {TOO_LONG}: expected text with one sentence per line"
                )
            warn(f"{place}: {TOO_LONG}, truncated")
            line = whole_characters(line)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if warn is None:
                raise UserError(
                    DATA,
                    f"{place}: byte {line[error.start]:#04x} is not UTF-8; convert the file, for "
                    "example with iconv",
                ) from None
            replaced += 1
            if replaced <= SHOWN_PLACES:
                warn(f"{place}: not UTF-8, bytes replaced")
            text = line.decode("utf-8", errors="replace")
        yield text
    if warn and replaced > SHOWN_PLACES:
        warn(f"{path}: bytes replaced in {replaced:,} lines that are not UTF-8")


def whole_characters(line: bytes) -> bytes:
    """The characters of a line above LONGEST bytes that end within the first LONGEST bytes."""
    end = LONGEST
    while end > LONGEST - 3 and line[end] & 0xC0 == 0x80:  # a later byte of a character
        end -= 1
    return line[:end]


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line of a file that is not empty.

    Raises UserError(DATA) if the file cannot be read or a line is too long or not UTF-8.
    """
    check_file(path)
    yield from enumerate(text_lines(path), start=1)


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
            f"{path} is damaged or cut off (the first {number:,} lines were read; {error}); create "
            "or download it again",
        ) from None
    except OSError as error:
        raise UserError(DATA, f"{path} cannot be read: {error.strerror or error}") from None


def open_binary(path: str) -> io.BufferedReader:
    """A buffered binary file to read, decompressed if its content or its name is one of
    `COMPRESSIONS`; "-" is stdin, a URL an object, of which a part is in memory.
    UserError(DATA) for a content that is not text in UTF-8 (`other_format`).

    A read returns the bytes that a pipe holds; it does not wait until the buffer is full.
    """
    if path == "-":  # not sys.stdin.buffer: a thread that reads it would block the exit
        raw: io.RawIOBase = io.FileIO(sys.stdin.fileno(), closefd=False)
    else:
        raw = open_raw(path)
    file: io.BufferedReader = io.BufferedReader(raw, CHUNK)
    compression = compression_of_content(file.peek(1))
    if compression:
        file = io.BufferedReader(compression.decompressed(file), CHUNK)
    if problem := other_format(file.peek(1)):
        file.close()
        raise UserError(DATA, f"{path} {problem}")
    if not compression and (compression := compression_of_name(path)):
        file = io.BufferedReader(compression.decompressed(file), CHUNK)
    return file


def truncated_lines(file: io.BufferedIOBase, digest: Digest | None = None) -> Iterator[bytes]:
    """The lines of a binary file without their line ends, each truncated as in `raw_lines`.

    At most CHUNK bytes and one truncated line are in memory, even if a compressed file has a line
    of gigabytes.
    """
    started = b""  # the start of a line whose end is not read yet
    while chunk := file.read1(CHUNK):
        if digest:
            digest.update(chunk)
        first, *lines = chunk.split(b"\n")
        first = started + first[: LONGEST + 8 - len(started)]  # room for a mark and the line end
        if not lines:
            started = first
            continue
        started = lines.pop()
        yield first.removesuffix(b"\r")
        yield from [line.removesuffix(b"\r") for line in lines] if b"\r" in chunk else lines
    if started:
        yield started.removesuffix(b"\r")

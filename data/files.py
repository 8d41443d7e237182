"""Files in and out for the commands: lines of text, and outputs that appear whole or not at all.

What a line is, is as in `text_files`.
"""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from data.errors import DATA, OUTPUT, UserError
from data.text_files import LONGEST, TOO_LONG, expanded, raw_lines


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
            raise UserError(DATA, f"{path}:{number}: byte {line[error.start]:#04x} is not UTF-8; "
                            "convert the file, with iconv for example") from None


def check_outputs(paths: Iterable[str], overwrite: bool) -> None:
    """UserError(OUTPUT) unless each file can be written and, without `overwrite`, is not there."""
    for path in map(expanded, paths):
        if os.path.isfile(path) and not overwrite:
            raise UserError(OUTPUT, f"{path} exists; give --overwrite to replace it")
        written = path if path and not replaceable(path) else os.path.dirname(os.path.abspath(path))
        if not path or os.path.isdir(path) or not os.access(written, os.W_OK):
            raise UserError(OUTPUT, f"cannot write {path or repr(path)}; it must be a file in a "
                            "directory that exists and may be written to")


def replaceable(path: str) -> bool:
    """Whether a file may be put in the place of `path`: not of a pipe, a device, a directory."""
    return os.path.isfile(path) or not os.path.exists(path)


def write_lines(path: str, lines: Iterable[str]) -> int:
    """Writes lines of UTF-8, compressed where `path` ends with .gz, and returns how many.

    The file appears when all are written.
    """
    count = 0
    with created(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
            count += 1
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

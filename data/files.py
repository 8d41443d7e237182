"""Files in and out for the commands: lines of text, and outputs that appear whole or not at all.

What a line is, is as in `text_files`.
"""

import os
from collections.abc import Iterable, Iterator

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
        directory = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path) or not os.access(directory, os.W_OK):
            raise UserError(OUTPUT, f"cannot write {path}; it must be a file in a directory that "
                            "exists and may be written to")


def write_lines(path: str, lines: Iterable[str]) -> int:
    """Writes lines of UTF-8 and returns how many; the file appears when all are written."""
    path, count = os.path.realpath(expanded(path)), 0  # a link stays, its target is replaced
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device
        temporary = path
    else:
        temporary = f"{path}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
        if temporary != path:
            os.replace(temporary, path)
    except BaseException:
        if temporary != path and os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return count


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Replaces a small file at once, safe on the disk. Text is UTF-8."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)

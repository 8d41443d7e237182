"""Writes to a run directory: an entry is written as a whole or lost, and links are not followed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seq2seq.files.locks import no_follow
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.streams import write_stderr


def append(path: Path, content: bytes) -> None:
    """Append to a file that is no symbolic link all of `content`, or nothing and raise OSError: a
    part of it, from a disk that is full, would damage the next entry."""
    with open(path, "ab", buffering=0, opener=no_follow) as file:
        size, rest = file.tell(), memoryview(content)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)
            raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file of a run directory; if that fails it is lost, with a warning."""
    with warn_on_write_error(path.name):
        append(path, f"{line}\n".encode("utf-8", "backslashreplace"))


@contextmanager
def warn_on_write_error(name: str) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a warning: training continues."""
    try:
        yield
    except OSError as error:
        write_stderr(f"warning: part of {name} is lost: {error.strerror or error}\n")


def refuse_link(directory: Path, alternative: str) -> None:
    """UserError(OUTPUT) if a directory that a run writes is a link to another directory."""
    if directory.is_symlink():
        raise UserError(
            OUTPUT,
            f"{directory} is a symbolic link: expected a directory of this run; delete the link, "
            f"or {alternative}",
        )

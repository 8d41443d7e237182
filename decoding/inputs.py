"""Input of a decoding job: lines of --input and --target as items, read twice from files.

The first pass finds malformed lines and counts, before any device is used.
"""

import os
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import NamedTuple

from decoding.formats import Item, parsed
from decoding.progress import note
from runtime.errors import DATA, UserError
from runtime.lines import LONGEST, TOO_LONG, file_lines
from runtime.paths import expand_path


class Input(NamedTuple):
    """Where the items of a job come from. `scored`: each must hold a translation to score."""

    path: str
    target: str
    form: str
    scored: bool

    @property
    def rereadable(self) -> bool:
        """Whether all of it is in files, which can be read again."""
        return all(os.path.isfile(expand_path(path)) for path in (self.path, self.target) if path)

    def items(self, lines: range | None = None, warn: bool = True) -> Iterator[tuple[int, Item]]:
        """(number from 0, item) of all lines or of some; `warn` names those that are changed.

        UserError(DATA) for a malformed line, and where the two files are not parallel.
        """
        own = self.scored and not self.target
        each = (
            parsed(self.form, line, f"{self.path}:{number}", own)
            for number, line in enumerate(read_lines(self.path, warn), start=1)
        )
        if self.target:
            each = paired(each, read_lines(self.target, warn), self.path, self.target)
        numbered = enumerate(each)
        return numbered if lines is None else islice(numbered, lines.start, lines.stop)

    def count(self) -> int:
        """How many lines there are, after all of them were read and found well-formed."""
        return sum(1 for _ in self.items(warn=False))


def read_lines(path: str, warn: bool = True) -> Iterator[str]:
    """Lines of a file (.gz or not) or stdin ("-"), split at \\n only; bad UTF-8 is replaced."""
    for number, line in enumerate(file_lines(path), start=1):
        if len(line) > LONGEST:
            line = line[:LONGEST].decode("utf-8", errors="ignore").encode("utf-8")
            if warn:
                note(f"{path}:{number}: {TOO_LONG}, cut off there")
        text = line.decode("utf-8", errors="replace")
        if warn and "\ufffd" in text and text.encode("utf-8") != line:
            note(f"{path}:{number}: not UTF-8, bytes replaced")
        yield text


def paired(items: Iterator[Item], targets: Iterator[str], *names: str) -> Iterator[Item]:
    """Items with the lines of another file as their targets. UserError(DATA) if one has more."""
    number = 0
    for item, target in zip_longest(items, targets):
        if item is None or target is None:
            raise UserError(
                DATA,
                f"{names[item is not None]} ends after line {number}, "
                f"{names[item is None]} does not; they must be parallel",
            )
        number += 1
        yield item._replace(target=target)


def check_input(path: str) -> None:
    """UserError(DATA) unless `path` can be read: a file, a pipe, or "-" for stdin."""
    full = expand_path(path)
    if path != "-" and (not path or not os.path.exists(full) or os.path.isdir(full)):
        raise UserError(DATA, f"there is no file {os.path.abspath(full) if path else repr(path)}")
    if path != "-" and not os.access(full, os.R_OK):
        raise UserError(DATA, f"{path} cannot be read; check its permissions")

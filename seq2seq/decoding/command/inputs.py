"""Input of a decoding job: the lines of --input and --target as items, and shards of them.

Files are read twice. The first pass counts the lines and finds malformed ones before any device is
used.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from seq2seq.decoding.command.formats import Format
from seq2seq.decoding.results import Item
from seq2seq.files.compression import check_library
from seq2seq.files.input_files import is_rereadable, remote_file
from seq2seq.files.lines import text_lines
from seq2seq.files.remote import is_remote
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.paths import expand_path
from seq2seq.runtime.streams import note

NumberedItems = Iterator[tuple[int, Item]]  # numbers from 0


@dataclass(frozen=True)
class Input:
    """Where the items of a job come from."""

    path: str
    target: str  # a file of translations to score; "" if there is none
    line_format: Format
    scored: bool  # each item must hold a translation to score
    prefix: str = ""  # of the translation of each line that has none of its own

    @property
    def rereadable(self) -> bool:
        """Whether it consists of regular files and URLs, which can be read again."""
        paths = filter(None, (self.path, self.target))
        return all(path != "-" and is_rereadable(path) for path in paths)

    def items(
        self, lines: range | None = None, texts: Iterable[str] | None = None
    ) -> NumberedItems:
        """(number, item) of all lines or of the range `lines`. `texts` are read in place of the
        lines of `path`. Lines that are changed are reported on stderr if all are read: `count` has
        reported those of a range.

        UserError(DATA) for a malformed line, if the two files are not parallel, and if the input
        ends before the end of `lines`.
        """
        needs_target = self.scored and not self.target
        log = note if lines is None else no_log
        items: Iterator[Item] = (
            self.line_format.parse(line, f"{self.path}:{number}", needs_target)
            for number, line in enumerate(
                text_lines(self.path, log) if texts is None else texts, start=1
            )
        )
        if self.target:
            items = with_targets(items, text_lines(self.target, log), self.path, self.target)
        if self.prefix:
            items = (
                item._replace(prefix=self.prefix) if item.prefix is None else item for item in items
            )
        numbered = enumerate(items)
        return numbered if lines is None else self._part(numbered, lines)

    def _part(self, numbered: NumberedItems, lines: range) -> NumberedItems:
        """The items of the range `lines`, all of which existed when the input was counted."""
        number = -1
        for number, item in islice(numbered, lines.stop):
            if number >= lines.start:
                yield number, item
        if number + 1 < lines.stop:
            raise UserError(
                DATA,
                f"{self.path} was truncated while it was decoded: expected at least {lines.stop} "
                f"lines, got {number + 1}; restore it and run the same command again",
            )

    def count(self) -> int:
        """The number of lines. Reads and checks all of them."""
        return sum(1 for _ in self.items())


def with_targets(items: Iterator[Item], targets: Iterator[str], *names: str) -> Iterator[Item]:
    """The items with the lines of another file as their targets. UserError(DATA), with the `names`
    of both files, if one has more lines."""
    number = 0
    for item, target in zip_longest(items, targets):
        if item is None or target is None:
            raise UserError(
                DATA,
                f"{names[item is not None]} ends after line {number}: expected as many lines "
                f"as in {names[item is None]}; the two files must be parallel",
            )
        number += 1
        yield item._replace(target=target)


def shard_of(spec: str) -> tuple[int, int]:
    """ "2/8" → (2, 8). UserError(CONFIGURATION) if it is malformed."""
    part, _, parts = spec.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise UserError(
            CONFIGURATION, f"--shard must be PART/PARTS with PART from 1 to PARTS, got {spec!r}"
        )
    return int(part), int(parts)


def shard_lines(lines: int, part: int, parts: int) -> range:
    """The lines (from 0) of a part (from 1). The concatenation of all parts is all lines."""
    return range((part - 1) * lines // parts, part * lines // parts)


def check_input(path: str) -> None:
    """UserError(DATA) unless `path` is readable: a file, a URL, a pipe, or "-" for stdin;
    UserError(CONFIGURATION) without a library that it needs."""
    full = expand_path(path)
    check_library(full)
    if path == "-":
        return
    if is_remote(full):
        remote_file(full)
        return
    if not path or not os.path.exists(full):
        raise UserError(DATA, f"no such file: {os.path.abspath(full) if path else repr(path)}")
    if os.path.isdir(full):
        raise UserError(
            DATA,
            f"{os.path.abspath(full)} is a directory: expected a file; name a file of one text per "
            "line",
        )
    if not os.access(full, os.R_OK):
        raise UserError(DATA, f"cannot read {path}; check its permissions")

"""Input of a decoding job: the lines of --input and --target as items.

Files are read twice. The first pass counts the lines and finds malformed ones before any device is
used.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from decoding.formats import Format, Item
from decoding.progress import note
from runtime.errors import DATA, OUTPUT, UserError
from runtime.lines import LONGEST, TOO_LONG, file_lines
from runtime.paths import expand_path


@dataclass(frozen=True)
class Input:
    """Where the items of a job come from."""

    path: str
    target: str  # a file of translations to score; "" if there is none
    line_format: Format
    scored: bool  # each item must hold a translation to score

    @property
    def rereadable(self) -> bool:
        """Whether it consists of regular files, which can be read again."""
        return all(os.path.isfile(expand_path(path)) for path in (self.path, self.target) if path)

    def items(
        self, lines: range | None = None, warn: bool = True, texts: Iterable[str] | None = None
    ) -> Iterator[tuple[int, Item]]:
        """(number from 0, item) of all lines or of the range `lines`. `warn`: report lines that are
        changed on stderr. `texts` are read in place of the lines of `path`.

        UserError(DATA) for a malformed line, and if the two files are not parallel.
        """
        needs_target = self.scored and not self.target
        items: Iterator[Item] = (
            self.line_format.parse(line, f"{self.path}:{number}", needs_target)
            for number, line in enumerate(
                read_lines(self.path, warn) if texts is None else texts, start=1
            )
        )
        if self.target:
            items = with_targets(items, read_lines(self.target, warn), self.path, self.target)
        numbered = enumerate(items)
        return numbered if lines is None else islice(numbered, lines.start, lines.stop)

    def count(self) -> int:
        """The number of lines. Reads and checks all of them."""
        return sum(1 for _ in self.items(warn=False))


def read_lines(path: str, warn: bool = True) -> Iterator[str]:
    """The lines of a file (.gz or not) or stdin ("-"), split at \\n only. Invalid UTF-8 is
    replaced, and lines longer than LONGEST bytes are truncated."""
    for number, line in enumerate(file_lines(path), start=1):
        if len(line) > LONGEST:
            line = line[:LONGEST].decode("utf-8", errors="ignore").encode("utf-8")
            if warn:
                note(f"{path}:{number}: {TOO_LONG}, truncated")
        text = line.decode("utf-8", errors="replace")
        if warn and "\ufffd" in text and text.encode("utf-8") != line:
            note(f"{path}:{number}: not UTF-8, bytes replaced")
        yield text


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


def check_input(path: str) -> None:
    """UserError(DATA) unless `path` is readable: a file, a pipe, or "-" for stdin."""
    full = expand_path(path)
    if path != "-" and (not path or not os.path.exists(full) or os.path.isdir(full)):
        raise UserError(DATA, f"no such file: {os.path.abspath(full) if path else repr(path)}")
    if path != "-" and not os.access(full, os.R_OK):
        raise UserError(DATA, f"cannot read {path}; check its permissions")


def check_no_input_is_replaced(output: str, inputs: Iterable[str]) -> None:
    """UserError(OUTPUT) if the output file is one of the input files, under any name."""
    full = expand_path(output)
    for path in inputs:
        if path not in ("", "-") and os.path.isfile(full):
            if os.path.samefile(full, expand_path(path)):
                raise UserError(
                    OUTPUT,
                    f"--output={output} would replace the input file {path}; choose another "
                    "--output",
                )

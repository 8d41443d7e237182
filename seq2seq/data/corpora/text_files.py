r"""Parallel text files: two files with a sentence per line, or one with columns.

A line ends at \n and nowhere else: U+2028, U+0085, form feeds and NULs are text. One \r before the
\n and a byte order mark at the start of a file are removed. Only whole pairs are dropped, so that
the sides stay aligned. Every pair keeps its line number.
"""

import hashlib
from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from seq2seq.data.corpora.blocks import Block, blocks_of
from seq2seq.data.corpora.collector import PairCollector
from seq2seq.data.corpora.counts import Problem
from seq2seq.files.lines import LONGEST, raw_lines
from seq2seq.runtime.errors import DATA, UserError

CORRECT = "correct the file, or drop such lines with --config.data.on_bad_line=skip"
WRONG_COLUMNS = {
    columns: Problem("wrong number of columns", f"{columns} tab-separated columns", CORRECT)
    for columns in (2, 3)
}
WRONG_WEIGHT = Problem("invalid loss weight", "a finite loss weight of at least 0", CORRECT)
LARGEST_WEIGHT = float(np.finfo(np.float32).max)


def text_blocks(source: str, target: str, hashes: dict[str, str]) -> Iterator[Block]:
    """The lines of two files: line i of one is the translation of line i of the other.

    Sets the sha256 of both files in `hashes` at the end. UserError(DATA) if they cannot be read or
    differ in their number of lines.
    """
    digests = hashlib.sha256(), hashlib.sha256()
    sides = [raw_lines(*side) for side in zip((source, target), digests, strict=True)]
    yield from blocks_of(_aligned(sides, (source, target)))
    hashes |= {source: digests[0].hexdigest(), target: digests[1].hexdigest()}


def _aligned(sides: list[Iterator[bytes]], names: tuple[str, str]) -> Iterator[tuple[bytes, bytes]]:
    """The lines of two files side by side. UserError(DATA) if one has more lines."""
    number = 0
    for number, (source, target) in enumerate(zip_longest(*sides), start=1):
        if source is None or target is None:
            rest = number + sum(1 for side in sides for _ in side)
            counts = (number - 1, rest) if source is None else (rest, number - 1)
            raise UserError(
                DATA,
                f"{names[0]} has {counts[0]} lines, {names[1]} has {counts[1]}; line "
                "i of one must be the translation of line i of the other",
            )
        yield source, target


def tsv_blocks(path: str, hashes: dict[str, str]) -> Iterator[Block]:
    """The lines of a file, in one column. Sets its sha256 in `hashes` at the end.

    UserError(DATA) if it cannot be read.
    """
    digest = hashlib.sha256()
    yield from blocks_of(zip(raw_lines(path, digest), strict=True), columns=1)
    hashes[path] = digest.hexdigest()


def add_columns(block: Block, pairs: PairCollector) -> None:
    """Adds the pairs of a block of sources and targets."""
    pairs.add_all(block.first, *block.columns)


def add_tsv(block: Block, pairs: PairCollector, weighted: bool = False) -> None:
    """Adds the pairs of lines `source<TAB>target`, or `source<TAB>target<TAB>loss weight`."""
    columns, (lines,) = 3 if weighted else 2, block.columns
    if not weighted and all(line.count(b"\t") == 1 and len(line) <= LONGEST for line in lines):
        fields = b"\t".join(lines).split(b"\t")
        pairs.add_all(block.first, fields[::2], fields[1::2])
        return
    for number, line in enumerate(lines, block.first):
        if len(line) > LONGEST:
            pairs.add(number, line, b"")  # drops it
            continue
        fields = line.split(b"\t")
        if len(fields) != columns:
            pairs.refuse(WRONG_COLUMNS[columns], number, str(len(fields)))
        elif not weighted:
            pairs.add(number, fields[0], fields[1])
        elif (weight := parse_loss_weight(fields[2])) is None:
            got = repr(fields[2][:40].decode("utf-8", "replace"))
            pairs.refuse(WRONG_WEIGHT, number, got)
        else:
            pairs.add(number, fields[0], fields[1], weight)


def parse_loss_weight(text: bytes) -> float | None:
    """The weight, a finite number of at least 0; None if `text` is not one."""
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if 0.0 <= weight <= LARGEST_WEIGHT else None

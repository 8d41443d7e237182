"""Blocks of raw lines: the unit in which a corpus is read, checked and encoded.

A block has at most BLOCK_LINES lines (or examples) of each column and at most BLOCK_BYTES bytes, so
that the memory of a reader is bounded also if the lines are long. Where the blocks of a corpus end
has no effect on its pairs.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

BLOCK_LINES = 1 << 14
BLOCK_BYTES = 1 << 23


class Block(NamedTuple):
    """Consecutive raw lines or examples, which are not checked."""

    first: int  # number of the first one, from 1
    columns: tuple[list[bytes], ...]  # (sources, targets), or (lines,) of a TSV file

    @property
    def last(self) -> int:
        """The number of the last line or example."""
        return self.first + len(self.columns[0]) - 1


def blocks_of(rows: Iterable[tuple[bytes, ...]], columns: int = 2) -> Iterator[Block]:
    """The rows (one line of each column) in blocks. A row above BLOCK_BYTES is a block."""
    first, size = 1, 0
    lines: list[bytes] = []  # of all columns, row by row: a list of rows would be slow
    for row in rows:
        row_size = sum(map(len, row))
        if len(lines) == columns * BLOCK_LINES or (lines and size + row_size > BLOCK_BYTES):
            block = Block(first, tuple(lines[column::columns] for column in range(columns)))
            yield block
            first, size, lines = block.last + 1, 0, []
        lines += row
        size += row_size
    if lines:
        yield Block(first, tuple(lines[column::columns] for column in range(columns)))

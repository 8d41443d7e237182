"""A sample of the training pairs, on which vocabularies are trained: one pass, bounded memory.

A corpus within SAMPLE_PAIRS and SAMPLE_CHARACTERS is used whole. Of a larger one, a share of the
lines is used that is as large as fits: lines i = 0, 1, … of all parts of a mixture have the
positions i · φ modulo 1, with the golden ratio φ, and the sample has the lines whose position is
below the share. They are spread evenly, without a period that could coincide with one of the data,
such as lines of two languages in turn. When the sample is full, the share is reduced by a
quarter, which removes lines and adds none. So the sample depends on the lines only, not on the
blocks in which they are read, and the other lines need not be decoded.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.corpora.part_reader import PartReader, collect_block
from seq2seq.runtime.logs import Log, no_log

# Above these a vocabulary changes little, but the memory and the time of its training grow:
# SentencePiece needs up to 30 bytes per character.
SAMPLE_PAIRS = 1 << 18
SAMPLE_CHARACTERS = 1 << 24  # of both sides
GOLDEN = 0x9E3779B97F4A7C15  # φ - 1 as a 64-bit fraction: positions are computed modulo 2^64


class _Chosen(NamedTuple):
    """Pairs of the sample from one block of the part number `part`."""

    part: int
    positions: UInt64[np.ndarray, " P"]
    source: list[str]
    target: list[str]

    @property
    def characters(self) -> int:
        return sum(map(len, self.source)) + sum(map(len, self.target))

    def up_to(self, last: int) -> "_Chosen":
        kept = self.positions <= np.uint64(last)
        source, target = (list(compress(side, kept)) for side in (self.source, self.target))
        return _Chosen(self.part, self.positions[kept], source, target)


class PairSample:
    """The sample of the lines that were read so far."""

    def __init__(self) -> None:
        self.lines = 0  # read so far
        self._last = (1 << 64) - 1  # the last position that belongs to the sample
        self._chosen: list[_Chosen] = []
        self._pairs = self._characters = 0

    @property
    def is_whole(self) -> bool:
        """Whether all lines belong to the sample."""
        return self._last == (1 << 64) - 1

    def next_positions(self, count: int) -> tuple[Int[np.ndarray, " n"], UInt64[np.ndarray, " n"]]:
        """The indices of those of the next `count` lines that belong to the sample, ascending, and
        their positions."""
        numbers = np.arange(self.lines, self.lines + count, dtype=np.uint64)
        self.lines += count
        positions = numbers * np.uint64(GOLDEN)
        index = np.flatnonzero(positions <= np.uint64(self._last))
        return index, positions[index]

    def add(
        self,
        part: int,
        positions: UInt64[np.ndarray, " P"],
        source: Sequence[str],
        target: Sequence[str],
    ) -> None:
        """Add pairs of the part number `part`, and reduce the sample if it is full."""
        self._chosen.append(_Chosen(part, positions, list(source), list(target)))
        self._pairs += len(source)
        self._characters += self._chosen[-1].characters
        while self._pairs > SAMPLE_PAIRS or self._characters > SAMPLE_CHARACTERS:
            self._last = self._last * 3 // 4
            self._chosen = [block.up_to(self._last) for block in self._chosen]
            self._pairs = sum(len(block.source) for block in self._chosen)
            self._characters = sum(block.characters for block in self._chosen)

    def texts(self, deduplicate: bool) -> tuple[list[str], list[str]]:
        """The source and the target texts in the order of the lines.

        `deduplicate`: without those pairs that are identical to an earlier one of their part within
        the sample.
        """
        pairs = chain.from_iterable(
            zip([block.part] * len(block.source), block.source, block.target, strict=True)
            for block in self._chosen
        )
        kept = list(dict.fromkeys(pairs) if deduplicate else pairs)
        return [source for _, source, _ in kept], [target for _, _, target in kept]


def sample_texts(
    readers: Sequence[PartReader], config: DataConfig, log: Log = no_log
) -> tuple[list[str], list[str]]:
    """Source and target texts of the training pairs, each pair once: all of them, or a sample.

    All parts are read completely. UserError(DATA) if a part that is used whole has invalid lines
    or no pairs; those of a larger one are reported when it is encoded.
    """
    sample = PairSample()
    for part, reader in enumerate(readers):
        counts: list[Counts] = []
        for block in reader.blocks(log):
            index, positions = sample.next_positions(len(block.columns[0]))
            if not len(index):
                continue
            if not sample.is_whole:
                columns = tuple([column[i] for i in index] for column in block.columns)
                block = block._replace(columns=columns)
            collected = collect_block(reader.part, config, "train", block)
            places = np.array(collected.numbers, np.int64) - block.first
            sample.add(part, positions[places], collected.source, collected.target)
            counts.append(collected.counts)
        if sample.is_whole:
            reduce(Counts.merged, counts, Counts()).check(reader.names)
    source, target = sample.texts(config.deduplicate)
    if not sample.is_whole:
        log(f"vocabulary sample: {len(source):,} pairs from {sample.lines:,} lines")
    return source, target

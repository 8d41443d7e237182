"""One part of a mixture, which can be read several times: blocks of raw lines, or their text.

    PartReader.blocks → raw lines → collect_block → text

`collect_block` is pure and needs no state, so blocks can be collected in other processes.
Duplicates depend on the blocks before, so they are dropped afterwards, in order.
"""

from collections.abc import Iterator
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import Block
from seq2seq.data.corpora.collector import PairCollector
from seq2seq.data.corpora.corpus import CollectedBlock
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.corpora.duplicates import DuplicateFilter
from seq2seq.data.corpora.raw_corpus import MixturePart
from seq2seq.files.compression import compression_of_name
from seq2seq.files.input_files import is_rereadable, version_of
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.logs import Log, no_log

LARGE = 32 << 20  # bytes; a corpus with more is read again and not kept in memory
COMPRESSION_RATIO = 4  # assumed: uncompressed bytes of text per compressed byte


def collect_block(
    part: MixturePart, config: DataConfig, split: str, block: Block
) -> CollectedBlock:
    """The usable pairs of a block, with data.reverse and the tag of the part, and their counts.

    Loss weights are for training only.
    """
    pairs = PairCollector(part.corpus.names(split, config), config)
    part.corpus.add_pairs(block, pairs)
    collected = pairs.collected()
    if split != "train":
        counts = collected.counts._replace(loss_weights=())
        collected = collected._replace(loss_weights=None, counts=counts)
    if config.reverse:
        collected = collected.reversed()
    return collected.tagged(config.normal_form(part.tag)) if part.tag else collected


class PartReader:
    """The raw lines of one part. A small corpus and a pipe are kept in memory after the first pass.

    part      with its weight and tag
    names     the files or data sets of source and target, after data.reverse
    weight    how often an epoch takes each pair
    hashes    file or data set → sha256; {} before the first complete pass
    num_bytes of its regular files and objects, × COMPRESSION_RATIO if compressed
    """

    def __init__(self, part: MixturePart, split: str, config: DataConfig):
        """UserError(DATA) if a file or data set is missing."""
        self.part, self.weight = part, part.weight
        self._split, self._config = split, config
        names = part.corpus.names(split, config)
        self.names = names[::-1] if config.reverse else names
        files = part.corpus.files(split, config)
        self._versions = [version_of(path) for path in files if is_rereadable(path)]
        self._regular = 0 < len(files) == len(self._versions)
        self.num_bytes = sum(
            file.size * (COMPRESSION_RATIO if compression_of_name(file.path) else 1)
            for file in self._versions
        )
        self.hashes: dict[str, str] = {}
        self._blocks: list[Block] | None = None  # of a complete pass

    def blocks(self, log: Log = no_log) -> Iterator[Block]:
        """The raw lines in order. `log` receives progress.

        UserError(DATA) if they cannot be read, or if they are not those of an earlier pass.
        """
        if self._blocks is not None:
            yield from self._blocks
            return
        kept: list[Block] | None = None
        if self.num_bytes <= LARGE or not self._regular:
            kept = []
        hashes: dict[str, str] = {}
        for block in self.part.corpus.blocks(self._split, self._config, hashes):
            if kept is not None:
                kept.append(block)
            yield block
            log(f"{self.names[0]}: {block.last:,} pairs read")
        for name, sha256 in self.hashes.items():
            if sha256 != hashes[name]:
                raise UserError(
                    DATA,
                    f"{name} changed while it was used: expected sha256 {sha256}, got "
                    f"{hashes[name]}; start again when it is complete",
                )
        self.hashes, self._blocks = hashes, kept

    def collected(self, log: Log = no_log) -> Iterator[CollectedBlock]:
        """The text of each block, without duplicates if they are dropped.

        UserError(DATA) as in `blocks`, and at the end, for all lines, as in `Counts.check`.
        """
        config, part, counts = self._config, self.part, Counts()
        seen = DuplicateFilter() if self.drops_duplicates else None
        for block in self.blocks(log):
            collected = collect_block(part, config, self._split, block)
            counts = counts.merged(collected.counts)
            if seen:
                first = seen.first_occurrences(collected.source, collected.target)
                collected = collected.without_duplicates(first, self.names[0])
            yield collected
        counts.check(self.names)

    @property
    def title(self) -> str:
        """The distinct names, for messages."""
        return ", ".join(dict.fromkeys(self.names))

    @property
    def drops_duplicates(self) -> bool:
        """Whether identical pairs are dropped: data.deduplicate, of training data only."""
        return self._config.deduplicate and self._split == "train"

    def identity(self) -> dict[str, Any] | None:
        """What determines the text, as JSON; None if it is not read from regular files or objects.

        The version that a file had when this object was made stands for its content:
        `check_unchanged` after reading.
        """
        if not self._regular:
            return None
        part, config = self.part, self._config
        return {
            "corpus": part.corpus.absolute_spec(),
            "split": self._split,
            "files": [list(file) for file in self._versions],
            "tag": part.tag,
            "reverse": config.reverse,
            "on_bad_utf8": config.on_bad_utf8,
            "on_bad_line": config.on_bad_line,
            "deduplicate": self.drops_duplicates,
            **({"nfc": True} if config.nfc else {}),
        }

    def check_unchanged(self) -> None:
        """UserError(DATA) if a file has changed since this object was made."""
        if [version_of(file.path) for file in self._versions] != self._versions:
            raise UserError(
                DATA, f"{self.title} changed while it was read; run the same command again"
            )

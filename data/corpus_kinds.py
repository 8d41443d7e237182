"""The interface of a corpus kind, and the kinds that read text files.

A corpus is written `NAME:REST` in the configuration. To add a kind, write a subclass of CorpusKind
and add an instance to KINDS in data/corpora.py.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data.blocks import Block
from data.collector import PairCollector
from data.config import DataConfig
from data.text_files import add_columns, add_tsv, text_blocks, tsv_blocks
from runtime.errors import CONFIGURATION, UserError
from runtime.lines import check_file
from runtime.paths import expand_path


class CorpusKind:
    """One kind of corpus. `rest` is the part of the specification after the colon, never empty."""

    name: str  # the part before the colon
    notation: str  # of the whole specification, for error messages

    def check_notation(self, rest: str) -> None:
        """UserError(CONFIGURATION) if `rest` is malformed. Reads no files."""

    def check_data(self, rest: str, split: str, config: DataConfig) -> None:
        """UserError(DATA) if the data is missing. Takes milliseconds."""

    def has_split(self, rest: str, split: str, config: DataConfig) -> bool:
        """Whether the corpus itself provides "valid" or "test" data."""
        return False

    def names(self, rest: str, split: str, config: DataConfig) -> tuple[str, str]:
        """The files or data sets of source and target, maybe the same, for places and hashes."""
        return (f"{self.name}:{rest}",) * 2

    def files(self, rest: str, split: str, config: DataConfig) -> list[Path]:
        """The absolute paths of the files that determine the data."""
        return []

    def absolute(self, rest: str) -> str:
        """`rest` in a form that does not depend on the current directory."""
        return rest

    def blocks(
        self, rest: str, split: str, config: DataConfig, hashes: dict[str, str]
    ) -> Iterator[Block]:
        """The raw lines or examples, in order. Sets the sha256 of each name in `hashes` at the end.

        UserError(DATA) if the data cannot be read.
        """
        raise NotImplementedError

    def add_pairs(self, block: Block, pairs: PairCollector) -> None:
        """Parses one block: adds its pairs, source first. Pure, so that any process can do it."""
        add_columns(block, pairs)


class MixturePart(NamedTuple):
    """A part of a mixture, `WEIGHT*tag:TAG:NAME:REST`."""

    weight: float
    tag: str  # "" if the part has none
    kind: CorpusKind
    rest: str  # the text after the name of the kind

    @property
    def spec(self) -> str:
        """The specification of the part without its weight."""
        return f"tag:{self.tag}:" * bool(self.tag) + f"{self.kind.name}:{self.rest}"


def _absolute(path: str) -> str:
    return os.path.abspath(expand_path(path))


class TextCorpus(CorpusKind):
    """Two files with one sentence per line."""

    name, notation = "text", "text:SOURCE,TARGET"

    def check_notation(self, rest):
        if [bool(path) for path in rest.split(",")] != [True, True]:
            raise UserError(
                CONFIGURATION, f"the corpus is malformed: expected {self.notation}, got text:{rest}"
            )

    def check_data(self, rest, split, config):
        for path in rest.split(","):
            check_file(path)

    def names(self, rest, split, config):
        source, target = rest.split(",")
        return source, target

    def files(self, rest, split, config):
        return [Path(_absolute(path)) for path in rest.split(",")]

    def absolute(self, rest):
        return ",".join(map(_absolute, rest.split(",")))

    def blocks(self, rest, split, config, hashes):
        return text_blocks(*rest.split(","), hashes)


class TsvCorpus(CorpusKind):
    """One file with lines `source<TAB>target`."""

    name, notation = "tsv", "tsv:FILE"

    def check_data(self, rest, split, config):
        check_file(rest)

    def names(self, rest, split, config):
        return rest, rest

    def files(self, rest, split, config):
        return [Path(_absolute(rest))]

    def absolute(self, rest):
        return _absolute(rest)

    def blocks(self, rest, split, config, hashes):
        return tsv_blocks(rest, hashes)

    def add_pairs(self, block, pairs):
        add_tsv(block, pairs)


class WeightedTsvCorpus(TsvCorpus):
    """One file with lines `source<TAB>target<TAB>loss weight`."""

    name, notation = "weighted_tsv", "weighted_tsv:FILE"

    def add_pairs(self, block, pairs):
        add_tsv(block, pairs, weighted=True)

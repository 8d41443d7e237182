"""The interface of a corpus kind, and the kinds that read text files.

To add a kind, write a subclass of RawCorpus and add it to CORPUS_KINDS in
seq2seq/data/corpora/registry.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import Block
from seq2seq.data.corpora.collector import PairCollector
from seq2seq.data.corpora.text_files import add_columns, add_tsv, text_blocks, tsv_blocks
from seq2seq.files.input_files import absolute_path
from seq2seq.files.lines import check_file
from seq2seq.runtime.errors import CONFIGURATION, UserError


class RawCorpus(ABC):
    """A corpus that the configuration names as `NAME:REST`; each kind of corpus is a subclass.

    A subclass has `name`, `notation` and `blocks`. The other methods have a default, which suits a
    corpus of two columns without files. An instance is picklable: other processes parse its blocks.
    """

    name: ClassVar[str]  # the part of the specification before the colon
    notation: ClassVar[str]  # of the whole specification, for error messages

    def __init__(self, rest: str) -> None:
        """`rest` is the part after the colon, never empty. UserError(CONFIGURATION) if it is
        malformed. Reads no files."""
        self.rest = rest

    @abstractmethod
    def blocks(self, split: str, config: DataConfig, hashes: dict[str, str]) -> Iterator[Block]:
        """The raw lines or examples, in order (`blocks_of`). Sets the sha256 of each of `names` in
        `hashes` at the end: without it a resumed run does not notice that the data has changed.
        UserError(DATA) if the data cannot be read."""

    def add_pairs(self, block: Block, pairs: PairCollector) -> None:
        """Parses one block: adds its pairs, source first. A function of the block only."""
        add_columns(block, pairs)

    def check_data(self, split: str, config: DataConfig) -> None:
        """UserError(DATA) if the data is missing. Takes milliseconds."""
        return

    def has_split(self, split: str, config: DataConfig) -> bool:
        """Whether the corpus itself provides "valid" or "test" data."""
        return False

    def names(self, split: str, config: DataConfig) -> tuple[str, str]:
        """The files or data sets of source and target, possibly identical, for places and
        hashes."""
        return self.spec, self.spec

    def files(self, split: str, config: DataConfig) -> list[str]:
        """The absolute paths or URLs of the files that determine the data. A corpus without files
        is not stored in the corpus cache, and its raw lines stay in memory."""
        return []

    def absolute_spec(self) -> str:
        """The specification in a form that does not depend on the current directory. Another form
        makes the entries of the corpus in the corpus cache unused."""
        return self.spec

    @property
    def spec(self) -> str:
        """The specification, `NAME:REST`."""
        return f"{self.name}:{self.rest}"


class MixturePart(NamedTuple):
    """A part of a mixture, `WEIGHT*tag:TAG:NAME:REST`."""

    weight: float
    tag: str  # "" if the part has none
    corpus: RawCorpus

    @property
    def spec(self) -> str:
        """The specification of the part without its weight."""
        return f"tag:{self.tag}:{self.corpus.spec}" if self.tag else self.corpus.spec


class TextCorpus(RawCorpus):
    """Two files with one sentence per line."""

    name, notation = "text", "text:SOURCE,TARGET"

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        if [bool(path) for path in rest.split(",")] != [True, True]:
            raise UserError(
                CONFIGURATION,
                f"the corpus is malformed: expected {self.notation}, got {self.spec}; rename files "
                "that have a comma in their name",
            )
        self._source, self._target = rest.split(",")

    def check_data(self, split: str, config: DataConfig) -> None:
        check_file(self._source)
        check_file(self._target)

    def names(self, split: str, config: DataConfig) -> tuple[str, str]:
        return self._source, self._target

    def files(self, split: str, config: DataConfig) -> list[str]:
        return [absolute_path(self._source), absolute_path(self._target)]

    def absolute_spec(self) -> str:
        return f"{self.name}:{absolute_path(self._source)},{absolute_path(self._target)}"

    def blocks(self, split: str, config: DataConfig, hashes: dict[str, str]) -> Iterator[Block]:
        return text_blocks(self._source, self._target, hashes)


class TsvCorpus(RawCorpus):
    """One file with lines `source<TAB>target`."""

    name, notation = "tsv", "tsv:FILE"

    def check_data(self, split: str, config: DataConfig) -> None:
        check_file(self.rest)

    def names(self, split: str, config: DataConfig) -> tuple[str, str]:
        return self.rest, self.rest

    def files(self, split: str, config: DataConfig) -> list[str]:
        return [absolute_path(self.rest)]

    def absolute_spec(self) -> str:
        return f"{self.name}:{absolute_path(self.rest)}"

    def blocks(self, split: str, config: DataConfig, hashes: dict[str, str]) -> Iterator[Block]:
        return tsv_blocks(self.rest, hashes)

    def add_pairs(self, block: Block, pairs: PairCollector) -> None:
        add_tsv(block, pairs)


class WeightedTsvCorpus(TsvCorpus):
    """One file with lines `source<TAB>target<TAB>loss weight`."""

    name, notation = "weighted_tsv", "weighted_tsv:FILE"

    def add_pairs(self, block: Block, pairs: PairCollector) -> None:
        add_tsv(block, pairs, weighted=True)

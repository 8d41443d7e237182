"""The interface of a corpus kind, and the kinds that read text files.

A corpus is written `NAME:REST` in the configuration. To add a kind, write a subclass of CorpusKind
and add an instance to KINDS in data/corpora.py.
"""

from data.config import DataConfig
from data.corpus import Corpus
from data.text_files import read_text, read_tsv
from runtime.errors import CONFIGURATION, UserError
from runtime.lines import check_file
from runtime.notices import Log


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

    def read(self, rest: str, split: str, config: DataConfig, log: Log) -> Corpus:
        """The pairs, source first. `log` receives progress. UserError(DATA) if they are invalid."""
        raise NotImplementedError


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

    def read(self, rest, split, config, log):
        return read_text(*rest.split(","), config, log)


class TsvCorpus(CorpusKind):
    """One file with lines `source<TAB>target`."""

    name, notation = "tsv", "tsv:FILE"

    def check_data(self, rest, split, config):
        check_file(rest)

    def read(self, rest, split, config, log):
        return read_tsv(rest, config, log)


class WeightedTsvCorpus(TsvCorpus):
    """One file with lines `source<TAB>target<TAB>loss weight`."""

    name, notation = "weighted_tsv", "weighted_tsv:FILE"

    def read(self, rest, split, config, log):
        return read_tsv(rest, config, log, weighted=True)

r"""Parallel text as pairs of strings: two files with a sentence per line, or one with two columns.

A line ends at \n and nowhere else: U+2028, U+0085, form feeds and NULs are text. One \r before the
\n and a byte order mark at the start of a file are removed. Only whole pairs are dropped, so that
the sides stay aligned. Every pair keeps its line number.
"""

import hashlib
from array import array
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from runtime.errors import DATA, UserError
from runtime.lines import LONGEST, TOO_LONG, raw_lines
from runtime.notices import EVERY, Log, no_log

EXAMPLES = 5  # places recorded for each reason to drop a pair


class Origin(NamedTuple):
    """The origin of consecutive pairs of a corpus, and how often an epoch takes each of them."""

    names: tuple[str, str]  # of source and target: files or data sets, maybe the same
    count: int  # pairs
    weight: float = 1.0


class Corpus(NamedTuple):
    """Pairs of sentences in the order of their files: `source[i]` and `target[i]` are a pair."""

    source: list[str]
    target: list[str]
    numbers: array  # the line (from 1) of pair i, or the number of its example
    origins: tuple[Origin, ...]  # of the pairs, in order
    dropped: dict[str, int]  # reason → number of pairs
    replaced: int  # number of lines in which invalid UTF-8 was replaced by U+FFFD
    examples: dict[str, list[str]]  # reason → the first few places
    fingerprints: dict[str, str]  # file or data set → sha256 of all its lines

    def where(self, index: int) -> str:
        """The origin of pair `index`, as "train.de:777"."""
        ends = np.cumsum([origin.count for origin in self.origins])
        origin = self.origins[int(np.searchsorted(ends, index, side="right"))]
        return f"{origin.names[0]}:{self.numbers[index]}"

    @property
    def names(self) -> list[str]:
        """The distinct files and data sets."""
        return list(dict.fromkeys(name for origin in self.origins for name in origin.names))

    def reversed(self) -> "Corpus":
        """The same pairs with source and target swapped."""
        origins = tuple(one._replace(names=one.names[::-1]) for one in self.origins)
        return self._replace(source=self.target, target=self.source, origins=origins)

    def tagged(self, tag: str) -> "Corpus":
        """The same pairs with `tag` and a space before each source."""
        return self._replace(source=[f"{tag} {text}" for text in self.source])


def concatenate_corpora(corpora: list[Corpus], weights: list[float]) -> Corpus:
    """The pairs of several corpora in sequence; an epoch takes each pair of corpus i `weights[i]`
    times."""
    if len(corpora) == 1 and weights == [1.0]:
        return corpora[0]
    dropped, examples, fingerprints = {}, {}, {}
    for corpus in corpora:
        for reason, count in corpus.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
        for reason, places in corpus.examples.items():
            examples[reason] = (examples.get(reason, []) + places)[:EXAMPLES]
        fingerprints |= corpus.fingerprints
    return Corpus(
        list(chain.from_iterable(corpus.source for corpus in corpora)),
        list(chain.from_iterable(corpus.target for corpus in corpora)),
        array("q", chain.from_iterable(corpus.numbers for corpus in corpora)),
        tuple(
            origin._replace(weight=origin.weight * weight)
            for corpus, weight in zip(corpora, weights, strict=True)
            for origin in corpus.origins
        ),
        dropped,
        sum(corpus.replaced for corpus in corpora),
        examples,
        fingerprints,
    )


class PairCollector:
    """Collects pairs of raw lines in a Corpus; drops and counts unusable ones."""

    def __init__(self, names: tuple[str, str], on_bad_utf8: str, log: Log = no_log):
        self._names, self._on_bad_utf8, self._log = names, on_bad_utf8, log
        self._source, self._target, self._numbers = [], [], array("q")
        self._dropped, self._examples, self._replaced = {}, {}, 0

    def add(self, number: int, source: bytes, target: bytes) -> None:
        """Adds pair `number` (from 1). UserError(DATA) if invalid UTF-8 is an error."""
        if number % EVERY == 0:
            self._log(f"{self._names[0]}: {number:,} pairs read")
        if max(len(source), len(target)) > LONGEST:  # raw_lines may have truncated it
            self._drop(TOO_LONG, 0 if len(source) > LONGEST else 1, number)
            return
        pair = self._decode(source, 0, number), self._decode(target, 1, number, source)
        if None in pair:
            self._drop("not UTF-8", pair.index(None), number)
        elif not pair[0].strip() or not pair[1].strip():
            self._drop("blank", 0 if not pair[0].strip() else 1, number)
        else:
            self._source.append(pair[0])
            self._target.append(pair[1])
            self._numbers.append(number)

    def corpus(self, fingerprints: dict[str, str]) -> Corpus:
        """The pairs added. UserError(DATA) if there are none."""
        if not self._source:
            total = sum(self._dropped.values())
            reasons = ", ".join(f"{n} {reason}" for reason, n in self._dropped.items())
            names = ", ".join(dict.fromkeys(self._names))
            raise UserError(DATA, f"{names}: 0 of {total} pairs left: {reasons or 'it is empty'}")
        origin = Origin(self._names, len(self._source))
        return Corpus(
            self._source,
            self._target,
            self._numbers,
            (origin,),
            self._dropped,
            self._replaced,
            self._examples,
            fingerprints,
        )

    def _decode(self, raw, side, number, other=b""):
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._on_bad_utf8 == "error":
                same_line = side == 1 and self._names[0] == self._names[1]
                before = other + b"\t" if same_line else b""
                column = len((before + raw[: error.start]).decode("utf-8")) + 1
                raise UserError(
                    DATA,
                    f"{self._names[side]}:{number}: byte "
                    f"{raw[error.start]:#04x} at column {column} is not UTF-8 (use "
                    "--config.data.on_bad_utf8=replace or skip)",
                ) from None
            if self._on_bad_utf8 == "skip":
                return None
            self._replaced += 1
            self._record("replaced bytes that are not UTF-8", side, number)
            return raw.decode("utf-8", "replace")

    def _drop(self, reason, side, number):
        self._dropped[reason] = self._dropped.get(reason, 0) + 1
        self._record(reason, side, number)

    def _record(self, reason, side, number):
        places = self._examples.setdefault(reason, [])
        if len(places) < EXAMPLES:
            places.append(f"{self._names[side]}:{number}")


def read_text(source: str, target: str, on_bad_utf8: str, log: Log = no_log) -> Corpus:
    """The pairs of two files: line i of one is the translation of line i of the other.

    UserError(DATA) if they cannot be read, differ in their number of lines, or have no pair.
    """
    hashes = hashlib.sha256(), hashlib.sha256()
    sides = [raw_lines(*side) for side in zip((source, target), hashes, strict=True)]
    pairs = PairCollector((source, target), on_bad_utf8, log)
    for number, (one, other) in enumerate(zip_longest(*sides), start=1):
        if one is None or other is None:
            rest = number + sum(1 for side in sides for _ in side)
            counts = (number - 1, rest) if one is None else (rest, number - 1)
            raise UserError(
                DATA,
                f"{source} has {counts[0]} lines, {target} has {counts[1]}; line "
                "i of one must be the translation of line i of the other",
            )
        pairs.add(number, one, other)
    return pairs.corpus({source: hashes[0].hexdigest(), target: hashes[1].hexdigest()})


def read_tsv(path: str, on_bad_utf8: str, log: Log = no_log) -> Corpus:
    """The pairs of a file with lines `source<TAB>target`. UserError(DATA) as in `read_text`."""
    digest = hashlib.sha256()
    pairs = PairCollector((path, path), on_bad_utf8, log)
    for number, line in enumerate(raw_lines(path, digest), start=1):
        fields = line.split(b"\t") if len(line) <= LONGEST else [line, b""]
        if len(fields) != 2:
            raise UserError(
                DATA,
                f"{path}:{number}: {len(fields)} tab-separated field"
                f"{'s' * (len(fields) > 1)}; expected source and target",
            )
        pairs.add(number, *fields)
    return pairs.corpus({path: digest.hexdigest()})

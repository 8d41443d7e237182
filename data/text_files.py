r"""Parallel text as pairs of strings: two files with a sentence per line, or one with columns.

A line ends at \n and nowhere else: U+2028, U+0085, form feeds and NULs are text. One \r before the
\n and a byte order mark at the start of a file are removed. Only whole pairs are dropped, so that
the sides stay aligned. Every pair keeps its line number.
"""

import hashlib
from itertools import zip_longest

from data.collector import PairCollector, Problem
from data.config import DataConfig
from data.corpus import Corpus
from data.loss_weights import parse_loss_weight
from runtime.errors import DATA, UserError
from runtime.lines import LONGEST, raw_lines
from runtime.notices import Log, no_log

CORRECT = "correct the file, or drop such lines with --config.data.on_bad_line=skip"
WRONG_COLUMNS = {
    columns: Problem("wrong number of columns", f"{columns} tab-separated columns", CORRECT)
    for columns in (2, 3)
}
WRONG_WEIGHT = Problem("invalid loss weight", "a finite loss weight of at least 0", CORRECT)


def read_text(source: str, target: str, config: DataConfig, log: Log = no_log) -> Corpus:
    """The pairs of two files: line i of one is the translation of line i of the other.

    UserError(DATA) if they cannot be read, differ in their number of lines, have invalid lines, or
    have no pair.
    """
    hashes = hashlib.sha256(), hashlib.sha256()
    sides = [raw_lines(*side) for side in zip((source, target), hashes, strict=True)]
    pairs = PairCollector((source, target), config, log)
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


def read_tsv(path: str, config: DataConfig, log: Log = no_log, weighted: bool = False) -> Corpus:
    """The pairs of a file with lines `source<TAB>target`, or `source<TAB>target<TAB>loss weight`.

    UserError(DATA) as in `read_text`.
    """
    columns = 3 if weighted else 2
    digest = hashlib.sha256()
    pairs = PairCollector((path, path), config, log)
    for number, line in enumerate(raw_lines(path, digest), start=1):
        if len(line) > LONGEST:
            pairs.add(number, line, b"")  # drops it
            continue
        fields = line.split(b"\t")
        if len(fields) != columns:
            pairs.refuse(WRONG_COLUMNS[columns], number, str(len(fields)))
        elif not weighted:
            pairs.add(number, *fields)
        elif (weight := parse_loss_weight(fields[2])) is None:
            got = repr(fields[2][:40].decode("utf-8", "replace"))
            pairs.refuse(WRONG_WEIGHT, number, got)
        else:
            pairs.add(number, *fields[:2], weight)
    return pairs.corpus({path: digest.hexdigest()})

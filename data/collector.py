"""Raw lines of a file or a data set as a Corpus: unusable pairs are dropped, invalid lines refused.

All lines are read before an error is raised, so that it gives the number of invalid lines and the
first places.
"""

from array import array
from typing import NamedTuple

from data.config import DataConfig
from data.corpus import EXAMPLES, Corpus, Origin
from runtime.errors import DATA, UserError
from runtime.lines import LONGEST, TOO_LONG
from runtime.notices import EVERY, Log, no_log


class Problem(NamedTuple):
    """A property that makes a line invalid."""

    reason: str  # in the counts of dropped pairs
    expected: str
    advice: str


NOT_UTF8 = Problem(
    "not UTF-8",
    "UTF-8",
    "convert the file, or set --config.data.on_bad_utf8=replace or skip",
)


class Tally:
    """How often each reason occurred, and the first few places."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}

    def add(self, reason: str, place: str) -> None:
        """Count one occurrence."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.examples.setdefault(reason, [])
        if len(places) < EXAMPLES:
            places.append(place)


class PairCollector:
    """Collects pairs of raw lines in a Corpus; counts unusable pairs and invalid lines."""

    def __init__(self, names: tuple[str, str], config: DataConfig, log: Log = no_log):
        """`names` are the files or data sets of the two sides, maybe the same."""
        self._names, self._config, self._log = names, config, log
        self._source, self._target, self._numbers = [], [], array("q")
        self._loss_weights = array("f")
        self._dropped, self._replaced, self._invalid = Tally(), Tally(), Tally()
        self._problems: dict[str, Problem] = {}

    def add(
        self, number: int, source: bytes, target: bytes, loss_weight: float | None = None
    ) -> None:
        """Adds pair `number` (from 1), or drops it, or counts its invalid lines.

        Either all pairs have a loss weight or none has one.
        """
        if number % EVERY == 0:
            self._log(f"{self._names[0]}: {number:,} pairs read")
        if max(len(source), len(target)) > LONGEST:  # raw_lines may have truncated it
            self._drop(TOO_LONG, 0 if len(source) > LONGEST else 1, number)
            return
        pair = [self._decode(raw, side, number) for side, raw in enumerate((source, target))]
        if None in pair:
            self._refuse_bytes(number, (source, target), pair.index(None))
        elif not pair[0].strip() or not pair[1].strip():
            self._drop("blank", 0 if not pair[0].strip() else 1, number)
        else:
            self._source.append(pair[0])
            self._target.append(pair[1])
            self._numbers.append(number)
            if loss_weight is not None:
                self._loss_weights.append(loss_weight)

    def refuse(self, problem: Problem, number: int, got: str) -> None:
        """Counts the invalid line `number` (from 1) of a corpus that is one file."""
        if self._config.on_bad_line == "skip":
            self._drop(problem.reason, 0, number)
        else:
            self._count_invalid(problem, f"{got} at {self._names[0]}:{number}")

    def corpus(self, fingerprints: dict[str, str]) -> Corpus:
        """The pairs added. UserError(DATA) if there are none, or with the invalid lines."""
        if self._problems:
            raise UserError(DATA, "; ".join(map(self._message, self._problems.values())))
        names = ", ".join(dict.fromkeys(self._names))
        if not self._source:
            total = sum(self._dropped.counts.values())
            reasons = ", ".join(f"{n} {reason}" for reason, n in self._dropped.counts.items())
            raise UserError(DATA, f"{names}: 0 of {total} pairs left: {reasons or 'it is empty'}")
        if self._loss_weights and not any(self._loss_weights):
            raise UserError(
                DATA, f"{names}: all loss weights are 0: expected one above 0; correct column 3"
            )
        origin = Origin(self._names, len(self._source))
        return Corpus(
            self._source,
            self._target,
            self._numbers,
            (origin,),
            self._dropped.counts,
            sum(self._replaced.counts.values()),
            self._dropped.examples | self._replaced.examples,
            fingerprints,
            self._loss_weights or None,
        )

    def _decode(self, raw: bytes, side: int, number: int) -> str | None:
        """The text of one side; None if it is not UTF-8 and is not replaced."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            if self._config.on_bad_utf8 != "replace":
                return None
            place = f"{self._names[side]}:{number}"
            self._replaced.add("replaced bytes that are not UTF-8", place)
            return raw.decode("utf-8", "replace")

    def _refuse_bytes(self, number: int, sides: tuple[bytes, bytes], first: int) -> None:
        """Drop or refuse a pair with invalid bytes; `first` is the first such side."""
        if self._config.on_bad_utf8 == "skip":
            self._drop(NOT_UTF8.reason, first, number)
            return
        same_file = self._names[0] == self._names[1]
        lines = [b"\t".join(sides)] if same_file else sides
        for name, line in zip(self._names, lines, strict=not same_file):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                column = len(line[: error.start].decode("utf-8")) + 1
                got = f"byte {line[error.start]:#04x} in column {column} of {name}:{number}"
                self._count_invalid(NOT_UTF8, got)

    def _count_invalid(self, problem: Problem, got: str) -> None:
        self._problems[problem.reason] = problem
        self._invalid.add(problem.reason, got)

    def _message(self, problem: Problem) -> str:
        """The error message for all lines with this problem."""
        count = self._invalid.counts[problem.reason]
        got = ", ".join(self._invalid.examples[problem.reason])
        return (
            f"{count:,} invalid line{'s' * (count > 1)}: expected {problem.expected}, got {got}"
            f"{', …' * (count > EXAMPLES)}; {problem.advice}"
        )

    def _drop(self, reason: str, side: int, number: int) -> None:
        self._dropped.add(reason, f"{self._names[side]}:{number}")

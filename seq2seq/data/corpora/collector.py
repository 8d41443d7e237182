"""Raw lines of a file or a data set as text: unusable pairs are dropped, invalid lines counted."""

from array import array
from collections.abc import Sequence

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.corpus import CollectedBlock
from seq2seq.data.corpora.counts import EXAMPLES, Counts, Invalid, Problem, value_range
from seq2seq.files.lines import LONGEST, TOO_LONG

NOT_UTF8 = Problem(
    "not UTF-8",
    "UTF-8",
    "convert the file, or set --config.data.on_bad_utf8=replace or skip",
)
REPLACED = "replaced bytes that are not UTF-8"


class Tally:
    """How often each reason occurred, and the first few places."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}

    def add(self, reason: str, place: str) -> None:
        """Count one occurrence."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.examples.setdefault(reason, [])
        if len(places) < EXAMPLES:
            places.append(place)


class PairCollector:
    """Collects pairs of raw lines as text; counts unusable pairs and invalid lines."""

    def __init__(self, names: tuple[str, str], config: DataConfig) -> None:
        """`names` are the files or data sets of the two sides, possibly identical."""
        self._names, self._config = names, config
        self._source: list[str] = []
        self._target: list[str] = []
        self._numbers = array("q")
        self._loss_weights = array("f")
        self._dropped, self._replaced, self._invalid = Tally(), Tally(), Tally()
        self._problems: dict[str, Problem] = {}

    def add(
        self, number: int, source: bytes, target: bytes, loss_weight: float | None = None
    ) -> None:
        """Adds pair `number` (from 1), or drops it, or counts its invalid lines.

        Either all pairs have a loss weight or none has one.
        """
        if len(source) > LONGEST or len(target) > LONGEST:  # raw_lines may have truncated it
            self._drop(TOO_LONG, 0 if len(source) > LONGEST else 1, number)
            return
        pair: tuple[str, str] | None
        try:
            pair = source.decode(), target.decode()
        except UnicodeDecodeError:
            pair = self._replace_bytes(number, (source, target))
        if pair is None:
            return
        pair = self._config.normal_form(pair[0]), self._config.normal_form(pair[1])
        if not pair[0].strip() or not pair[1].strip():
            self._drop("blank", 0 if not pair[0].strip() else 1, number)
            return
        self._source.append(pair[0])
        self._target.append(pair[1])
        self._numbers.append(number)
        if loss_weight is not None:
            self._loss_weights.append(loss_weight)

    def add_all(self, first: int, sources: Sequence[bytes], targets: Sequence[bytes]) -> None:
        """Adds pairs `first`, `first` + 1, … like `add`, in a third of its time if all of them are
        usable."""
        source_texts, target_texts = self._decoded(sources), self._decoded(targets)
        if (
            source_texts is not None
            and target_texts is not None
            and all(map(str.strip, source_texts))
            and all(map(str.strip, target_texts))
        ):
            self._source += source_texts
            self._target += target_texts
            self._numbers.extend(range(first, first + len(sources)))
            return
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), first):
            self.add(number, source, target)

    def refuse(self, problem: Problem, number: int, got: str) -> None:
        """Counts the invalid line `number` (from 1) of a corpus that is one file."""
        if self._config.on_bad_line == "skip":
            self._drop(problem.reason, 0, number)
        else:
            self._count_invalid(problem, f"{got} at {self._names[0]}:{number}")

    def collected(self) -> CollectedBlock:
        """The pairs added, and the counts."""
        weights = self._loss_weights
        counts = Counts(
            len(self._source),
            self._dropped.counts,
            self._dropped.examples | self._replaced.examples,
            sum(self._replaced.counts.values()),
            value_range(weights),
            tuple(
                Invalid(problem, self._invalid.counts[reason], self._invalid.examples[reason])
                for reason, problem in self._problems.items()
            ),
        )
        return CollectedBlock(self._source, self._target, self._numbers, weights or None, counts)

    def _replace_bytes(self, number: int, sides: tuple[bytes, bytes]) -> tuple[str, str] | None:
        """The text of a pair with invalid bytes; None if it was dropped or refused."""
        replaced = [raw.decode("utf-8", "replace") for raw in sides]
        invalid = [side for side in (0, 1) if replaced[side].encode() != sides[side]]
        if self._config.on_bad_utf8 == "replace":
            for side in invalid:
                self._replaced.add(REPLACED, f"{self._names[side]}:{number}")
            return replaced[0], replaced[1]
        if self._config.on_bad_utf8 == "skip":
            self._drop(NOT_UTF8.reason, invalid[0], number)
        else:
            self._refuse_bytes(number, sides)
        return None

    def _refuse_bytes(self, number: int, sides: tuple[bytes, bytes]) -> None:
        """Count the invalid lines of a pair, with the column of their first invalid bytes."""
        same_file = self._names[0] == self._names[1]
        lines = [b"\t".join(sides)] if same_file else sides
        for name, line in zip(self._names, lines, strict=not same_file):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                column = len(line[: error.start].decode("utf-8")) + 1
                got = f"byte {line[error.start]:#04x} in column {column} of {name}:{number}"
                self._count_invalid(NOT_UTF8, got)

    def _decoded(self, lines: Sequence[bytes]) -> list[str] | None:
        """The text of all lines; None if one of them is too long or not UTF-8."""
        if max(map(len, lines)) > LONGEST:
            return None
        try:
            return self._config.normal_form(b"\n".join(lines).decode()).split("\n")
        except UnicodeDecodeError:
            return None

    def _count_invalid(self, problem: Problem, got: str) -> None:
        self._problems[problem.reason] = problem
        self._invalid.add(problem.reason, got)

    def _drop(self, reason: str, side: int, number: int) -> None:
        self._dropped.add(reason, f"{self._names[side]}:{number}")

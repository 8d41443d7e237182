"""Counts of the pairs of a corpus: kept, dropped by reason, and the invalid lines."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from seq2seq.runtime.errors import DATA, UserError

EXAMPLES = 5  # places recorded for each reason to drop a pair


class Problem(NamedTuple):
    """A property that makes a line invalid."""

    reason: str  # in the counts of dropped pairs
    expected: str
    advice: str


class Invalid(NamedTuple):
    """The lines with one problem: their number, and what the first few are and where."""

    problem: Problem
    num_lines: int
    got: list[str]  # as "3 at train.tsv:77"

    @property
    def message(self) -> str:
        """The error message for these lines."""
        lines = "line" if self.num_lines == 1 else "lines"
        more = ", …" if self.num_lines > EXAMPLES else ""
        return (
            f"{self.num_lines:,} invalid {lines}: expected {self.problem.expected}, got "
            f"{', '.join(self.got)}{more}; {self.problem.advice}"
        )


class Note(NamedTuple):
    """The lines with a property that is reported to the user."""

    lines: int
    examples: list[str]  # the first few distinct ones

    def merged(self, later: "Note") -> "Note":
        """This note and a later one of the same property."""
        examples = list(dict.fromkeys([*self.examples, *later.examples]))
        return Note(self.lines + later.lines, examples[:EXAMPLES])


class Counts(NamedTuple):
    """How many pairs of a corpus, or of a block of it, were kept and dropped."""

    kept: int = 0
    dropped: dict[str, int] = {}  # reason → number of pairs
    examples: dict[str, list[str]] = {}  # reason → the first few places, as "train.de:777"
    replaced: int = 0  # number of lines in which invalid UTF-8 was replaced by U+FFFD
    # The smallest and the largest loss weight of the kept pairs; empty if they have none.
    loss_weights: Sequence[float] = ()
    invalid: tuple[Invalid, ...] = ()
    notes: dict[str, Note] = {}  # by property, as "source lines have …"; of kept pairs

    def merged(self, later: "Counts") -> "Counts":
        """The counts of these pairs and of `later` ones, with the first places of both."""
        dropped = dict(self.dropped)
        for reason, count in later.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
        # In the order of `dropped`, which does not depend on where the blocks end.
        reasons = dict.fromkeys([*dropped, *self.examples, *later.examples])
        return Counts(
            self.kept + later.kept,
            dropped,
            {
                reason: (self.examples.get(reason, []) + later.examples.get(reason, []))[:EXAMPLES]
                for reason in reasons
            },
            self.replaced + later.replaced,
            value_range([*self.loss_weights, *later.loss_weights]),
            _merged_invalid(self.invalid + later.invalid),
            merged_notes(self.notes, later.notes),
        )

    def report(self, title: str) -> Iterator[str]:
        """Lines with the numbers of kept and dropped pairs, with examples for each reason."""
        line = f"{title}: {self.kept:,} pairs kept, {sum(self.dropped.values()):,} dropped"
        if self.dropped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            line += f" ({reasons})"
        if self.replaced:
            line += f", {self.replaced:,} lines with replaced bytes"
        yield line
        if self.loss_weights:
            smallest, largest = self.loss_weights
            yield f"  loss weights: {smallest:g} to {largest:g}"
        for reason, places in self.examples.items():  # a line with replaced bytes is not dropped
            more = ", …" if self.dropped.get(reason, self.replaced) > len(places) else ""
            yield f"  {reason}: {', '.join(places)}{more}"
        for name, note in self.notes.items():
            share = 100.0 * note.lines / max(1, self.kept)
            yield f"  {note.lines:,} {name} ({share:.3g} %), such as {', '.join(note.examples)}"

    def check(self, names: Sequence[str]) -> None:
        """UserError(DATA) with all invalid lines, or if no pair is left to train on.

        `names` are the files or data sets of the corpus.
        """
        if self.invalid:
            raise UserError(DATA, "; ".join(invalid.message for invalid in self.invalid))
        title = ", ".join(dict.fromkeys(names))
        if not self.kept:
            raise UserError(DATA, none_left(title, self.dropped))
        if self.loss_weights and not self.loss_weights[1]:
            raise UserError(
                DATA, f"{title}: all loss weights are 0: expected one above 0; correct column 3"
            )

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON, without the invalid lines."""
        return {name: value for name, value in self._asdict().items() if name != "invalid"}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Counts":
        """The counts that `to_json` returned."""
        notes = {name: Note(*note) for name, note in content.get("notes", {}).items()}
        weights = tuple(content["loss_weights"])
        return cls(**content | {"loss_weights": weights, "notes": notes})


def merged_notes(notes: dict[str, Note], later: dict[str, Note]) -> dict[str, Note]:
    """The notes of earlier and of later lines."""
    empty = Note(0, [])
    names = dict.fromkeys([*notes, *later])
    return {name: notes.get(name, empty).merged(later.get(name, empty)) for name in names}


def none_left(title: str, dropped: dict[str, int]) -> str:
    """The message that no pair of the corpus `title` is left, with the reasons."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    if not reasons:
        return f"{title}: no usable pairs: the corpus is empty"
    return f"{title}: 0 of {sum(dropped.values())} pairs left: {reasons}"


def value_range(values: Sequence[float]) -> Sequence[float]:
    """The smallest and the largest value; empty if there are none."""
    return (min(values), max(values)) if values else ()


def _merged_invalid(invalid: tuple[Invalid, ...]) -> tuple[Invalid, ...]:
    merged: dict[Problem, Invalid] = {}
    for later in invalid:
        _, count, got = merged.get(later.problem, Invalid(later.problem, 0, []))
        merged[later.problem] = Invalid(
            later.problem, count + later.num_lines, (got + later.got)[:EXAMPLES]
        )
    return tuple(merged.values())

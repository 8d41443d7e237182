"""Formats of the input and output lines of a decoding job; FORMATS lists them by name.

    text    a sentence → its translation
    tsv     columns: a sentence, and in the second a translation to score → the line with the result
            as one more column. A column after the first that begins with source_language=,
            target_language= or source_prefix= is that setting of the line, and no text
    jsonl   {"text": …, other fields} → the object with more fields (docs/DECODING.md lists them)
    moses   output only: the lines of a Moses n-best list, with line numbers from 0:
            "number ||| translation ||| LogProb= log-probability Length= tokens ||| score"

The input and the output may have different formats (`formats_of`). To add a format, derive a class
from `Format` and list it in FORMATS.
"""

from typing import Any, NamedTuple

from seq2seq.data.tokenizers.tokenizer import one_line
from seq2seq.decoding.command.json_lines import (
    JSON,
    nonfinite_to_null,
    string_field,
    type_name,
    with_fields,
)
from seq2seq.decoding.results import Item, Scored, Translation
from seq2seq.files.lines import LONGEST, TOO_LONG
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError

SETTINGS = "source_language", "target_language", "source_prefix"  # of a line


class Format:
    """Parses input lines and renders output lines. The methods of this class are those of text."""

    name: str
    can_read = True  # as the input format; every format can be written
    has_target = False  # input: a line may hold both sides
    has_languages = False  # input: a line may name its languages
    has_nbest = False  # output: several translations of a line can be written
    has_fields = False  # output: further results can be written as fields
    can_score = True  # output: supports --mode=score and --mode=align

    def parse(self, line: str, place: str, needs_target: bool = False) -> Item:
        """The item of a line. UserError(DATA), which names the place, if it is malformed or
        `needs_target` and it holds no translation to score."""
        return Item(line, line)

    def line_of(self, item: Item) -> str:
        """A line of this format with the texts of an item of another format."""
        return item.text

    def render(self, number: int, item: Item, translation: Translation, nbest: bool) -> str:
        """The output for item `number` (from 0). `nbest`: whether several hypotheses were
        requested."""
        return translation.text  # blank for a blank line

    def render_score(self, item: Item, scored: Scored, translation: Translation) -> str:
        """The output of --mode=score; `translation` is the scored pair."""
        return self.add_column(item, f"{scored.score:.6f}")

    def render_alignment(self, item: Item, scored: Scored) -> str:
        """The output of --mode=align in the Pharaoh format: source-target token indices from 0."""
        return self.add_column(item, " ".join(f"{i}-{j}" for i, j in scored.links))

    def render_unscored(self, item: Item) -> str:
        """The output of --mode=score and --mode=align for an item that is blank on both sides."""
        return ""

    def add_column(self, item: Item, result: str) -> str:
        """The output for an item with one more column, in formats with columns."""
        return result


class Text(Format):
    """One sentence a line."""

    name = "text"


class Tsv(Format):
    """Columns with tabs between them."""

    name = "tsv"
    has_target = has_languages = True

    def parse(self, line: str, place: str, needs_target: bool = False) -> Item:
        text, *others = line.split("\t")
        settings: dict[str, Any] = {}
        targets = []
        for column in others:
            name, equals, value = column.partition("=")
            if equals and name in SETTINGS:
                settings[name] = value
            else:
                targets.append(column)
        if needs_target and line.strip() and not targets:
            raise UserError(
                DATA,
                f"{place}: no second column: expected a translation to score in it; add it, or "
                "give --target=FILE",
            )
        return Item(text, line, target=targets[0] if targets else None, **settings)

    def line_of(self, item: Item) -> str:
        texts = [item.text] if item.target is None else [item.text, item.target]
        return "\t".join(map(one_column, texts))

    def render(self, number: int, item: Item, translation: Translation, nbest: bool) -> str:
        if not item.line.strip():
            return item.line
        return self.add_column(item, one_column(translation.text))

    def render_unscored(self, item: Item) -> str:
        return item.line

    def add_column(self, item: Item, result: str) -> str:
        return f"{item.line}\t{result}"


class Jsonl(Format):
    """JSON objects. A score of −inf or NaN is null."""

    name = "jsonl"
    has_target = has_languages = has_nbest = has_fields = True

    def parse(self, line: str, place: str, needs_target: bool = False) -> Item:
        if not line.strip():
            return Item(line, line)
        try:
            fields = JSON.decode(line)
        except (ValueError, RecursionError) as error:
            if len(line.encode()) > LONGEST - 4:  # truncated, at most within the last character
                raise UserError(
                    DATA,
                    f"{place}: {TOO_LONG}: expected a JSON object of at most that length; split "
                    "its text",
                ) from None
            raise UserError(
                DATA,
                f"{place}: not JSON ({error}); the input format jsonl expects an object in each "
                "line",
            ) from None
        if not isinstance(fields, dict):
            raise UserError(DATA, f"{place}: expected a JSON object, got {type_name(fields)}")
        text, target = string_field(fields, place, "text"), None
        settings: dict[str, Any] = {
            name: string_field(fields, place, name)
            for name in ("prefix", *SETTINGS)
            if fields.get(name) is not None
        }
        if needs_target:
            target = string_field(fields, place, "target", "translation")
        return Item(text, line, target=target, **settings)

    def line_of(self, item: Item) -> str:
        target = {} if item.target is None else {"target": item.target}
        return with_fields("", {"text": item.text} | target)

    def render(self, number: int, item: Item, translation: Translation, nbest: bool) -> str:
        if not item.line.strip():
            return translation.text
        objects = [
            {"translation": hypothesis.text, "score": hypothesis.score}
            | annotation(hypothesis.scored)
            for hypothesis in translation.hypotheses
        ]
        fields = objects[0] | line_fields(translation)
        if (utility := translation.hypotheses[0].utility) is not None:
            fields["utility"] = utility
        if scored := translation.hypotheses[0].scored:
            fields["source_tokens"] = scored.source_tokens
        if nbest:
            fields["nbest"] = objects
        return with_fields(item.line, nonfinite_to_null(fields))

    def render_score(self, item: Item, scored: Scored, translation: Translation) -> str:
        fields = {"score": scored.score} | token_fields(scored) | line_fields(translation)
        return with_fields(item.line, nonfinite_to_null(fields))

    def render_alignment(self, item: Item, scored: Scored) -> str:
        return with_fields(item.line, {"alignment": scored.links})

    def render_unscored(self, item: Item) -> str:
        return item.line


class Moses(Format):
    """Moses n-best lists; bars in a translation are escaped as Moses does."""

    name = "moses"
    can_read = False
    has_nbest = True
    can_score = False

    def render(self, number: int, item: Item, translation: Translation, nbest: bool) -> str:
        return "\n".join(
            f"{number} ||| {hypothesis.text.replace('|||', '&#124;' * 3)} "
            f"||| LogProb= {hypothesis.log_prob:.6f} Length= {hypothesis.length} "
            f"||| {hypothesis.score:.6f}"
            for hypothesis in translation.hypotheses
        )


FORMATS: dict[str, Format] = {
    line_format.name: line_format for line_format in (Text(), Tsv(), Jsonl(), Moses())
}


class Formats(NamedTuple):
    """The formats of the input and the output of a job."""

    input: Format
    output: Format

    def output_item(self, item: Item) -> Item:
        """The item with the line to which the output adds its results: the input line, or one with
        its texts if the formats differ."""
        if self.input is self.output:
            return item
        return item._replace(line=self.output.line_of(item))

    def advice(self, *, output: str = "", input: str = "") -> str:
        """The values of --format with another output or input format, one with this property."""
        inputs = names_with(input) if input else [self.input.name]
        outputs = names_with(output) if output else [self.output.name]
        pairs = [f"{first}:{second}" for first in inputs for second in outputs]
        return " or ".join(f"--format={pair}" for pair in pairs)


def formats_of(flag: str) -> Formats:
    """The formats of --format=INPUT:OUTPUT, or of one name for both. A single name that cannot be
    read is that of the output, and text is read.

    UserError(CONFIGURATION) for an unknown format, and for an input format that cannot be read.
    """
    first, colon, second = flag.partition(":")
    for name in (first, second) if colon else (first,):
        if name not in FORMATS:
            raise UserError(
                CONFIGURATION,
                f"--format={flag} is unknown: expected FORMAT or INPUT:OUTPUT, each one of "
                f"{', '.join(FORMATS)}",
            )
    if not colon:
        return Formats(FORMATS[first if FORMATS[first].can_read else Text.name], FORMATS[first])
    formats = Formats(FORMATS[first], FORMATS[second])
    if not formats.input.can_read:
        raise UserError(
            CONFIGURATION,
            f"--format={flag}: {first} is an output format only; give "
            f"{formats.advice(input='can_read')}",
        )
    return formats


def names_with(property_name: str) -> list[str]:
    """The names of the formats with a property."""
    return [name for name, line_format in FORMATS.items() if getattr(line_format, property_name)]


def token_fields(scored: Scored) -> dict[str, Any]:
    """The fields of a teacher-forced pass besides the score."""
    return {"log_prob": scored.log_prob, "tokens": scored.tokens, "log_probs": scored.log_probs}


def line_fields(translation: Translation) -> dict[str, Any]:
    """What happened to the line: the fields that every result has."""
    unknown, replaced = list(translation.unknown), list(translation.replaced)
    return {"truncated": translation.truncated, "unknown": unknown, "replaced": replaced}


def annotation(scored: Scored | None) -> dict[str, Any]:
    """The fields that --annotate adds to a translation."""
    return {} if scored is None else token_fields(scored) | {"alignment": scored.links}


def one_column(text: str) -> str:
    """Text without the characters that separate columns and lines."""
    return one_line(text).replace("\t", " ")

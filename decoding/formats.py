"""Formats of the input and output lines of a decoding job; FORMATS lists them by name.

    text    a sentence → its translation
    tsv     columns: a sentence, and in the second a translation to score → the line with the result
            as one more column
    jsonl   {"text": …, other fields} → the object with more fields (docs/DECODING.md lists them)
    moses   output only: the lines of a Moses n-best list, with line numbers from 0:
            "number ||| translation ||| LogProb= log-probability Length= tokens ||| score"

Input and output may have different formats. To add a format, derive a class from `Format` and list
it in FORMATS.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from decoding.json_lines import JSON, kind_of, nonfinite_to_null, string_field, with_fields
from runtime.errors import CONFIGURATION, DATA, UserError


class Item(NamedTuple):
    """One line of a job."""

    text: str
    line: str  # unchanged
    prefix: str = ""
    target: str = ""


class Scored(NamedTuple):
    """The score of one pair by teacher forcing; it equals that of a search.

    Suppressed pieces (−inf), renormalization and the repetition penalty apply as in a search.
    Length limits, n-gram bans and prefixes only restrict the choice of hypotheses; they do not
    apply. The last token of each side is the end token.
    """

    log_prob: float
    score: float
    tokens: list[str]
    log_probs: list[float]
    # (i, j): target token j attends most to source token i; no ends. Empty without cross-attention.
    links: list[tuple[int, int]]
    kept: int  # tokens of the longer side after truncation
    cut: int  # tokens truncated from the longer side
    source_tokens: list[str]

    @property
    def fields(self) -> dict[str, Any]:
        """The results of --mode=score besides the score, by field name."""
        return {"log_prob": self.log_prob, "tokens": self.tokens, "log_probs": self.log_probs}


class Hypothesis(NamedTuple):
    """One translation; `score` is `log_prob` over a length penalty, and a search sorts by it."""

    text: str
    score: float
    log_prob: float = 0.0
    length: int = 0  # tokens, with the end token
    ids: Sequence[int] = ()  # without the end token
    scored: Scored | None = None  # the teacher-forced pass over `ids`, if it was requested


class Format:
    """Parses input lines and renders output lines. The methods of this class are those of text."""

    name: str
    can_read = True  # as --input_format; every format can be written
    has_target = False  # input: a line may hold both sides
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

    def render(
        self, number: int, item: Item, hypotheses: list[Hypothesis], truncated: bool, nbest: bool
    ) -> str:
        """The output for item `number` (from 0). `hypotheses` are best first and never empty;
        `nbest`: whether several were requested."""
        return hypotheses[0].text  # blank for a blank line

    def render_score(self, item: Item, score: float, fields: dict[str, Any]) -> str:
        """The output of --mode=score; `fields` are further results, for formats with fields."""
        return self.add_column(item, f"{score:.6f}")

    def render_alignment(self, item: Item, links: list[tuple[int, int]]) -> str:
        """The output of --mode=align in the Pharaoh format: source-target token indices from 0."""
        return self.add_column(item, " ".join(f"{i}-{j}" for i, j in links))

    def render_unscored(self, item: Item) -> str:
        """The output of --mode=score and --mode=align for an item that is blank on both sides."""
        return ""

    def add_column(self, item: Item, result: str) -> str:
        return result


class Text(Format):
    """One sentence a line."""

    name = "text"


class Tsv(Format):
    """Columns with tabs between them."""

    name = "tsv"
    has_target = True

    def parse(self, line, place, needs_target=False):
        columns = line.split("\t")
        if needs_target and line.strip() and len(columns) < 2:
            raise UserError(
                DATA,
                f"{place}: no second column: expected a translation to score in it; add it, or "
                "give --target=FILE",
            )
        return Item(columns[0], line, target="".join(columns[1:2]))

    def line_of(self, item):
        return "\t".join(map(one_column, [item.text, *filter(None, [item.target])]))

    def render(self, number, item, hypotheses, truncated, nbest):
        if not item.line.strip():
            return item.line
        return self.add_column(item, one_column(hypotheses[0].text))

    def render_unscored(self, item):
        return item.line

    def add_column(self, item, result):
        return f"{item.line}\t{result}"


class Jsonl(Format):
    """JSON objects. A score of −inf or NaN is null."""

    name = "jsonl"
    has_target = has_nbest = has_fields = True

    def parse(self, line, place, needs_target=False):
        if not line.strip():
            return Item(line, line)
        try:
            fields = JSON.decode(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                DATA,
                f"{place}: not JSON ({error}); the input format jsonl expects an object in each "
                "line",
            ) from None
        if not isinstance(fields, dict):
            raise UserError(DATA, f"{place}: expected a JSON object, got {kind_of(fields)}")
        text, prefix, target = string_field(fields, place, "text"), "", ""
        if fields.get("prefix") is not None:
            prefix = string_field(fields, place, "prefix")
        if needs_target:
            target = string_field(fields, place, "target", "translation")
        return Item(text, line, prefix, target)

    def line_of(self, item):
        target = {"target": item.target} if item.target else {}
        return with_fields("", {"text": item.text} | target)

    def render(self, number, item, hypotheses, truncated, nbest):
        if not item.line.strip():
            return hypotheses[0].text
        each = [
            {"translation": one.text, "score": one.score} | annotation(one.scored)
            for one in hypotheses
        ]
        fields = each[0] | {"truncated": truncated}
        if hypotheses[0].scored:
            fields["source_tokens"] = hypotheses[0].scored.source_tokens
        if nbest:
            fields["nbest"] = each
        return with_fields(item.line, nonfinite_to_null(fields))

    def render_score(self, item, score, fields):
        return with_fields(item.line, nonfinite_to_null({"score": score} | fields))

    def render_alignment(self, item, links):
        return with_fields(item.line, {"alignment": links})

    def render_unscored(self, item):
        return item.line


class Moses(Format):
    """Moses n-best lists; bars in a translation are escaped as Moses does."""

    name = "moses"
    can_read = False
    has_nbest = True
    can_score = False

    def render(self, number, item, hypotheses, truncated, nbest):
        return "\n".join(
            f"{number} ||| {one.text.replace('|||', '&#124;' * 3)} "
            f"||| LogProb= {one.log_prob:.6f} Length= {one.length} ||| {one.score:.6f}"
            for one in hypotheses
        )


FORMATS = {one.name: one for one in (Text(), Tsv(), Jsonl(), Moses())}


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


def formats_of(both: str, input_format: str | None, output_format: str | None) -> Formats:
    """The formats of the flags --format, --input_format and --output_format. A --format that cannot
    be read is written only, and text is read.

    UserError(CONFIGURATION) for an --input_format that cannot be read.
    """
    if input_format is None:
        input_format = both if FORMATS[both].can_read else Text.name
    if not FORMATS[input_format].can_read:
        readable = " or ".join(name for name, one in FORMATS.items() if one.can_read)
        raise UserError(
            CONFIGURATION,
            f"--input_format={input_format} is an output format only; give "
            f"--input_format={readable}",
        )
    return Formats(FORMATS[input_format], FORMATS[output_format or both])


def annotation(scored: Scored | None) -> dict[str, Any]:
    """The fields that a teacher-forced pass adds to a translation."""
    return {} if scored is None else scored.fields | {"alignment": scored.links}


def one_column(text: str) -> str:
    """Text without the characters that separate columns and lines."""
    return text.replace("\t", " ").replace("\n", " ")

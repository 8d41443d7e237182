"""Formats of the input and output lines of a decoding job; FORMATS lists them by name.

    text    a sentence → its translation
    tsv     columns: a sentence, and in the second a translation to score → the line with the result
            as one more column
    jsonl   {"text": …, other fields} → the object with more fields. Input: "prefix", which the
            translation must begin with; "target" (else "translation"), to score. Output:
            "translation", "score", "truncated", and "nbest" if several were requested; "score",
            "log_prob", "tokens", "log_probs", "truncated" with --mode=score; "alignment" with
            --mode=align
    moses   a sentence → the lines of a Moses n-best list, with line numbers from 0:
            "number ||| translation ||| LogProb= log-probability Length= tokens ||| score"

To add a format, derive a class from `Format` and list it in FORMATS.
"""

from typing import Any, NamedTuple

from decoding.json_lines import JSON, nonfinite_to_null, with_fields, without_surrogates
from runtime.errors import DATA, UserError


class Item(NamedTuple):
    """One line of a job."""

    text: str
    line: str  # unchanged
    prefix: str = ""
    target: str = ""


class Hypothesis(NamedTuple):
    """One translation; `score` is `log_prob` over a length penalty, and a search sorts by it."""

    text: str
    score: float
    log_prob: float = 0.0
    length: int = 0  # tokens, with the end token


class Format:
    """Parses input lines and renders output lines. The methods of this class are those of text."""

    name: str
    has_target = False  # a line may hold both sides
    has_nbest = False  # several translations of a line can be written
    can_score = True  # supports --mode=score and --mode=align

    def parse(self, line: str, place: str, needs_target: bool = False) -> Item:
        """The item of a line. UserError(DATA), which names the place, if it is malformed or
        `needs_target` and it holds no translation to score."""
        return Item(line, line)

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
                DATA, f"{place}: no second column: expected a translation to score in it"
            )
        return Item(columns[0], line, target="".join(columns[1:2]))

    def render(self, number, item, hypotheses, truncated, nbest):
        if not item.line.strip():
            return item.line
        return self.add_column(item, hypotheses[0].text.replace("\t", " "))

    def render_unscored(self, item):
        return item.line

    def add_column(self, item, result):
        return f"{item.line}\t{result}"


class Jsonl(Format):
    """JSON objects. A score of −inf or NaN is null."""

    name = "jsonl"
    has_target = has_nbest = True

    def parse(self, line, place, needs_target=False):
        if not line.strip():
            return Item(line, line)
        try:
            fields = JSON.decode(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                DATA, f"{place}: not JSON ({error}); --format=jsonl expects an object in each line"
            ) from None
        if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
            raise UserError(DATA, f'{place}: expected an object with a string "text"')
        prefix, target = fields.get("prefix"), ""
        if needs_target:
            target = fields.get("target", fields.get("translation"))
            if not isinstance(target, str):
                raise UserError(DATA, f'{place}: expected a string "target" or "translation"')
        if not isinstance(prefix, str | None):
            raise UserError(DATA, f'{place}: "prefix" must be a string')
        text, prefix, target = map(without_surrogates, (fields["text"], prefix or "", target))
        return Item(text, line, prefix, target)

    def render(self, number, item, hypotheses, truncated, nbest):
        if not item.line.strip():
            return hypotheses[0].text
        each = [{"translation": one.text, "score": one.score} for one in hypotheses]
        fields = each[0] | {"truncated": truncated} | ({"nbest": each} if nbest else {})
        return with_fields(item.line, nonfinite_to_null(fields))

    def render_score(self, item, score, fields):
        return with_fields(item.line, nonfinite_to_null({"score": score} | fields))

    def render_alignment(self, item, links):
        return with_fields(item.line, {"alignment": links})

    def render_unscored(self, item):
        return item.line


class Moses(Format):
    """Text in, Moses n-best lists out; bars in a translation are escaped as Moses does."""

    name = "moses"
    has_nbest = True
    can_score = False

    def render(self, number, item, hypotheses, truncated, nbest):
        return "\n".join(
            f"{number} ||| {one.text.replace('|||', '&#124;' * 3)} "
            f"||| LogProb= {one.log_prob:.6f} Length= {one.length} ||| {one.score:.6f}"
            for one in hypotheses
        )


FORMATS = {one.name: one for one in (Text(), Tsv(), Jsonl(), Moses())}

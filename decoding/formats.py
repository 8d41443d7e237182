"""What a line of a decoding job is: text, JSON or columns in; text, JSON, columns or n-best out.

    text    a sentence; out comes its translation
    tsv     columns, the first is the sentence, the second a translation to score; what is found is
            one more column
    jsonl   {"text": …, any other field}; "prefix" is what a translation must begin with, "target"
            (else "translation") one to score; more fields come out: "translation", "score",
            "truncated", and "nbest" where several were asked for; "log_prob", "tokens" and
            "log_probs" of a scored one; "alignment" of an aligned one
    moses   a sentence; out come the lines of a Moses n-best list, line numbers from 0:
            "number ||| translation ||| LogProb= log-probability Length= tokens ||| score"

Fields of a JSON object keep their text: 1e400, 1.0 and long integers come out as they came in.
"""

import json
import math
import re
from typing import Any, NamedTuple

from runtime.errors import DATA, UserError

FORMATS = ("text", "tsv", "jsonl", "moses")
SEPARATOR, TAB = "|||", "\t"
HALF_PAIRS = re.compile("[\ud800-\udfff]")
SPACE = re.compile(r"[ \t\n\r]*")  # between the tokens of JSON


class Item(NamedTuple):
    """One line of a job."""

    text: str
    line: str  # as it was read
    prefix: str = ""
    target: str = ""


class Hypothesis(NamedTuple):
    """One translation; the search sorts by `score`, `log_prob` over a length penalty."""

    text: str
    score: float
    log_prob: float = 0.0
    length: int = 0  # tokens, the end token included


class Number(NamedTuple):
    """A JSON number, NaN or Infinity that nothing here computes with."""

    text: str


JSON = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)


def parsed(form: str, line: str, where: str, with_target: bool = False) -> Item:
    """The item of a line, `with_target` where it must hold a translation to score.

    UserError(DATA) that names the place where it is not as expected.
    """
    if form == "tsv":
        columns = line.split("\t")
        if with_target and line.strip() and len(columns) < 2:
            raise UserError(DATA, f"{where}: no second column; it must hold a translation")
        return Item(columns[0], line, target="".join(columns[1:2]))
    if form != "jsonl" or not line.strip():
        return Item(line, line)
    try:
        fields = JSON.decode(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            DATA, f"{where}: not JSON ({error}); --format=jsonl takes an object a line"
        ) from None
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        raise UserError(DATA, f'{where}: expected an object with a string "text"')
    prefix, target = fields.get("prefix"), ""
    if with_target:
        target = fields.get("target", fields.get("translation"))
        if not isinstance(target, str):
            raise UserError(DATA, f'{where}: expected a string "target" or "translation"')
    if not isinstance(prefix, str | None):
        raise UserError(DATA, f'{where}: "prefix" must be a string')
    return Item(encodable(fields["text"]), line, encodable(prefix or ""), encodable(target))


def rendered(
    form: str, number: int, item: Item, found: list[Hypothesis], truncated: bool, several: bool
) -> str:
    """What comes out for item `number` (from 0); `found` is best first and never empty, `several`
    whether more than one was asked for.

    A score of −inf, of what breaks the rules of the search, is null in JSON.
    """
    if form == "tsv":
        return f"{item.line}\t{found[0].text.replace(TAB, ' ')}" if item.line.strip() else item.line
    if form == "moses":
        return "\n".join(
            f"{number} {SEPARATOR} {escaped(one.text)} {SEPARATOR} LogProb= {one.log_prob:.6f} "
            f"Length= {one.length} {SEPARATOR} {one.score:.6f}"
            for one in found
        )
    if form == "text" or not item.line.strip():
        return found[0].text  # of a blank line, a blank one
    each = finite([{"translation": one.text, "score": one.score} for one in found])
    nbest = {"nbest": each} if several else {}
    return extended(item, each[0] | {"truncated": truncated} | nbest)


def with_scores(form: str, item: Item, score: float, fields: dict[str, Any]) -> str:
    """What comes out of scoring an item: its score, and with JSON all that is known."""
    if form == "jsonl":
        return extended(item, finite({"score": score} | fields))
    return f"{item.line}\t{score:.6f}" if form == "tsv" else f"{score:.6f}"


def with_alignment(form: str, item: Item, links: list[tuple[int, int]]) -> str:
    """Links between tokens as Pharaoh has them: source-target, numbers from 0."""
    if form == "jsonl":
        return extended(item, {"alignment": links})
    pharaoh = " ".join(f"{i}-{j}" for i, j in links)
    return f"{item.line}\t{pharaoh}" if form == "tsv" else pharaoh


def extended(item: Item, more: dict[str, Any]) -> str:
    """The item's JSON object with more fields; the text of the other values does not change."""
    fields = texts_of(item.line) if item.line.strip() else {}
    fields |= {name: json.dumps(value, ensure_ascii=False) for name, value in more.items()}
    inside = (f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in fields.items())
    text = f"{{{', '.join(inside)}}}"
    # A half of a surrogate pair has no UTF-8; inside a JSON string its escape means the same.
    return HALF_PAIRS.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def texts_of(line: str) -> dict[str, str]:
    """The fields of a JSON object, each with the text of its value as it was written."""
    fields, at = {}, SPACE.match(line, line.index("{") + 1).end()
    while line[at] != "}":
        name, at = JSON.raw_decode(line, at)
        at = SPACE.match(line, at).end() + 1  # behind the colon
        start = SPACE.match(line, at).end()
        _, end = JSON.raw_decode(line, start)
        fields[name] = line[start:end]
        at = SPACE.match(line, end).end()
        if line[at] == ",":
            at = SPACE.match(line, at + 1).end()
    return fields


def encodable(text: str) -> str:
    """Text that UTF-8 can encode: halves of surrogate pairs become U+FFFD."""
    return HALF_PAIRS.sub("\ufffd", text)


def finite(value: Any) -> Any:
    """The value with None in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escaped(text: str) -> str:
    """Text that does not hold the separator: its bars as Moses writes them."""
    return text.replace(SEPARATOR, "&#124;" * len(SEPARATOR))

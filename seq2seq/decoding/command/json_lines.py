"""JSON lines whose fields keep their text: 1e400, 1.0 and long integers are copied unchanged."""

import json
import math
import re
from itertools import islice
from typing import Any, NamedTuple

from seq2seq.runtime.errors import DATA, UserError

SURROGATES = re.compile("[\ud800-\udfff]")


class Number(NamedTuple):
    """The text of a JSON number, NaN or Infinity, which is never computed with."""

    text: str


JSON = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)


def type_name(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    names = {str: "a string", bool: "a boolean", Number: "a number", list: "an array"}
    return names.get(type(value), "an object")


def string_field(fields: dict[str, Any], place: str, *names: str) -> str:
    """The value of the first of these fields that an object has; one that is null counts only if it
    has no other. UserError(DATA), which names the fields found, if it has none of them or the value
    is not a string."""
    present = sorted((n for n in names if n in fields), key=lambda name: fields[name] is None)
    if not present:
        wanted = " or ".join(f'"{name}"' for name in names)
        quoted = (json.dumps(without_surrogates(field), ensure_ascii=False) for field in fields)
        listed = ", ".join(islice(quoted, 10)) or "no fields"
        raise UserError(
            DATA,
            f"{place}: no {wanted}: expected a field {wanted} with a string, got {listed}; add or "
            "rename a field",
        )
    value = fields[present[0]]
    if not isinstance(value, str):
        raise UserError(DATA, f'{place}: "{present[0]}": expected a string, got {type_name(value)}')
    return without_surrogates(value)


def with_fields(line: str, fields: dict[str, Any]) -> str:
    """The JSON object of a line (or {} for a blank line) with `fields` added or replaced. The text
    of the other values does not change."""
    texts = field_texts(line) if line.strip() else {}
    texts |= {name: json.dumps(value, ensure_ascii=False) for name, value in fields.items()}
    members = (f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in texts.items())
    text = f"{{{', '.join(members)}}}"
    # UTF-8 cannot encode a lone surrogate; in a JSON string its escape has the same meaning.
    return SURROGATES.sub(lambda surrogate: f"\\u{ord(surrogate[0]):04x}", text)


def field_texts(line: str) -> dict[str, str]:
    """The text of each value of a JSON object, by field name."""
    texts, at = {}, skip_space(line, line.index("{") + 1)
    while line[at] != "}":
        name, at = JSON.raw_decode(line, at)
        start = skip_space(line, skip_space(line, at) + 1)  # after the colon
        _, end = JSON.raw_decode(line, start)
        texts[name] = line[start:end]
        at = skip_space(line, end)
        if line[at] == ",":
            at = skip_space(line, at + 1)
    return texts


def skip_space(line: str, start: int) -> int:
    """The index of the next token of JSON, at or after `start`."""
    while line[start] in " \t\n\r":
        start += 1
    return start


def without_surrogates(text: str) -> str:
    """Text that UTF-8 can encode: lone surrogates become U+FFFD."""
    return SURROGATES.sub("\ufffd", text)


def nonfinite_to_null(value: Any) -> Any:
    """The value with None instead of NaN and infinities, which JSON cannot represent."""
    if isinstance(value, dict):
        return {name: nonfinite_to_null(member) for name, member in value.items()}
    if isinstance(value, list):
        return [nonfinite_to_null(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

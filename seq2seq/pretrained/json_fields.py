"""JSON files of other projects: fields with checks that name the file and the field."""

import json
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, NoReturn

from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.files.output_files import write_atomic
from seq2seq.model.config import ModelConfig
from seq2seq.model.options import TYPE_NAMES, broken_rules
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.json_objects import json_object

SHOWN = 200  # characters of a value in a message
MOST_BYTES = 1 << 27  # of a file; those of the largest known vocabularies have 30 MB
# The rules of our fields, which also bound the fields of another project.
RULES: dict[str, Mapping[str, Any]] = {
    f"{config.section}.{field.name}": field.metadata
    for config in (ModelConfig, DecodingConfig)
    for field in dataclass_fields(config)
}


class JsonFields:
    """The fields of a JSON object; a check that fails raises UserError(CHECKPOINT) with file and
    field."""

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path, self._content = path, content

    def __getitem__(self, field: str) -> Any:
        return self._content[field]

    def __contains__(self, field: str) -> bool:
        return field in self._content

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, `default` if it is absent."""
        return self._content.get(field, default)

    def updated(self, content: dict[str, Any]) -> "JsonFields":
        """These fields with other values of some."""
        return JsonFields(self.path, self._content | content)

    def refuse(self, field: str, expected: str) -> NoReturn:
        """Raises the error for a field with an unsupported value."""
        raise UserError(
            CHECKPOINT,
            f"{self.path}: {field}={repr(self.get(field))[:SHOWN]} is not supported: expected "
            f"{expected}",
        )

    def require(self, field: str, value: Any) -> None:
        """Checks that a field has this value or is absent."""
        if self.get(field, value) != value:
            self.refuse(field, repr(value))

    def integer(self, field: str, ours: str, minimum: int = 1) -> int:
        """The value of a field that must be an integer of at least `minimum`, with the rules of our
        field `ours`."""
        value = self.get(field)
        if type(value) is not int or value < minimum:
            self.refuse(field, f"an integer of at least {minimum}")
        return self._checked(field, value, ours)

    def number(self, field: str, ours: str, default: float) -> float:
        """The value of a field that must be a number, with the rules of our field `ours`; `default`
        if it is absent."""
        value = self.get(field, default)
        if type(value) not in (int, float):
            self.refuse(field, TYPE_NAMES[float])
        return float(self._checked(field, value, ours))

    def boolean(self, field: str, default: bool) -> bool:
        """The value of a field that must be true or false, `default` if it is absent; null is
        false."""
        value = self.get(field, default)
        if type(value) not in (bool, type(None)):
            self.refuse(field, TYPE_NAMES[bool])
        return bool(value)

    def _checked(self, field: str, value: Any, ours: str) -> Any:
        for expected in broken_rules(value, RULES[ours]):
            self.refuse(field, expected)
        return value


def read_bytes(path: Path) -> bytes:
    """The content of a file that is not of weights. UserError(CHECKPOINT) if it cannot be read or
    is larger than that of any vocabulary."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise UserError(CHECKPOINT, f"{path} is too large: expected at most {MOST_BYTES} bytes")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. UserError(CHECKPOINT) if it does not."""
    try:
        return json_object(read_bytes(path).decode("utf-8"))
    except ValueError as error:
        raise UserError(CHECKPOINT, f"{path} is malformed: {error}") from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file that `read_json` reads."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

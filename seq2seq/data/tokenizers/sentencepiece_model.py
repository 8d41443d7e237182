"""The pieces of a SentencePiece model file: read, removed, reordered and added.

A .model file is a protocol buffer (ModelProto of sentencepiece_model.proto). The generated class
works with one version of protobuf only, so the few fields are read here: a message is a sequence of
fields, each a varint (number × 8 + wire type) and a value.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the types of pieces
PIECES, TRAINER = 1, 2  # fields of ModelProto
MODEL_TYPE = 3  # field of its TrainerSpec
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# The fields of its TrainerSpec with the id and the text of padding, start, end and unknown.
SPECIAL_FIELDS = (43, 48), (41, 46), (42, 47), (40, 45)
SPECIAL_TYPES = CONTROL, CONTROL, CONTROL, UNKNOWN
VARINT, BYTES, FIXED32 = 0, 2, 5  # wire types


class Piece(NamedTuple):
    """One entry of a model."""

    text: str
    score: float
    type: int
    field: bytes  # as in the file


def read_pieces(model: bytes) -> list[Piece]:
    """The pieces of a model that SentencePiece can load; the index is the id."""
    return [_piece(value, field) for number, value, field in _fields(model) if number == PIECES]


def with_pieces(model: bytes, pieces: Iterable[Piece]) -> bytes:
    """The model with other pieces in place of its own."""
    rest = [field for number, _, field in _fields(model) if number != PIECES]
    return b"".join([piece.field for piece in pieces] + rest)


def with_special_pieces(model: bytes, texts: Iterable[str], pieces: Iterable[Piece]) -> bytes:
    """The model with these pieces: padding, start, end and unknown with `texts`, then `pieces`."""
    specials, trainer = [], b""
    for i, (text, kind) in enumerate(zip(texts, SPECIAL_TYPES, strict=True)):
        message = _field(1, text.encode()) + _field(3, kind)
        specials.append(Piece(text, 0.0, kind, _field(PIECES, message)))
        id_field, text_field = SPECIAL_FIELDS[i]
        trainer += _field(id_field, i) + _field(text_field, text.encode())
    # Of a field that occurs twice the last value counts.
    return with_pieces(model, [*specials, *pieces]) + _field(TRAINER, trainer)


def model_type(model: bytes) -> str:
    """unigram, bpe, word or char."""
    trainer = b"".join(value for number, value, _ in _fields(model) if number == TRAINER)
    values = {number: value for number, value, _ in _fields(trainer)}
    return MODEL_TYPES[values.get(MODEL_TYPE, 1)]


def overlaps(text: str, other: str) -> bool:
    """Whether an occurrence of `text` can hold an end of `other` and a character outside of it."""
    return other in text or any(
        text.endswith(other[:n]) or text.startswith(other[-n:])
        for n in range(1, min(len(text), len(other)))
    )


def _piece(message: bytes, field: bytes) -> Piece:
    values = {number: value for number, value, _ in _fields(message)}
    return Piece(values[1].decode("utf-8"), values.get(2, 0.0), values.get(3, NORMAL), field)


def _fields(message: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """(number, value, bytes of the field) of each field of a message: int, float or bytes."""
    at = 0
    value: Any
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, at = _varint(message, at)
        elif wire_type == BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif wire_type == FIXED32:
            (value,), at = struct.unpack_from("<f", message, at), at + 4
        else:  # FIXED64
            value, at = message[at : at + 8], at + 8
        yield number, value, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, the lowest first; and the index after it."""
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value, at


def _field(number: int, value: int | bytes) -> bytes:
    """A field with a number or bytes as its value."""
    if isinstance(value, int):
        return _varint_bytes(number << 3 | VARINT) + _varint_bytes(value)
    return _varint_bytes(number << 3 | BYTES) + _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    """The inverse of `_varint`."""
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint_bytes(high) if high else bytes([low])

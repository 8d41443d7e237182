"""Vocabularies in a run directory: saving and loading the tokenizers of both sides."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.data.tokenizers.byte_tokenizer import ByteTokenizer
from seq2seq.data.tokenizers.json_tokenizer import JsonTokenizer
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.data.tokenizers.marian_tokenizer import M2MTokenizer, MarianTokenizer
from seq2seq.data.tokenizers.offset_tokenizer import OffsetTokenizer
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.files.output_files import retried, write_atomic
from seq2seq.runtime.errors import CHECKPOINT, UserError


class Kind(NamedTuple):
    """A kind of tokenizer in a run directory."""

    load: Callable[[bytes], Tokenizer]  # the inverse of `serialized`
    suffix: str  # of its file


KINDS = {
    "unigram": Kind(partial(SentencePieceTokenizer, "unigram"), ".model"),
    "bpe": Kind(partial(SentencePieceTokenizer, "bpe"), ".model"),
    "words": Kind(partial(ListTokenizer, "words"), ".txt"),
    "characters": Kind(partial(ListTokenizer, "characters"), ".txt"),
    # Those of pretrained models, which are never trained here.
    "marian": Kind(MarianTokenizer.load, ".json"),
    "m2m": Kind(M2MTokenizer.load, ".json"),
    "sentencepiece_ids": Kind(OffsetTokenizer.load, ".json"),
    "tokenizer_json": Kind(JsonTokenizer.load, ".json"),
    "bytes": Kind(ByteTokenizer.load, ".txt"),
}


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """sha256 of the kind and the vocabulary."""
    return hashlib.sha256(tokenizer.kind.encode() + b"\n" + tokenizer.serialized()).hexdigest()


def vocabulary_sha256(tokenizers: tuple[Tokenizer, Tokenizer]) -> str:
    """The sha256 of both sides, as in data.vocab_sha256."""
    return "+".join(map(tokenizer_sha256, tokenizers))


def make_tokenizer(kind: str, serialized: bytes) -> Tokenizer:
    """The tokenizer with this kind and `serialized()`."""
    return KINDS[kind].load(serialized)


def save_tokenizers(directory: str, source: Tokenizer, target: Tokenizer) -> None:
    """Writes the vocabularies to `directory`, then tokenizers.json, which describes them."""
    os.makedirs(directory, exist_ok=True)
    sides = {"joint": source} if source is target else {"source": source, "target": target}
    contents = {}
    for side, tokenizer in sides.items():
        contents[side] = {
            "kind": tokenizer.kind,
            "size": tokenizer.size,
            "sha256": tokenizer_sha256(tokenizer),
        }
        write_atomic(_path(directory, side, tokenizer.kind), tokenizer.serialized())
    write_atomic(os.path.join(directory, "tokenizers.json"), json.dumps(contents, indent=1))


def load_tokenizers(directory: str) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target) of `save_tokenizers`; the same object twice if joint.

    UserError(CHECKPOINT) if a file is missing or has changed.
    """
    description = os.path.join(directory, "tokenizers.json")
    try:
        contents = json.loads(retried(Path(description).read_bytes))
        sides = ["joint"] if "joint" in contents else ["source", "target"]
        loaded = [_load(directory, side, contents[side]) for side in sides]
    except FileNotFoundError as error:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {directory} is incomplete: {error.filename} is missing",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {directory} is damaged: {error}; restore it from a copy of the run",
        ) from None
    return loaded[0], loaded[-1]


def _load(directory: str, side: str, content: dict[str, Any]) -> Tokenizer:
    kind = content["kind"]
    if kind not in KINDS:
        raise ValueError(f"the tokenizer kind {kind!r} is unknown")
    path = _path(directory, side, kind)
    serialized = retried(Path(path).read_bytes)
    if hashlib.sha256(kind.encode() + b"\n" + serialized).hexdigest() != content["sha256"]:
        raise ValueError(f"the sha256 of {path} has changed")
    return make_tokenizer(kind, serialized)


def _path(directory: str, side: str, kind: str) -> str:
    return os.path.join(directory, side + KINDS[kind].suffix)

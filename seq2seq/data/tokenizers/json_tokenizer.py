"""Tokenizers of a tokenizer.json, which the `tokenizers` library reads: byte-level BPE (BART), and
the pretrained models that have no other file.

Special tokens of the file get names that no text has, so a text that spells one is text. Decoding
drops them.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seq2seq.config.special_tokens import UNKNOWN_TEXT
from seq2seq.data.tokenizers.languages import IN_MODEL, languages_of
from seq2seq.data.tokenizers.tokenizer import gaps, one_line
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.json_objects import json_object

MARK = "\ufdd0"  # no character, and replaced in texts: the names of special tokens begin with it
REPLACEMENT = "\ufffd"
PROBE = "e\u0301 \ufdd1"  # letters and an unknown character, to find damage before the first text
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


class JsonTokenizer:
    """The model, normaliser and decoder of a tokenizer.json; no special token is ever added."""

    kind = "tokenizer_json"

    def __init__(self, document: dict[str, Any]):
        """ValueError if the file is damaged; UserError(CONFIGURATION) without the library."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UserError(
                CONFIGURATION,
                "a tokenizer.json or byte-level BPE needs the library tokenizers; "
                "pip install -e '.[tokenizers]'",
            ) from None
        self.document, self.special = document, special_tokens(document)
        content = json.dumps(_without_special(document))
        try:
            self._tokenizer = Tokenizer.from_str(content)
            self._tokenizer.decode(self._tokenizer.encode(PROBE, add_special_tokens=False).ids)
        except BaseException as error:  # a panic of the library is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"the library tokenizers refuses it: {error}") from None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._ids = {piece.removeprefix(MARK): i for piece, i in vocabulary.items()}
        self._pieces = {i: piece for piece, i in self._ids.items()}
        for piece, i in self.special.items():
            if self._ids.get(piece) != i or self._pieces[i] != piece:
                raise ValueError(f"the id of the special token {piece!r} is not {i}")
        self.size = max(self._pieces, default=-1) + 1
        self.languages: Mapping[str, int] = languages_of(self.special)
        self.without_piece = gaps(self._pieces.keys())
        self._unknown = _unknown_piece(document["model"])
        unknown = self._ids.get(self._unknown)
        self._dropped = {*self.special.values(), *self.without_piece} - {unknown}

    @classmethod
    def load(cls, serialized: bytes) -> "JsonTokenizer":
        """The inverse of `serialized`. ValueError, KeyError or TypeError if it is damaged."""
        return cls(json_object(serialized.decode("utf-8")))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        texts = [text.replace(MARK, REPLACEMENT) for text in texts]
        return [line.ids for line in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without special tokens and languages; the unknown token becomes ⁇."""
        kept = [i for i in map(int, ids) if i < self.size and i not in self._dropped]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        return one_line(text.replace(MARK + self._unknown, f" {UNKNOWN_TEXT} "))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id, <unk> if it has none."""
        return self._pieces.get(token, self._unknown)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return self._ids.get(piece)

    def serialized(self) -> bytes:
        """The tokenizer.json, the argument of `load`."""
        return json.dumps(self.document, ensure_ascii=False).encode("utf-8")


def special_tokens(document: dict[str, Any]) -> dict[str, int]:
    """The special tokens of a tokenizer.json: those that are marked as special, the unknown token,
    and the languages and sentinels of a unigram model. ValueError if the file is damaged."""
    try:
        model, vocabulary = document["model"], document["model"]["vocab"]
        tokens = [token for token in document["added_tokens"] if token["special"]]
        special = {token["content"]: token["id"] for token in tokens}
        if isinstance(vocabulary, list):
            special |= {
                piece: i
                for i, (piece, _) in enumerate(vocabulary)
                if IN_MODEL.fullmatch(piece) or i == model["unk_id"]
            }
        elif model.get("unk_token") in vocabulary:
            special[model["unk_token"]] = vocabulary[model["unk_token"]]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("expected added_tokens and a model with a vocabulary") from None
    if any(type(i) is not int or not isinstance(piece, str) for piece, i in special.items()):
        raise ValueError("expected special tokens with integer ids")
    return special


def _without_special(document: dict[str, Any]) -> dict[str, Any]:
    """The document with names for special tokens that no text has; it adds none to a text."""
    special = special_tokens(document)

    def renamed(piece: Any) -> Any:
        return MARK + piece if piece in special else piece

    model = document["model"]
    vocabulary: Any = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = [[renamed(piece), score] for piece, score in vocabulary]
    else:
        vocabulary = {renamed(piece): i for piece, i in vocabulary.items()}
    changed = {"vocab": vocabulary}
    if model["type"] == "BPE":
        changed["dropout"] = None
    if model.get("unk_token") is not None:
        changed["unk_token"] = renamed(model["unk_token"])
    tokens = [token | {"content": renamed(token["content"])} for token in document["added_tokens"]]
    nothing = dict.fromkeys(("truncation", "padding", "post_processor"))
    return document | nothing | {"added_tokens": tokens, "model": model | changed}


def _unknown_piece(model: dict[str, Any]) -> str:
    if isinstance(model["vocab"], list):
        return str(model["vocab"][model["unk_id"]][0]) if model["unk_id"] is not None else "<unk>"
    return str(model.get("unk_token") or "<unk>")


def byte_level_document(
    vocabulary: dict[str, int], merges: str, special: Iterable[str], prefix_space: bool = False
) -> dict[str, Any]:
    """The tokenizer.json of byte-level BPE from the content of vocab.json and merges.txt."""
    lines = [line.split(" ") for line in re.split("\r?\n", merges)]
    tokens = [
        {
            "id": vocabulary[piece], "content": piece, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        }
        for piece in special if piece in vocabulary
    ]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": sorted(tokens, key=lambda token: token["id"]),
        "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": prefix_space, "use_regex": True},
        "post_processor": None,
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [pair for pair in lines if pair != [""] and pair[0] != "#version:"],
        },
    }  # fmt: skip


def with_rows(document: dict[str, Any], rows: int) -> dict[str, Any]:
    """A tokenizer.json without the ids that a model with this number of rows does not have."""
    model = document["model"]
    vocabulary: Any = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = vocabulary[:rows]
    else:
        vocabulary = {piece: i for piece, i in vocabulary.items() if i < rows}
    tokens = [token for token in document["added_tokens"] if token["id"] < rows]
    return document | {"added_tokens": tokens, "model": model | {"vocab": vocabulary}}

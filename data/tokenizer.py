"""Text to token ids and back: SentencePiece (unigram, bpe), words, or characters.

Ids 0 to 3 are padding, start, end and unknown in all vocabularies trained here. SentencePiece
normalises text with its `nmt_nfkc` rules (NFKC, one space for several, no control characters), so
decoding returns normalised text. The result of `decode` has no line feed or carriage return.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from data.sentencepiece_model import NORMAL, USER_DEFINED, read_pieces


class Special(NamedTuple):
    """The ids of the special tokens; by default those of every vocabulary trained here."""

    pad: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


PAD, START, END, UNKNOWN = OUR_IDS = Special()
SPECIALS = 4
UNKNOWN_TEXT = "⁇"
LIST_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # as in SentencePiece
BOUNDARY = "▁"  # precedes each word of a text that SentencePiece has normalised
TAG = re.compile(r">>.*?<<", re.DOTALL)  # the tag of a target language in MarianMT


class SentencePieceTokenizer:
    """Subwords of a SentencePiece model; `model` is the content of its .model file.

    A user-defined piece `>>…<<` at the start of a text has no boundary piece before it, as in
    MarianMT.
    """

    def __init__(self, kind: str, model: bytes):
        from sentencepiece import SentencePieceProcessor

        self.kind, self._model = kind, model
        self._processor = SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.size = self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self._without_boundary(self._processor.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return list(map(self._without_boundary, self._processor.encode(list(texts))))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without padding, start and end; the unknown token becomes ⁇."""
        kept = [int(i) for i in ids if i not in (PAD, START, END)]
        return _one_line(self._processor.decode(kept))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""
        return self._processor.id_to_piece(token)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        token = self._processor.piece_to_id(piece)
        return token if self.piece(token) == piece else None

    def normalize(self, text: str) -> str:
        """The normalised text that is split into pieces; ▁ precedes each word."""
        return self._processor.normalize(text)

    def pieces(self) -> tuple[dict[str, float], dict[str, int]]:
        """The scores and the ids of the pieces that words are split into: no special ones, bytes
        or user-defined pieces."""
        normal = [(i, one) for i, one in enumerate(read_pieces(self._model)) if one.type == NORMAL]
        return {one.text: one.score for _, one in normal}, {one.text: i for i, one in normal}

    @cached_property
    def user_defined(self) -> frozenset[str]:
        """The pieces that are never split."""
        pieces = read_pieces(self._model)
        return frozenset(one.text for one in pieces if one.type == USER_DEFINED)

    @cached_property
    def _tags(self) -> frozenset[int]:
        return frozenset(
            self._processor.piece_to_id(p) for p in self.user_defined if TAG.fullmatch(p)
        )

    def _without_boundary(self, ids):
        """The ids of a text without the boundary before a tag at its start."""
        starts_with_tag = len(ids) > 1 and ids[1] in self._tags and ids[0] == self.id_of(BOUNDARY)
        return ids[1:] if starts_with_tag else ids

    def serialized(self) -> bytes:
        """The content of the .model file, the argument of the constructor."""
        return self._model


class ListTokenizer:
    """Words (separated by spaces) or characters from a list, whose first entry has id 4.

    Entries of several characters in a vocabulary of characters are user-defined pieces.
    """

    def __init__(self, kind: str, tokens: bytes):
        self.kind = kind
        self._tokens = tokens.decode("utf-8").removesuffix("\n").split("\n") if tokens else []
        self._ids = {token: i for i, token in enumerate(self._tokens, start=SPECIALS)}
        in_text = self._tokens if kind == "characters" else []
        self._user_defined = [token for token in in_text if len(token) > 1]
        self.size = SPECIALS + len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        tokens = split_tokens(self.kind, text, self._user_defined)
        return [self._ids.get(token, UNKNOWN) for token in tokens]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without padding, start and end; the unknown token becomes ⁇."""
        tokens = [
            UNKNOWN_TEXT if i == UNKNOWN else self._tokens[i - SPECIALS]
            for i in ids
            if i not in (PAD, START, END)
        ]
        return _one_line((" " if self.kind == "words" else "").join(tokens))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""
        return LIST_SPECIALS[token] if token < SPECIALS else self._tokens[token - SPECIALS]

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return LIST_SPECIALS.index(piece) if piece in LIST_SPECIALS else self._ids.get(piece)

    def serialized(self) -> bytes:
        """One token per line in UTF-8, the argument of the constructor."""
        return "".join(f"{token}\n" for token in self._tokens).encode("utf-8")


Tokenizer = SentencePieceTokenizer | ListTokenizer


def split_tokens(kind: str, text: str, user_defined: Sequence[str] = ()) -> Sequence[str]:
    """The words (kind "words") or characters of a text; characters of a user-defined piece stay
    together."""
    if kind == "words":
        return text.split()
    if not user_defined:
        return _one_line(text)
    longest_first = sorted(user_defined, key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, longest_first), "."]), _one_line(text), re.DOTALL)


def _one_line(text):
    return text.replace("\n", " ").replace("\r", " ")

"""Tokenizers whose vocabulary is a list: words (separated by white space) or characters."""

import re
from collections.abc import Iterable, Mapping, Sequence

from seq2seq.config.special_tokens import (
    END,
    LIST_SPECIALS,
    PAD,
    SPECIALS,
    START,
    UNKNOWN,
    UNKNOWN_TEXT,
)
from seq2seq.data.tokenizers.tokenizer import one_line


class ListTokenizer:
    """Words (separated by white space) or characters from a list, whose first entry has id 4.

    Entries of several characters in a vocabulary of characters are user-defined pieces.
    """

    languages: Mapping[str, int] = {}
    without_piece = ()

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
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without padding, start and end; the unknown token becomes ⁇."""
        tokens = [
            UNKNOWN_TEXT if i == UNKNOWN else self._tokens[i - SPECIALS]
            for i in ids
            if i not in (PAD, START, END)
        ]
        return one_line((" " if self.kind == "words" else "").join(tokens))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""
        return LIST_SPECIALS[token] if token < SPECIALS else self._tokens[token - SPECIALS]

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return LIST_SPECIALS.index(piece) if piece in LIST_SPECIALS else self._ids.get(piece)

    def serialized(self) -> bytes:
        """One token per line in UTF-8, the argument of the constructor."""
        return "".join(f"{token}\n" for token in self._tokens).encode("utf-8")


def split_tokens(kind: str, text: str, user_defined: Sequence[str] = ()) -> Sequence[str]:
    """The words (kind "words") or characters of a text; characters of a user-defined piece stay
    together."""
    if kind == "words":
        return text.split()
    if not user_defined:
        return one_line(text)
    longest_first = sorted(user_defined, key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, longest_first), "."]), one_line(text), re.DOTALL)

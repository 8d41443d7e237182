"""The characters of a text and those of a vocabulary: what is replaced, unknown, or rewritten.

A vocabulary has a character if one of its pieces contains it or if the tokenizer returns it.
`clean` replaces the characters that a vocabulary does not have by a form that it has, and `unknown`
lists what is left of them. A line whose characters the vocabulary has is never changed.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from seq2seq.config.data_config import nfc
from seq2seq.config.special_tokens import LIST_SPECIALS
from seq2seq.data.tokenizers.tokenizer import Tokenizer

# Control characters that are no white space, and the code points that Unicode defines as
# Default_Ignorable_Code_Point: they have no glyph of their own.
INVISIBLE = re.compile(
    "[\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
TAGS_AND_SELECTORS = range(0xE0000, 0xE1000)  # between 0x32000 and these nothing is assigned
# In these scripts, from Hebrew to Myanmar and so on, the zero-width space and joiners separate
# words or shape letters. If a vocabulary makes a space of them, it was trained with that space.
JOINERS = "\u200b\u200c\u200d"
THEIR_SCRIPTS = "[\u0590-\u109f\u1780-\u18af\ua840-\ua8ff\uaa00-\uabff\U00011000-\U00011fff]"


class Characters:
    """The characters that a tokenizer has; each is examined once."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._unknown_id = tokenizer.id_of(LIST_SPECIALS[-1])
        # Words and pieces are whole entries of the vocabulary, not sequences of known characters.
        self._entries = tokenizer.kind == "words" or tokenizer.kind.startswith("pieces of ")
        self._replacements: dict[int, str] = {}  # by code point, of examined characters
        self._examined: dict[str, Character] = {}
        self._joiners = ""  # of those examined, the ones that the tokenizer makes a space

    def clean(self, text: str) -> tuple[str, tuple[str, ...]]:
        """The text, and the distinct characters in it that were replaced.

        A character that the vocabulary does not have becomes its compatibility form (NFKC), such as
        "fi" for "ﬁ", if the vocabulary has that; white space becomes a space, and an invisible
        character is removed. All others stay.
        """
        if self._tokenizer.kind.startswith("pieces of "):
            return text, ()
        for character in set(text).difference(self._examined):
            self._examine(character)
        cleaned = text.translate(self._replacements) if self._replacements else text
        if self._joiners:
            cleaned = re.sub(self._removed, "", cleaned)
        if cleaned == text:
            return text, ()
        return cleaned, tuple(c for c in dict.fromkeys(text) if text.count(c) > cleaned.count(c))

    def all_replacements(self) -> tuple[dict[str, str], str]:
        """What `clean` does, as data: the replacement of each character of Unicode that has one,
        and a regular expression of what is removed then."""
        for character in map(chr, (*range(0x32000), *TAGS_AND_SELECTORS)):
            is_other = unicodedata.normalize("NFKC", character) != character
            if is_other or character.isspace() or INVISIBLE.match(character):
                self._examine(character)
        table = {chr(code): new for code, new in self._replacements.items()}
        return table, self._removed if self._joiners else ""

    @property
    def _removed(self) -> str:
        return rf"(?<!{THEIR_SCRIPTS})[{self._joiners}]"

    def unknown(self, text: str, ids: Sequence[int]) -> tuple[str, ...]:
        """The distinct characters (of a vocabulary of words, the words) that are the unknown token
        in `ids`, those of the text."""
        if self._unknown_id is None or self._unknown_id not in ids:
            return ()
        words = dict.fromkeys(text.split())
        if not self._entries:
            letters = dict.fromkeys(c for word in words for c in word)
            if unknown := tuple(c for c in letters if self._examine(c).is_unknown):
                return unknown
        return tuple(word for word in words if self._unknown_id in self._tokenizer.encode(word))

    def rewritten(self, text: str, ids: Sequence[int]) -> str | None:
        """The text of `ids`, those of a `text` without unknown tokens, if it differs by more than
        white space: what the normalisation of the vocabulary has rewritten."""
        if self._entries or all(self._examine(c).returns for c in set(text)):
            return None
        again = self._tokenizer.decode(ids)
        return again if again.split() != text.split() else None

    def _examine(self, character: str) -> "Character":
        if (known := self._examined.get(character)) is not None:
            return known
        ids = self._tokenizer.encode(character)
        returns = character in self._tokenizer.decode(ids) or character.isspace()
        examined = Character(self._unknown_id in ids, returns)
        if INVISIBLE.match(character):
            replaced = not returns and character not in self._of_pieces
            if replaced and character in JOINERS and not examined.is_unknown:
                self._joiners += character
                replaced = False
        else:
            has = character.isspace() or character in self._of_pieces
            replaced = not has if self._entries else examined.is_unknown
        if replaced and (new := self._replacement(character)) != character:
            self._replacements[ord(character)] = new
        self._examined[character] = examined  # last: threads share this object
        return examined

    def _replacement(self, character: str) -> str:
        if INVISIBLE.match(character):
            return ""
        if character.isspace():
            return " "
        form = unicodedata.normalize("NFKC", character)
        has = all(
            c in self._of_pieces if self._entries else not self._examine(c).is_unknown
            for c in form
            if c != character
        )
        return form if has else character

    @cached_property
    def _of_pieces(self) -> frozenset[str]:
        pieces = map(self._tokenizer.piece, range(self._tokenizer.size))
        return frozenset().union(*pieces)


class Character(NamedTuple):
    """What a tokenizer makes of a character."""

    is_unknown: bool
    returns: bool  # unchanged


def find_piece(tokenizer: Tokenizer, piece: str) -> int | None:
    """The id of a piece that a user names, with composed characters if it has none as it is."""
    token = tokenizer.id_of(piece)
    return tokenizer.id_of(nfc(piece)) if token is None else token


_cached: Callable[[Any], Characters] = lru_cache(maxsize=4)(Characters)


def characters_of(tokenizer: Tokenizer) -> Characters:
    """The characters of a tokenizer, as far as they are examined."""
    return _cached(tokenizer)


def shown(text: str) -> str:
    """A character or word for a message: the code point if it has no glyph of its own."""
    hidden = not text.isprintable() or text.isspace() or unicodedata.combining(text[:1])
    if len(text) == 1 and hidden:
        return f"U+{ord(text):04X}"
    return text

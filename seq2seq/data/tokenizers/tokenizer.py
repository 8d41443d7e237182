"""The interface of all tokenizers: text to token ids and back.

Ids 0 to 3 are padding, start, end and unknown in all vocabularies trained here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Protocol

MOST_IDS = 1 << 24  # more than any vocabulary has; a damaged file could state any number
TOGETHER = 1 << 20  # characters; the ids of longer texts together would take too much memory


class Tokenizer(Protocol):
    """One side's vocabulary: SentencePiece, words, characters, one of a pretrained model, or pieces
    of one of them.

    Neither `encode` nor `decode` adds or returns special tokens: those are added to a batch.
    """

    @property
    def kind(self) -> str:
        """A name of `KINDS` in vocabulary.py, or "pieces of" one."""

    @property
    def size(self) -> int:
        """The number of ids: they are 0 to `size` − 1. A model may have more rows."""

    @property
    def languages(self) -> Mapping[str, int]:
        """The ids of the pieces that name a language, by the language's code; often empty."""

    @property
    def without_piece(self) -> Collection[int]:
        """The ids below `size` that have no piece; they decode to nothing."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end. What has no piece is the unknown token."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, possibly on all cores."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without padding, start and end, in one line: it has no line feed or
        carriage return. The unknown token becomes ⁇."""

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""

    def serialized(self) -> bytes:
        """The vocabulary as a file. With `kind` it makes an equal tokenizer (`make_tokenizer`)."""


def encode_truncated(
    tokenizer: Tokenizer, texts: Sequence[str], most: int
) -> Iterator[tuple[list[int], int]]:
    """The first `most` ids of each text, and the number of ids that are truncated."""
    with_totals = zip(texts, accumulate(map(len, texts)), strict=True)
    for _, group in groupby(with_totals, lambda text_and_total: text_and_total[1] // TOGETHER):
        for ids in tokenizer.encode_many([text for text, _ in group]):
            yield ids[:most], max(0, len(ids) - most)


def ids_without_piece(tokenizer: Tokenizer, rows: int) -> list[int]:
    """The ids of a model with this number of rows that have no piece: it must not generate them."""
    return sorted({*tokenizer.without_piece, *range(tokenizer.size, rows)})


def gaps(ids: Collection[int]) -> frozenset[int]:
    """The ids from 0 to the largest of `ids` that are not in it. ValueError if it is too large."""
    if (largest := max(ids, default=-1)) >= MOST_IDS:
        raise ValueError(f"expected ids below {MOST_IDS}, got {largest}")
    return frozenset(range(largest + 1)) - frozenset(ids)


def one_line(text: str) -> str:
    """The text with spaces in place of line feeds and carriage returns."""
    return text.replace("\n", " ").replace("\r", " ")

"""Lines of pieces, separated by spaces, in place of text: pretokenised input and output."""

import re
from collections.abc import Iterable, Sequence

from seq2seq.config.special_tokens import Special
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.runtime.errors import CONFIGURATION, UserError

SEPARATORS = re.compile(r"[ \t\r\n]")  # a line of pieces separates pieces, columns and lines


class PieceTokenizer:
    """`encode` and `decode` of a tokenizer for lines of its pieces.

    `piece`, `id_of` and `serialized` are those of the tokenizer. Padding, start and end are never
    pieces of a line.
    """

    def __init__(self, tokenizer: Tokenizer, special: Special, option: str):
        """`special` are the ids of the tokenizer's special tokens, and `option` the option that
        the message of the UserError(CONFIGURATION) for a piece with a space names."""
        for token in range(tokenizer.size):
            if SEPARATORS.search(piece := tokenizer.piece(token)):
                raise UserError(
                    CONFIGURATION,
                    f"{option} is not supported with this vocabulary of {tokenizer.kind}: expected "
                    f"pieces without spaces and line ends, got {piece!r}; use text",
                )
        self.kind = f"pieces of {tokenizer.kind}"
        self.size, self.piece, self.id_of = tokenizer.size, tokenizer.piece, tokenizer.id_of
        self.languages, self.without_piece = tokenizer.languages, tokenizer.without_piece
        self.serialized = tokenizer.serialized
        self._unknown, self._added = special.unknown, {special.pad, special.start, special.end}

    def encode(self, text: str) -> list[int]:
        """The ids of a line of pieces; a piece that is not in the vocabulary is unknown."""
        ids = [self.id_of(piece) for piece in text.split(" ") if piece]
        return [self._unknown if i is None or i in self._added else i for i in ids]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each line."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The pieces of ids without padding, start and end."""
        return " ".join(self.piece(int(i)) for i in ids if int(i) not in self._added)


def tokenizers_for_pieces(
    tokenizers: tuple[Tokenizer, Tokenizer],
    special: Special,
    source_pieces: bool,
    target_pieces: bool,
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target), those of the sides that are True for lines of pieces.

    UserError(CONFIGURATION) that names the option if a vocabulary has pieces with spaces.
    """
    source, target = tokenizers
    return (
        PieceTokenizer(source, special, "source_pieces") if source_pieces else source,
        PieceTokenizer(target, special, "target_pieces") if target_pieces else target,
    )

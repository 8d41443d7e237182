"""Arrays with one entry per piece, for subword sampling."""

from typing import NamedTuple

import numpy as np

from seq2seq.data.tokenizers.sentencepiece_tokenizer import BOUNDARY, SentencePieceTokenizer
from seq2seq.data.tokens.pairs import Ragged, ragged


class PieceTable(NamedTuple):
    """The V pieces of a vocabulary; the index is the id. A character is the id of its own piece.

    V itself is the padding of words: a character that occurs in no other piece.
    """

    begins_word: np.ndarray  # bool [V]: the piece starts with ▁
    # bool [V]: a word with this piece is not sampled. It is special, a byte or user-defined, or it
    # has a character without a piece.
    fixed: np.ndarray
    characters: Ragged  # of each piece; none if it is fixed
    scores: np.ndarray  # float64 [V + 2]: −inf if fixed; 0 for the padding; −inf for the index −1

    @property
    def size(self) -> int:
        """V, the number of pieces."""
        return len(self.fixed)


def piece_table(tokenizer: SentencePieceTokenizer) -> PieceTable:
    """The pieces of a tokenizer."""
    scores, ids = tokenizer.pieces()
    texts = [tokenizer.piece(i) for i in range(tokenizer.size)]
    characters = [
        [ids[c] for c in text] if text in ids and all(c in ids for c in text) else []
        for text in texts
    ]
    fixed = np.array([not of_piece for of_piece in characters])
    by_id = [
        scores[text] if of_piece else -np.inf
        for text, of_piece in zip(texts, characters, strict=True)
    ]
    return PieceTable(
        np.array([text.startswith(BOUNDARY) for text in texts]),
        fixed,
        ragged(characters),
        np.array([*by_id, 0.0, -np.inf]),
    )

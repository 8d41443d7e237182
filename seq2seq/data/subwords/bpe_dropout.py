"""BPE-dropout (Provilkov et al. 2020) of many words at a time. Axes: W words, R rows (samples of
words), C characters."""

from typing import Any

import numpy as np

from seq2seq.data.subwords.integer_table import IntegerTable
from seq2seq.data.subwords.piece_table import PieceTable


class BpeDropout:
    """Samples the pieces of words: the best merge first, each dropped with probability `drop`.

    Algorithm 1 of Provilkov et al., but as in SentencePiece a dropped merge stays dropped: these
    two pieces are not merged later. `drop` 0 is plain BPE.
    """

    def __init__(self, pieces: PieceTable, drop: float):
        self._drop, self._padding, self._scores = drop, pieces.size, pieces.scores
        characters, offsets = pieces.characters.ids.tolist(), pieces.characters.offsets.tolist()
        texts = [tuple(characters[i:j]) for i, j in zip(offsets, offsets[1:], strict=False)]
        ids = {text: i for i, text in enumerate(texts) if text}
        cuts = ((text, i, cut) for text, i in ids.items() for cut in range(1, len(text)))
        self._merges = IntegerTable(
            {
                self._key(ids[text[:cut]], ids[text[cut:]]): i
                for text, i, cut in cuts
                if text[:cut] in ids and text[cut:] in ids
            }
        )

    def __call__(
        self, words: np.ndarray, repeats: np.ndarray, generator: np.random.Generator
    ) -> np.ndarray:
        """The pieces of `repeats[i]` samples of each word i, in a row: [R, C].

        `words` [W, C] are characters, with padding at their ends. A piece is at the place of its
        first character; the other places are −1.

        The rows are handled as one sequence with a padding after each, so that the neighbours of a
        place are found in the same way at the ends of a row.
        """
        width = words.shape[1] + 1
        padded = np.pad(words, ((0, 0), (0, 1)), constant_values=self._padding)
        merged: np.ndarray = np.full(
            padded.shape, -1, np.int32
        )  # piece i and the next one as one piece
        merged[:, :-1] = self._merges(self._key(padded[:, :-1], padded[:, 1:]).ravel()).reshape(
            len(words), -1
        )
        pieces = np.repeat(padded, repeats, axis=0).ravel()
        merged = np.repeat(merged, repeats, axis=0).ravel()
        scores = self._scores[merged].astype(np.float32)  # as in the model file
        by_row = scores.reshape(-1, width)
        following = np.roll(np.arange(len(pieces)), -1)
        previous = np.roll(np.arange(len(pieces)), 1)
        rows = np.arange(len(by_row))
        while len(rows):
            best = rows * width + by_row[rows].argmax(axis=1)  # the first one of equal scores
            possible = scores[best] > -np.inf
            rows, best = rows[possible], best[possible]
            dropped = generator.random(len(best)) < self._drop
            scores[best[dropped]] = -np.inf
            left = best[~dropped]
            right = following[left]
            pieces[left] = merged[left]
            pieces[right], scores[right] = -1, -np.inf
            following[left] = following[right]
            previous[following[left]] = left
            for place in (left, previous[left]):
                merged[place] = self._merges(self._key(pieces[place], pieces[following[place]]))
                scores[place] = self._scores[merged[place]]
        return pieces.reshape(-1, width)[:, :-1]

    def _key(self, left: Any, right: Any) -> Any:
        """One integer for two neighbouring pieces."""
        return np.int64(left) * (self._padding + 1) + right

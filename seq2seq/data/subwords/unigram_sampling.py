"""Unigram sampling (Kudo 2018) of many words at a time. Axes: W words, R rows (samples of words),
C characters, D lengths of a piece − 1."""

from typing import Any

import numpy as np

from seq2seq.data.subwords.integer_table import IntegerTable
from seq2seq.data.subwords.piece_table import PieceTable


class UnigramSampling:
    """Samples the pieces of words with probability ∝ P(pieces)^alpha (section 3.2 of Kudo 2018).

    Forward filtering, backward sampling. The pieces that end at a character are found in a trie of
    the reversed pieces, whose node 0 is the root.
    """

    def __init__(self, pieces: PieceTable, alpha: float):
        self._scores = alpha * pieces.scores
        self._padding = pieces.size
        self._longest = int(pieces.characters.lengths.max())
        characters, offsets = pieces.characters.ids.tolist(), pieces.characters.offsets.tolist()
        children: dict[int, int] = {}  # key of a node and a character → child
        piece_of = {}  # node → piece
        texts = [characters[i:j] for i, j in zip(offsets, offsets[1:], strict=False)]
        for i, text in enumerate([*texts, [self._padding]]):
            node = 0
            for character in reversed(text):
                node = children.setdefault(self._key(node, character), len(children) + 1)
            if text:
                piece_of[node] = i
        self._children = IntegerTable(children)
        self._piece_of = np.full(len(children) + 1, -1, np.int32)
        self._piece_of[list(piece_of)] = list(piece_of.values())

    def __call__(
        self, words: np.ndarray, repeats: np.ndarray, generator: np.random.Generator
    ) -> np.ndarray:
        """The pieces of `repeats[i]` samples of each word i, in a row: [R, C].

        `words` [W, C] are characters, with padding at their ends. A piece is at the place of its
        first character; the other places are −1.
        """
        ending = self._ending_pieces(words)
        shares = self._cumulative_shares(ending)
        word_of = np.repeat(np.arange(len(words)), repeats)
        rows, ends = np.arange(len(word_of)), np.full(len(word_of), words.shape[1])
        sampled = np.full((len(word_of), words.shape[1]), -1, np.int32)
        while len(rows):
            last = ends - 1  # character of the piece
            drawn = generator.random(len(rows))
            depth = (shares[last, word_of] <= drawn[:, None]).sum(axis=1)
            ends = last - depth
            sampled[rows, ends] = ending[last, depth, word_of]
            more = ends > 0
            rows, ends, word_of = rows[more], ends[more], word_of[more]
        return sampled

    def _ending_pieces(self, words: np.ndarray) -> np.ndarray:
        """[C, D, W]: the piece of d + 1 characters that ends with character c of a word, or −1."""
        count, length = words.shape
        characters = np.ascontiguousarray(words.T).ravel()
        ending = np.full((length, min(length, self._longest), count), -1, np.int32)
        places, nodes = np.arange(len(characters)), np.zeros(len(characters), np.int64)
        for depth in range(ending.shape[1]):
            inside = places >= depth * count
            places, nodes = places[inside], nodes[inside]
            nodes = self._children(self._key(nodes, characters[places - depth * count]))
            places, nodes = places[nodes >= 0], nodes[nodes >= 0]
            ending[places // count, depth, places % count] = self._piece_of[nodes]
        return ending

    def _cumulative_shares(self, ending: np.ndarray) -> np.ndarray:
        """[C, W, D]: the probability that the piece that ends with character c has at most d + 1
        characters."""
        length, longest, count = ending.shape
        total = np.zeros((length + 1, count))  # log of the sum over the pieces before a character
        shares = np.ones((length, count, longest))
        for end in range(1, length + 1):
            first = max(0, end - longest)
            values = self._scores[ending[end - 1, : end - first]] + total[first:end][::-1]
            highest = values.max(axis=0)
            sums = np.exp(values - highest).cumsum(axis=0)
            total[end] = highest + np.log(sums[-1])
            shares[end - 1, :, : end - first] = (sums / sums[-1]).T
        return shares

    def _key(self, node: Any, character: Any) -> Any:
        """One integer for a node of the trie and a character."""
        return np.int64(node) * (self._padding + 1) + character

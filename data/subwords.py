"""Subword sampling: the same words cut in other ways each epoch, so that a model learns pieces too.

Both ways draw a word's pieces on its own (no piece of ours crosses a space), so an epoch draws a
few variants of each distinct word, and every occurrence takes one of them. What an epoch looks like
depends on text, vocabulary, seed and epoch alone; SentencePiece's own sampling cannot be seeded
across processes.
"""

import math
import random
import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from data.config import DataConfig
from data.pairs import Pairs, Ragged, gathered, ragged, taken_pairs
from data.tokenizer import SentencePieceTokenizer, Tokenizer
from runtime.errors import CONFIGURATION, UserError

VARIANTS = 8  # of a word in one epoch, at most; no more than it occurs
WORD = re.compile("▁[^▁]*")  # in normalised text each word begins with its space


def bpe_dropout(word: str, scores: dict[str, float], drop: float, rng: random.Random) -> list[str]:
    """Pieces of a word by merges from the best score down, each left out with probability `drop`.

    `scores` are those of the vocabulary's pieces. BPE-dropout (Provilkov et al. 2020, algorithm 1,
    with a merge once left out staying so, as SentencePiece has it); `drop` 0 is BPE itself.
    """
    pieces, ends = list(word), list(range(1, len(word) + 1))
    left_out = set()
    while True:
        best, place = -math.inf, -1
        for i in range(len(pieces) - 1):
            score = scores.get(pieces[i] + pieces[i + 1], -math.inf)
            if score > best and (ends[i], ends[i + 1], len(pieces[i])) not in left_out:
                best, place = score, i
        if place < 0:
            return pieces
        if drop and rng.random() < drop:
            left_out.add((ends[place], ends[place + 1], len(pieces[place])))
        else:
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            del ends[place]


def unigram_sample(
    word: str, scores: dict[str, float], alpha: float, rng: random.Random, longest: int
) -> list[str]:
    """Pieces of a word, drawn with probability ∝ P(pieces)^alpha (Kudo 2018, section 3.2).

    `scores` are log-probabilities of the vocabulary's pieces, of which none has more than `longest`
    characters; ValueError if they do not cover the word. Forward sums, then drawn from the end
    backwards.
    """
    total = [0.0] + [-math.inf] * len(word)
    last = [{} for _ in total]  # of each end: where its last piece may begin → log of the sum
    for end in range(1, len(word) + 1):
        for start in range(max(0, end - longest), end):
            score = scores.get(word[start:end])
            if score is not None and total[start] > -math.inf:
                last[end][start] = total[start] + alpha * score
        if last[end]:
            highest = max(last[end].values())
            total[end] = highest + math.log(
                sum(math.exp(value - highest) for value in last[end].values())
            )
    if total[-1] == -math.inf:
        raise ValueError(f"no pieces for {word!r}")
    pieces, end = [], len(word)
    while end:
        shares = [math.exp(value - total[end]) for value in last[end].values()]
        (start,) = rng.choices(list(last[end]), shares)
        pieces.append(word[start:end])
        end = start
    return pieces[::-1]


class _Side:
    """The sentences of one side as words, each word once with the ids of its pieces."""

    def __init__(self, texts: Sequence[str], tokenizer: SentencePieceTokenizer, amount: float):
        self._scores, self._ids = tokenizer.pieces()
        self._amount, self._draw = (
            amount,
            bpe_dropout
            if tokenizer.kind == "bpe"
            else partial(unigram_sample, longest=max(map(len, self._scores))),
        )
        numbers = {}
        self._words = ragged(
            [
                [
                    numbers.setdefault(word, len(numbers))
                    for word in WORD.findall(tokenizer.normalize(text))
                ]
                for text in texts
            ]
        )
        # A word with a character that has no piece stays as it is: ids instead of text.
        self._types = [
            word if all(c in self._ids for c in word) else tokenizer.encode(word[1:])
            for word in numbers
        ]

    def cut(self, sentences: np.ndarray, generator: np.random.Generator) -> Ragged:
        """Token ids of some of the sentences, cut anew."""
        rng = random.Random(int(generator.integers(2**63)))
        words = gathered(self._words, sentences)
        counts = np.minimum(np.bincount(words.ids, minlength=len(self._types)), VARIANTS)
        variants = [
            self._variant(word, rng)
            for word, count in zip(self._types, counts.tolist(), strict=True)
            for _ in range(count)
        ]
        drawn = (generator.random(len(words.ids)) * counts[words.ids]).astype(np.int64)
        first = np.cumsum(counts) - counts
        flat = gathered(ragged(variants), first[words.ids] + drawn)
        return Ragged(flat.ids, flat.offsets[words.offsets])

    def _variant(self, word, rng):
        if not isinstance(word, str):
            return word
        return [self._ids[piece] for piece in self._draw(word, self._scores, self._amount, rng)]


class SubwordSampler:
    """`sampler(epoch)`: the pairs that an epoch takes, cut into subwords for that epoch."""

    def __init__(
        self,
        pairs: Pairs,
        texts: Sequence[Sequence[str]],
        tokenizers: tuple[Tokenizer, Tokenizer],
        config: DataConfig,
        seed: int,
    ):
        """`texts` are the two sides of `pairs`. UserError(CONFIGURATION) if these tokenizers
        have no subwords."""
        if not all(isinstance(one, SentencePieceTokenizer) for one in tokenizers):
            raise UserError(
                CONFIGURATION,
                "data.subword_sampling needs a bpe or unigram "
                f"vocabulary, got {', '.join(one.kind for one in tokenizers)}",
            )
        self._pairs, self._seed = pairs, seed
        self._sides = [
            _Side(*side, config.subword_sampling) for side in zip(texts, tokenizers, strict=True)
        ]
        self._limits = config.source_length - 1, config.target_length - 1

    def __call__(self, epoch: int) -> Pairs:
        """The pairs of an epoch. What would not fit into a row any more keeps its usual ids."""
        taken, sides = taken_pairs(self._pairs.weights, self._seed, epoch), []
        for number, (side, usual, limit) in enumerate(
            zip(self._sides, self._pairs[:2], self._limits, strict=True)
        ):
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch, number, 2]))
            cut = side.cut(taken, generator)
            both = Ragged(
                np.concatenate([cut.ids, usual.ids]),
                np.concatenate([cut.offsets, len(cut.ids) + usual.offsets[1:]]),
            )
            fits = cut.lengths <= limit
            sides.append(gathered(both, np.where(fits, np.arange(len(fits)), len(fits) + taken)))
        return Pairs(*sides)

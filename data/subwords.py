"""Subword sampling: each epoch segments the same words differently (regularisation).

The pieces of a word do not depend on its neighbours, because no piece crosses a space. So an epoch
samples a few variants of each distinct word, and each occurrence takes one of them. The result
depends on text, vocabulary, seed and epoch only; SentencePiece's own sampling cannot be seeded
reproducibly across processes.
"""

import math
import random
import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from data.config import DataConfig
from data.pairs import Pairs, Ragged, ragged, select_sequences, taken_pairs
from data.tokenizer import BOUNDARY, TAG, SentencePieceTokenizer, Tokenizer
from runtime.errors import CONFIGURATION, UserError

VARIANTS = 8  # maximum number of segmentations of a word in one epoch; at most its occurrences
SEGMENTATIONS = 10_000  # maximum number of segmentations of a word that are listed
WORD = re.compile("▁[^▁]*")  # in normalised text each word starts with ▁


def bpe_dropout(word: str, scores: dict[str, float], drop: float, rng: random.Random) -> list[str]:
    """Pieces of a word: the best merge first, each dropped with probability `drop`.

    `scores` are those of the vocabulary's pieces. BPE-dropout (Provilkov et al. 2020, algorithm 1),
    but as in SentencePiece a dropped merge stays dropped; `drop` 0 is plain BPE.
    """
    pieces, ends = list(word), list(range(1, len(word) + 1))
    dropped = set()
    while True:
        best, place = -math.inf, -1
        for i in range(len(pieces) - 1):
            score = scores.get(pieces[i] + pieces[i + 1], -math.inf)
            if score > best and (ends[i], ends[i + 1], len(pieces[i])) not in dropped:
                best, place = score, i
        if place < 0:
            return pieces
        if drop and rng.random() < drop:
            dropped.add((ends[place], ends[place + 1], len(pieces[place])))
        else:
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
            del ends[place]


def unigram_sample(
    word: str, scores: dict[str, float], alpha: float, rng: random.Random, longest: int
) -> list[str]:
    """Pieces of a word, sampled with probability ∝ P(pieces)^alpha (Kudo 2018, section 3.2).

    `scores` are the log-probabilities of the vocabulary's pieces; `longest` is the length of the
    longest piece. ValueError if the pieces do not cover the word. Forward filtering, backward
    sampling.
    """
    total = [0.0] + [-math.inf] * len(word)
    last = [{} for _ in total]  # for each end: start of the last piece → log of the sum
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


def segmentations(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of every sequence of pieces whose concatenation is `word`; [] if there is none.

    In `word` ▁ stands for a space. The number of sequences is exponential in the length of a word:
    ValueError if there are more than SEGMENTATIONS.
    """
    found: list[list[tuple[int, ...]]] = [[()], *([] for _ in word)]
    for end in range(1, len(word) + 1):
        for start in range(end):
            token = tokenizer.id_of(word[start:end])
            if token is not None:
                found[end] += [(*before, token) for before in found[start]]
        if len(found[end]) > SEGMENTATIONS:
            raise ValueError(f"{word!r} has more than {SEGMENTATIONS:,} segmentations")
    return found[-1]


class _SideSampler:
    """Samples the pieces of one side: its sentences as indices of distinct words."""

    def __init__(self, texts: Sequence[str], tokenizer: SentencePieceTokenizer, amount: float):
        self._scores, self._ids = tokenizer.pieces()
        self._amount = amount
        if tokenizer.kind == "bpe":
            self._sample_word = bpe_dropout
        else:
            self._sample_word = partial(unigram_sample, longest=max(map(len, self._scores)))
        user_defined = tokenizer.user_defined
        tags = tuple(filter(TAG.fullmatch, user_defined))
        numbers = {}  # distinct word → its index
        sentences = []
        for text in texts:
            words = WORD.findall(tokenizer.normalize(text))
            if words and words[0].startswith(tags, 1):  # a tag at the start has no boundary
                words[0] = words[0][1:]
            sentences.append([numbers.setdefault(word, len(numbers)) for word in words])
        self._sentences = ragged(sentences)

        def has_fixed_ids(word):
            return any(c not in self._ids for c in word) or any(p in word for p in user_defined)

        def fixed_ids(word):
            if word.startswith(BOUNDARY):
                return tokenizer.encode_inside(word[1:])
            return tokenizer.encode(word)

        # A word with a character that has no piece, or with a user-defined piece, keeps its usual
        # ids (a list instead of a str).
        self._words = [fixed_ids(word) if has_fixed_ids(word) else word for word in numbers]

    def sample(self, sentences: np.ndarray, generator: np.random.Generator) -> Ragged:
        """Token ids of the given sentences, newly sampled.

        Example: the words a = 0 and b = 1 and the three sentences "a b", "b", "b a".

            words.ids      0 1  1  1 0     words.offsets  0 2 3 5
            counts         2 3             occurrences of a and b: numbers of variants
            variants       a₀ a₁ b₀ b₁ b₂
            first          0 2             index of the first variant of a and b
            drawn          1 0  2  0 1     a variant for each occurrence
            first + drawn  1 2  4  2 1     its index in `variants`: a₁ b₀, b₂, b₀ a₁
        """
        rng = random.Random(int(generator.integers(2**63)))
        words = select_sequences(self._sentences, sentences)
        counts = np.minimum(np.bincount(words.ids, minlength=len(self._words)), VARIANTS)
        variants = [
            self._sample_ids(word, rng)
            for word, count in zip(self._words, counts.tolist(), strict=True)
            for _ in range(count)
        ]
        drawn = (generator.random(len(words.ids)) * counts[words.ids]).astype(np.int64)
        first = np.cumsum(counts) - counts
        pieces = select_sequences(ragged(variants), first[words.ids] + drawn)  # one per occurrence
        return Ragged(pieces.ids, pieces.offsets[words.offsets])

    def _sample_ids(self, word, rng):
        if not isinstance(word, str):
            return word
        pieces = self._sample_word(word, self._scores, self._amount, rng)
        return [self._ids[piece] for piece in pieces]


class SubwordSampler:
    """`sampler(epoch)`: the pairs that an epoch takes, segmented for that epoch."""

    def __init__(
        self,
        pairs: Pairs,
        texts: Sequence[Sequence[str]],
        tokenizers: tuple[Tokenizer, Tokenizer],
        config: DataConfig,
        seed: int,
    ):
        """`texts` are the two sides of `pairs`. UserError(CONFIGURATION) if these tokenizers
        cannot be sampled from."""
        if not all(isinstance(one, SentencePieceTokenizer) for one in tokenizers):
            raise UserError(
                CONFIGURATION,
                "data.subword_sampling is not supported with this vocabulary: expected bpe or "
                f"unigram, got {', '.join(one.kind for one in tokenizers)}",
            )
        if any(one.normalize("a b") != "▁a▁b" for one in tokenizers):
            raise UserError(
                CONFIGURATION,
                "data.subword_sampling is not supported with a SentencePiece model without ▁ "
                "before each word; train it with add_dummy_prefix, or turn sampling off",
            )
        if config.subword_sampling == 1 and any(one.kind == "bpe" for one in tokenizers):
            raise UserError(
                CONFIGURATION, "data.subword_sampling must be below 1 with a bpe model, got 1.0"
            )
        self._pairs, self._seed = pairs, seed
        self._sides = [
            _SideSampler(*side, config.subword_sampling)
            for side in zip(texts, tokenizers, strict=True)
        ]
        self._limits = config.source_length - 1, config.target_length - 1

    def __call__(self, epoch: int) -> Pairs:
        """The pairs of an epoch. A sentence that would no longer fit into a row keeps its usual
        pieces."""
        taken, sides = taken_pairs(self._pairs.weights, self._seed, epoch), []
        for number, (side, usual, limit) in enumerate(
            zip(self._sides, self._pairs[:2], self._limits, strict=True)
        ):
            generator = np.random.Generator(np.random.PCG64([self._seed, epoch, number, 2]))
            sampled = side.sample(taken, generator)
            # Both in one Ragged: first the sampled sentences, then all usual ones.
            both = Ragged(
                np.concatenate([sampled.ids, usual.ids]),
                np.concatenate([sampled.offsets, len(sampled.ids) + usual.offsets[1:]]),
            )
            fits = sampled.lengths <= limit
            index = np.where(fits, np.arange(len(fits)), len(fits) + taken)
            sides.append(select_sequences(both, index))
        weights = self._pairs.loss_weights
        return Pairs(*sides, loss_weights=None if weights is None else weights[taken])

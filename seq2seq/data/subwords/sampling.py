"""Subword sampling: each window of an epoch segments the same words differently (regularization).

The pieces of a word do not depend on its neighbours, because no piece crosses a space. So a few
variants of each distinct word are sampled, and each occurrence takes one of them. The words are
found in the token ids, without the text. SentencePiece's own sampling cannot be seeded reproducibly
across processes.
"""

from collections.abc import Iterator

import numpy as np

from seq2seq.data.config import DataConfig
from seq2seq.data.subwords.bpe_dropout import BpeDropout
from seq2seq.data.subwords.piece_table import piece_table
from seq2seq.data.subwords.unigram_sampling import UnigramSampling
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokens.pairs import Pairs, Ragged, concatenate_sequences, select_sequences
from seq2seq.runtime.errors import CONFIGURATION, UserError

VARIANTS = 8  # maximum number of segmentations of a word in one window; at most its occurrences
SEGMENTATIONS = 10_000  # maximum number of segmentations of a word that are listed
CHARACTERS_AT_ONCE = 1 << 17  # of variants, padding included; bounds the memory


def segmentations(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of every sequence of pieces whose concatenation is `word`; [] if there is none.

    In `word` ▁ stands for a space. The number of sequences is exponential in the length of a word:
    ValueError if there are more than SEGMENTATIONS.
    """
    sequences: list[list[tuple[int, ...]]] = [[()], *([] for _ in word)]
    for end in range(1, len(word) + 1):
        for start in range(end):
            token = tokenizer.id_of(word[start:end])
            if token is not None:
                sequences[end] += [(*before, token) for before in sequences[start]]
        if len(sequences[end]) > SEGMENTATIONS:
            raise ValueError(f"{word!r} has more than {SEGMENTATIONS:,} segmentations")
    return sequences[-1]


class SubwordSampler:
    """`sampler(pairs, key)`: the same pairs with other pieces. It can be pickled."""

    def __init__(self, tokenizers: tuple[Tokenizer, Tokenizer], config: DataConfig):
        """UserError(CONFIGURATION) if these tokenizers cannot be sampled from."""
        source, target = _sampled_tokenizers(tokenizers, config.subword_sampling)
        self._sides = [_SideSampler(source, config.subword_sampling)]
        joint = source is target
        self._sides += self._sides if joint else [_SideSampler(target, config.subword_sampling)]
        self._limits = config.source_length - 1, config.target_length - 1

    def __call__(self, pairs: Pairs, key: tuple[int, ...]) -> Pairs:
        """The pairs with newly sampled pieces, a function of `pairs` and `key` (none negative).

        A sentence that would no longer fit into a row keeps its usual pieces.
        """
        sides = []
        for number, (sampler, usual, limit) in enumerate(
            zip(self._sides, (pairs.source, pairs.target), self._limits, strict=True)
        ):
            generator = np.random.Generator(np.random.PCG64([*key, number, 2]))
            sampled = sampler(usual, generator)
            sentences = np.arange(len(usual.lengths))
            fits = sampled.lengths <= limit
            both = concatenate_sequences([sampled, usual])
            sides.append(select_sequences(both, sentences + len(sentences) * ~fits))
        return pairs._replace(source=sides[0], target=sides[1])


def _sampled_tokenizers(
    tokenizers: tuple[Tokenizer, Tokenizer], amount: float
) -> list[SentencePieceTokenizer]:
    """The tokenizers. UserError(CONFIGURATION) if they cannot be sampled from."""
    models = [
        tokenizer for tokenizer in tokenizers if isinstance(tokenizer, SentencePieceTokenizer)
    ]
    if len(models) < len(tokenizers):
        raise UserError(
            CONFIGURATION,
            "data.subword_sampling is not supported with this vocabulary: expected bpe or "
            f"unigram, got {', '.join(tokenizer.kind for tokenizer in tokenizers)}",
        )
    if any(model.normalize("a b") != "▁a▁b" for model in models):
        raise UserError(
            CONFIGURATION,
            "data.subword_sampling is not supported with a SentencePiece model without ▁ "
            "before each word; train it with add_dummy_prefix, or turn sampling off",
        )
    if amount == 1 and any(model.kind == "bpe" for model in models):
        raise UserError(
            CONFIGURATION, "data.subword_sampling must be below 1 with a bpe model, got 1.0"
        )
    return models


class _SideSampler:
    """Samples the pieces of the sentences of one side."""

    def __init__(self, tokenizer: SentencePieceTokenizer, amount: float):
        self._pieces = piece_table(tokenizer)
        kind = BpeDropout if tokenizer.kind == "bpe" else UnigramSampling
        self._segment = kind(self._pieces, amount)

    def __call__(self, sentences: Ragged, generator: np.random.Generator) -> Ragged:
        """The token ids of the sentences, newly sampled.

        Example: the words a = 0 and b = 1 and the three sentences "a b", "b", "b a".

            labels         0 1  1  1 0     words_before   0 2 3 5
            counts         2 3             occurrences of a and b: numbers of variants
            variants       a₀ a₁ b₀ b₁ b₂
            first          0 2             index of the first variant of a and b
            drawn          1 0  2  0 1     a variant for each occurrence
            first + drawn  1 2  4  2 1     its index in `variants`: a₁ b₀, b₂, b₀ a₁
        """
        words, words_before = self._words(sentences)
        labels = sequence_labels(words)
        counts = np.minimum(np.bincount(labels), VARIANTS)
        occurrence = np.empty(len(counts), np.int64)  # one of each distinct word
        occurrence[labels] = np.arange(len(labels))
        variants, counts, first = self._variants(
            select_sequences(words, occurrence), counts, generator
        )
        drawn = (generator.random(len(labels)) * counts[labels]).astype(np.int64)
        pieces = select_sequences(variants, first[labels] + drawn)  # one per occurrence
        return Ragged(pieces.ids, pieces.offsets[words_before])

    def _words(self, sentences: Ragged) -> tuple[Ragged, np.ndarray]:
        """The words of all sentences, and the number of words before each sentence.

        A word begins at a piece that starts with ▁, and at the start of a sentence.
        """
        begins = np.append(self._pieces.begins_word[sentences.ids], True)
        begins[sentences.offsets] = True
        starts = np.flatnonzero(begins)
        return Ragged(sentences.ids, starts), np.searchsorted(starts, sentences.offsets)

    def _variants(
        self, words: Ragged, counts: np.ndarray, generator: np.random.Generator
    ) -> tuple[Ragged, np.ndarray, np.ndarray]:
        """Samples of distinct words, how many there are of each word, and the index of its first.

        There are `counts[i]` samples of word i. A word with a fixed piece keeps its ids: they are
        its only variant.
        """
        pieces = select_sequences(self._pieces.characters, words.ids)
        characters = Ragged(pieces.ids, pieces.offsets[words.offsets])
        fixed_before = np.append(0, np.cumsum(self._pieces.fixed[words.ids]))[words.offsets]
        fixed = np.diff(fixed_before) > 0
        counts = np.where(fixed, 1, counts)
        order = np.argsort(np.where(fixed, 0, characters.lengths), kind="stable")
        num_fixed = int(fixed.sum())
        variants = [select_sequences(words, order[:num_fixed])]
        order_of_sampled = order[num_fixed:]
        for group in _groups(characters.lengths[order_of_sampled], counts[order_of_sampled]):
            chosen = order_of_sampled[group]
            words_of_group = select_sequences(characters, chosen)
            variants.append(self._sample_words(words_of_group, counts[chosen], generator))
        first = np.empty(len(counts), np.int64)
        first[order] = np.cumsum(counts[order]) - counts[order]
        return concatenate_sequences(variants), counts, first

    def _sample_words(
        self, characters: Ragged, counts: np.ndarray, generator: np.random.Generator
    ) -> Ragged:
        """`counts[i]` samples of each word i, in a row."""
        lengths, padding = characters.lengths, self._pieces.size
        padded = np.full((len(lengths), lengths.max()), padding, np.int32)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = characters.ids
        sampled = self._segment(padded, counts, generator)
        is_piece = (sampled >= 0) & (sampled != padding)
        return Ragged(sampled[is_piece], np.append(0, np.cumsum(is_piece.sum(axis=1))))


def sequence_labels(sequences: Ragged) -> np.ndarray:
    """Numbers 0, 1, …, the same for sequences with the same ids only; no sequence is empty.

    The labels are made of longer and longer prefixes: of the sequences with the same prefix, those
    that end there keep its label, and the others get new labels by their next id.
    """
    ids, starts, lengths = sequences.ids, sequences.offsets[:-1], sequences.lengths
    size = int(ids.max(initial=0)) + 1
    labels = ids[starts].astype(np.int64)
    used, counts, depth = size, np.bincount(labels), 1
    rest = np.flatnonzero((lengths > 1) & (counts[labels] > 1))
    while len(rest):
        keys = labels[rest] * size + ids[starts[rest] + depth]
        _, prefixes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        labels[rest] = used + prefixes
        used, depth = used + len(counts), depth + 1
        rest = rest[(lengths[rest] > depth) & (counts[prefixes] > 1)]
    present = np.bincount(labels) > 0
    return (np.cumsum(present) - 1)[labels]


def _groups(lengths: np.ndarray, counts: np.ndarray) -> Iterator[slice]:
    """Words, sorted by length, of which samples can be made together with little padding."""
    samples = np.cumsum(counts)
    start = 0
    while start < len(lengths):
        longest = int(lengths[start]) * 9 // 8
        before = samples[start] - counts[start]
        full = np.searchsorted(samples, before + CHARACTERS_AT_ONCE // longest, side="right")
        stop = max(start + 1, min(int(full), int(np.searchsorted(lengths, longest, side="right"))))
        yield slice(start, stop)
        start = stop

"""Pairs of sentences as token ids: encoded, and without those that are too long or too unequal."""

import math
from collections import Counter
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import numpy as np

from data.config import DataConfig
from data.text_files import Corpus
from data.tokenizer import Tokenizer
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.notices import Log, no_log

ENCODE_AT_ONCE = 10_000  # sentences
# A text of more characters than this for each place of a row is dropped before it is tokenized:
# tokens of a text that cannot fit would take far more memory than the text.
CHARACTERS = 64


class Ragged(NamedTuple):
    """Sequences of different lengths: sequence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray  # int32
    offsets: np.ndarray  # int64, one more than sequences

    @property
    def lengths(self) -> np.ndarray:
        """The number of ids in each sequence."""
        return np.diff(self.offsets)


class Pairs(NamedTuple):
    """Token ids of both sides, without start and end: those are added in the batch."""

    source: Ragged
    target: Ragged
    # How many pairs each corpus of a mixture has, in order, and how often an epoch takes them;
    # empty means all once.
    weights: tuple[tuple[int, float], ...] = ()

    @property
    def slots(self) -> tuple[np.ndarray, np.ndarray]:
        """How many places of a row each pair takes on either side: its tokens and one end."""
        return self.source.lengths + 1, self.target.lengths + 1


def ragged(sequences: list[list[int]]) -> Ragged:
    """Lists of ids as one Ragged."""
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(one) for one in sequences], out=offsets[1:])
    return Ragged(np.fromiter(chain.from_iterable(sequences), np.int32, offsets[-1]), offsets)


def encode_pairs(
    corpus: Corpus,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: DataConfig,
    tell: Log = no_log,
) -> tuple[Pairs, np.ndarray, dict[str, list[int]]]:
    """Token ids of the pairs that fit, their places in the corpus, and those of the others by
    reason.

    `tell` gets lines of progress. UserError(DATA) with the counts if none is left.
    """
    limits = config.source_length - 1, config.target_length - 1  # one place is for the end
    dropped, kept, source, target = {}, [], [], []
    for start in range(0, len(corpus.source), ENCODE_AT_ONCE):
        tell(f"{', '.join(corpus.names)}: {start:,} of {len(corpus.source):,} pairs tokenized")
        block = []
        for i in range(start, min(start + ENCODE_AT_ONCE, len(corpus.source))):
            if reason := _endless(len(corpus.source[i]), len(corpus.target[i]), limits):
                dropped.setdefault(reason, []).append(i)
            else:
                block.append(i)
        sources = source_tokenizer.encode_many([corpus.source[i] for i in block])
        targets = target_tokenizer.encode_many([corpus.target[i] for i in block])
        chosen = []
        for at, (i, one, other) in enumerate(zip(block, sources, targets, strict=True)):
            reason = _unfit(len(one), len(other), limits, config.max_length_ratio)
            if reason:
                dropped.setdefault(reason, []).append(i)
            else:
                chosen.append(at)
        source.append(ragged([sources[at] for at in chosen]))
        target.append(ragged([targets[at] for at in chosen]))
        kept.append(np.array([block[at] for at in chosen], np.int64))
    kept = np.concatenate(kept)
    if not len(kept):
        counts = Counter(corpus.dropped) + Counter({why: len(of) for why, of in dropped.items()})
        why = ", ".join(f"{n} {reason}" for reason, n in counts.items())
        raise UserError(
            DATA,
            f"{', '.join(corpus.names)}: 0 of {counts.total()} pairs left: "
            f"{why}; see config.data.source_length, target_length, max_length_ratio",
        )
    ends = np.cumsum([origin.count for origin in corpus.origins])
    counts = np.diff(np.searchsorted(kept, ends), prepend=0).tolist()
    weights = tuple(
        (count, origin.weight) for count, origin in zip(counts, corpus.origins, strict=True)
    )
    for (count, weight), origin in zip(weights, corpus.origins, strict=True):
        if not count:
            raise UserError(
                DATA,
                f"{', '.join(dict.fromkeys(origin.names))}: none of "
                f"{origin.count} pairs left; take it out of config.data.corpus, or see "
                "config.data.source_length, target_length, max_length_ratio",
            )
        if _taken_before(1, count, weight) < 1:
            raise UserError(
                CONFIGURATION,
                f"{', '.join(dict.fromkeys(origin.names))}: a weight of "
                f"{weight:g} takes none of {count} pairs in an epoch; raise it",
            )
    return Pairs(_joined(source), _joined(target), weights), kept, dropped


def gathered(sequences: Ragged, index: np.ndarray) -> Ragged:
    """The sequences `index[0]`, `index[1]`, … one after the other."""
    lengths = sequences.lengths[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(offsets[-1]) + np.repeat(sequences.offsets[index] - offsets[:-1], lengths)
    return Ragged(sequences.ids[places], offsets)


def taken_pairs(weights: tuple[tuple[int, float], ...], seed: int, epoch: int) -> np.ndarray:
    """The pairs that an epoch takes, in ascending order, each as often as it is taken.

    `weights` as in Pairs. Epochs go through one random order of a corpus after the other, so that
    nothing is taken again before everything else has been: two epochs of weight 0.5 are all pairs
    once.
    """
    taken, start = [], 0
    for number, (count, weight) in enumerate(weights):
        begin, end = (_taken_before(e, count, weight) for e in (epoch, epoch + 1))
        for again in range(begin // count, -(-end // count)):
            order = np.random.Generator(np.random.PCG64([seed, again, number, 1]))
            order = order.permutation(count)
            taken.append(start + order[max(0, begin - again * count) : end - again * count])
        start += count
    return np.sort(np.concatenate(taken))


def pairs_of_epoch(pairs: Pairs, seed: int, epoch: int) -> Pairs:
    """What an epoch takes of the pairs; themselves if that is all of them once."""
    if all(weight == 1.0 for _, weight in pairs.weights):
        return pairs
    taken = taken_pairs(pairs.weights, seed, epoch)
    return Pairs(gathered(pairs.source, taken), gathered(pairs.target, taken))


def _taken_before(epoch, count, weight):
    """How many pairs of a corpus the epochs before this one took; exact, whatever the weight."""
    return math.floor(epoch * Fraction(str(weight)) * count)


def _endless(source, target, limits):
    """Why texts of these numbers of characters are not even tokenized, or None."""
    for side, length, limit in zip(("source", "target"), (source, target), limits, strict=True):
        if length > CHARACTERS * limit:
            return f"{side} longer than {CHARACTERS * limit:,} characters"
    return None


def _unfit(source, target, limits, max_ratio):
    """Why a pair of these numbers of tokens cannot be used, or None."""
    if source > limits[0]:
        return f"source longer than {limits[0]} tokens"
    if target > limits[1]:
        return f"target longer than {limits[1]} tokens"
    if not source or not target:
        return "empty after tokenizing"
    if max_ratio and max(source, target) > max_ratio * min(source, target):
        return f"length ratio above {max_ratio:g}"
    return None


def _joined(parts):
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(
        np.concatenate([part.ids for part in parts]), np.concatenate([[0], np.cumsum(lengths)])
    )

"""Sentence pairs as token ids: encoding, filtering by length, and the pairs that an epoch takes."""

import math
from collections import Counter
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import numpy as np

from data.config import DataConfig
from data.corpus import Corpus
from data.tokenizer import Tokenizer
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.notices import Log, no_log

ENCODE_AT_ONCE = 10_000  # sentences
# A text with more characters per token of a row than this is dropped before it is tokenized: its
# tokens would need far more memory than the text, and cannot fit.
MAX_CHARACTERS_PER_TOKEN = 64


class Ragged(NamedTuple):
    """Sequences of different lengths: sequence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray  # int32
    offsets: np.ndarray  # int64, one more than sequences

    @property
    def lengths(self) -> np.ndarray:
        """The number of ids in each sequence."""
        return np.diff(self.offsets)


class Pairs(NamedTuple):
    """Token ids of both sides, without start and end tokens: the batch adds those."""

    source: Ragged
    target: Ragged
    # For each corpus of a mixture, in order: its number of pairs, and its weight (how often an
    # epoch takes each of them). Empty: an epoch takes all pairs once.
    weights: tuple[tuple[int, float], ...] = ()
    loss_weights: np.ndarray | None = None  # of each pair, float32; None: 1.0 for all

    @property
    def slots(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that each pair occupies in a row of either side, the end token included."""
        return self.source.lengths + 1, self.target.lengths + 1


def ragged(sequences: list[list[int]]) -> Ragged:
    """Lists of ids as one Ragged."""
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(one) for one in sequences], out=offsets[1:])
    return Ragged(np.fromiter(chain.from_iterable(sequences), np.int32, offsets[-1]), offsets)


def select_sequences(sequences: Ragged, index: np.ndarray) -> Ragged:
    """The sequences `index[0]`, `index[1]`, … in this order.

    Example: the sequences [7 8], [9], [5 6 4] and index = [2 0].

        sequences   ids 7 8 9 5 6 4   offsets 0 2 3 6
        lengths     3 2               of the selected sequences
        offsets     0 3 5             of the result
        shift       3 -3              from the result to `sequences.ids`, for each sequence
        places      3 4 5  0 1        in `sequences.ids`: 0 1 2 + 3, 3 4 - 3
        ids         5 6 4  7 8
    """
    starts = sequences.offsets[index].astype(np.int64)
    lengths = sequences.offsets[index + 1] - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    shift = starts - offsets[:-1]
    places = np.arange(offsets[-1]) + np.repeat(shift, lengths)
    return Ragged(sequences.ids[places], offsets)


class _Block(NamedTuple):
    """The encoded pairs of one block of a corpus and their indices in the corpus."""

    source: Ragged
    target: Ragged
    kept: np.ndarray


def encode_pairs(
    corpus: Corpus,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: DataConfig,
    log: Log = no_log,
) -> tuple[Pairs, np.ndarray, dict[str, list[int]]]:
    """Token ids of the pairs that fit, their indices in the corpus, and the indices of the dropped
    pairs by reason.

    `log` receives progress. UserError(DATA) with the counts if no pair remains,
    UserError(CONFIGURATION) if an epoch would take no pair of a corpus.
    """
    dropped, blocks = {}, []
    total = len(corpus.source)
    for start in range(0, total, ENCODE_AT_ONCE):
        log(f"{', '.join(corpus.names)}: {start:,} of {total:,} pairs tokenized")
        indices = range(start, min(start + ENCODE_AT_ONCE, total))
        tokenizers = source_tokenizer, target_tokenizer
        blocks.append(_encode_block(corpus, indices, tokenizers, config, dropped))
    kept = np.concatenate([block.kept for block in blocks])
    if not len(kept):
        counts = Counter(corpus.dropped) + Counter({why: len(of) for why, of in dropped.items()})
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.items())
        raise UserError(
            DATA,
            f"{', '.join(corpus.names)}: 0 of {counts.total()} pairs left: "
            f"{reasons}; see config.data.source_length, target_length, max_length_ratio",
        )
    source = _concatenate([block.source for block in blocks])
    target = _concatenate([block.target for block in blocks])
    loss_weights = None
    if corpus.loss_weights is not None:
        loss_weights = np.array(corpus.loss_weights, np.float32)[kept]
    return Pairs(source, target, _weights(corpus, kept), loss_weights), kept, dropped


def _encode_block(
    corpus: Corpus,
    indices: range,
    tokenizers: tuple[Tokenizer, Tokenizer],
    config: DataConfig,
    dropped: dict[str, list[int]],
) -> _Block:
    """Encodes the pairs `indices`; adds the indices of those that do not fit to `dropped`."""
    limits = config.source_length - 1, config.target_length - 1  # without the end token
    candidates = []
    for i in indices:
        if reason := _too_many_characters(len(corpus.source[i]), len(corpus.target[i]), limits):
            dropped.setdefault(reason, []).append(i)
        else:
            candidates.append(i)
    sources = tokenizers[0].encode_many([corpus.source[i] for i in candidates])
    targets = tokenizers[1].encode_many([corpus.target[i] for i in candidates])
    fitting = []  # indices into `candidates`
    for at, (i, source, target) in enumerate(zip(candidates, sources, targets, strict=True)):
        if reason := _misfit(len(source), len(target), limits, config.max_length_ratio):
            dropped.setdefault(reason, []).append(i)
        else:
            fitting.append(at)
    return _Block(
        ragged([sources[at] for at in fitting]),
        ragged([targets[at] for at in fitting]),
        np.array([candidates[at] for at in fitting], np.int64),
    )


def _too_many_characters(source, target, limits):
    """The reason to drop texts of these numbers of characters before tokenizing, or None."""
    for side, length, limit in zip(("source", "target"), (source, target), limits, strict=True):
        if length > MAX_CHARACTERS_PER_TOKEN * limit:
            return f"{side} longer than {MAX_CHARACTERS_PER_TOKEN * limit:,} characters"
    return None


def _misfit(source, target, limits, max_ratio):
    """The reason to drop a pair of these numbers of tokens, or None."""
    if source > limits[0]:
        return f"source longer than {limits[0]} tokens"
    if target > limits[1]:
        return f"target longer than {limits[1]} tokens"
    if not source or not target:
        return "empty after tokenizing"
    if max_ratio and max(source, target) > max_ratio * min(source, target):
        return f"length ratio above {max_ratio:g}"
    return None


def _concatenate(parts):
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(
        np.concatenate([part.ids for part in parts]), np.concatenate([[0], np.cumsum(lengths)])
    )


def _weights(corpus: Corpus, kept: np.ndarray) -> tuple[tuple[int, float], ...]:
    """`Pairs.weights`. UserError if no pair of a corpus remains or an epoch takes none of them."""
    ends = np.cumsum([origin.count for origin in corpus.origins])
    counts = np.diff(np.searchsorted(kept, ends), prepend=0).tolist()
    for count, origin in zip(counts, corpus.origins, strict=True):
        names = ", ".join(dict.fromkeys(origin.names))
        if not count:
            raise UserError(
                DATA,
                f"{names}: none of {origin.count} pairs left; remove it from config.data.corpus, "
                "or see config.data.source_length, target_length, max_length_ratio",
            )
        if _taken_before(1, count, origin.weight) < 1:
            raise UserError(
                CONFIGURATION,
                f"{names}: a weight of {origin.weight:g} takes none of {count} pairs in an epoch; "
                "raise it",
            )
    return tuple(zip(counts, (origin.weight for origin in corpus.origins), strict=True))


def taken_pairs(weights: tuple[tuple[int, float], ...], seed: int, epoch: int) -> np.ndarray:
    """The indices of the pairs that an epoch takes, ascending, repeated as often as taken.

    `weights` as in Pairs. The epochs read a corpus as one endless stream of passes, each pass in a
    random order of its own, so no pair is taken again before all others have been taken.

    Example: a corpus of 3 pairs with weight 0.5. Before epochs 0, 1, 2, 3 the stream is at
    floor(1.5 · epoch) = 0, 1, 3, 4. If the orders of its passes are [2 0 1] and [1 2 0], epoch 0
    takes pair 2, epoch 1 pairs 0 and 1, and epoch 2 pair 1 of the second pass.
    """
    taken, offset = [], 0
    for corpus, (count, weight) in enumerate(weights):
        first, stop = (_taken_before(e, count, weight) for e in (epoch, epoch + 1))
        for one_pass in range(first // count, -(-stop // count)):
            generator = np.random.Generator(np.random.PCG64([seed, one_pass, corpus, 1]))
            order = generator.permutation(count)
            start = one_pass * count  # of this pass in the stream
            taken.append(offset + order[max(0, first - start) : stop - start])
        offset += count
    return np.sort(np.concatenate(taken))


def pairs_of_epoch(pairs: Pairs, seed: int, epoch: int) -> Pairs:
    """The pairs that an epoch takes; `pairs` itself if it takes all of them once."""
    if all(weight == 1.0 for _, weight in pairs.weights):
        return pairs
    taken = taken_pairs(pairs.weights, seed, epoch)
    return Pairs(
        select_sequences(pairs.source, taken),
        select_sequences(pairs.target, taken),
        loss_weights=None if pairs.loss_weights is None else pairs.loss_weights[taken],
    )


def _taken_before(epoch, count, weight):
    """How many pairs of a corpus the epochs before this one took; exact for any weight."""
    return math.floor(epoch * Fraction(str(weight)) * count)

"""Sentence pairs as token ids: encoding, and dropping those that do not fit by their length."""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from data.config import DataConfig
from data.counts import none_left
from data.tokenizer import Tokenizer
from runtime.errors import DATA, UserError

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
    """The sequences `index[0]`, `index[1]`, … in this order."""
    starts = sequences.offsets[index].astype(np.int64)
    lengths = sequences.offsets[index + 1] - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(sequences.ids[range_places(starts, lengths)], offsets)


def concatenate_sequences(parts: list[Ragged]) -> Ragged:
    """The sequences of all parts, in order."""
    parts = parts or [ragged([])]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(
        np.concatenate([part.ids for part in parts]), np.concatenate([[0], np.cumsum(lengths)])
    )


def select_pairs(pairs: Pairs, index: np.ndarray) -> Pairs:
    """The pairs `index[0]`, `index[1]`, … in this order."""
    weights = pairs.loss_weights
    return Pairs(
        select_sequences(pairs.source, index),
        select_sequences(pairs.target, index),
        loss_weights=None if weights is None else weights[index],
    )


def range_places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of the ranges [start, start + length), one range after the other, int64.

    Example: the ranges 3 4 5 and 0 1.

        starts    3 0
        lengths   3 2
        offsets   0 3              of the ranges in the result
        shift     3 -3             from the result to the range, for each range
        result    3 4 5  0 1       0 1 2 + 3, 3 4 - 3
    """
    offsets = np.cumsum(lengths) - lengths
    return np.arange(np.sum(lengths)) + np.repeat(starts - offsets, lengths)


class PairTexts(Protocol):
    """Text that can be encoded: a CollectedBlock or a Corpus."""

    @property
    def source(self) -> list[str]: ...

    @property
    def target(self) -> list[str]: ...

    @property
    def loss_weights(self) -> array | None: ...


def encode_pairs(
    texts: PairTexts,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: DataConfig,
) -> tuple[Pairs, np.ndarray, dict[str, list[int]]]:
    """Token ids of the pairs that fit, their indices in `texts`, and the indices of the dropped
    pairs by reason. `check_pairs_left` refuses a corpus of which no pair is kept."""
    tokenizers = source_tokenizer, target_tokenizer
    dropped: dict[str, list[int]] = {}
    parts, total = [], len(texts.source)
    for start in range(0, total, ENCODE_AT_ONCE):
        indices = range(start, min(start + ENCODE_AT_ONCE, total))
        parts.append(_encode_range(texts, indices, tokenizers, config, dropped))
    kept = np.concatenate([np.zeros(0, np.int64), *(indices for _, _, indices in parts)])
    loss_weights = None
    if texts.loss_weights is not None:
        loss_weights = np.array(texts.loss_weights, np.float32)[kept]
    source, target = (concatenate_sequences([part[side] for part in parts]) for side in (0, 1))
    return Pairs(source, target, loss_weights), kept, dropped


def check_pairs_left(names: Sequence[str], kept: int, dropped: dict[str, int]) -> None:
    """UserError(DATA) with the numbers of dropped pairs by reason if no pair was kept.

    `names` are the files or data sets of the corpus.
    """
    if not kept:
        raise UserError(
            DATA,
            f"{none_left(', '.join(dict.fromkeys(names)), dropped)}; "
            "see config.data.source_length, target_length, max_length_ratio",
        )


def _encode_range(
    texts: PairTexts,
    indices: range,
    tokenizers: tuple[Tokenizer, Tokenizer],
    config: DataConfig,
    dropped: dict[str, list[int]],
) -> tuple[Ragged, Ragged, np.ndarray]:
    """Source and target of the pairs `indices` that fit, and their indices; adds the indices of the
    others to `dropped`."""
    limits = config.source_length - 1, config.target_length - 1  # without the end token
    candidates = []
    for i in indices:
        if reason := _too_many_characters(len(texts.source[i]), len(texts.target[i]), limits):
            dropped.setdefault(reason, []).append(i)
        else:
            candidates.append(i)
    sources = tokenizers[0].encode_many([texts.source[i] for i in candidates])
    targets = tokenizers[1].encode_many([texts.target[i] for i in candidates])
    fitting = []  # indices into `candidates`
    for at, (i, source, target) in enumerate(zip(candidates, sources, targets, strict=True)):
        if reason := _misfit(len(source), len(target), limits, config.max_length_ratio):
            dropped.setdefault(reason, []).append(i)
        else:
            fitting.append(at)
    return (
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

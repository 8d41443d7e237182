"""Sentence pairs as token ids: sequences of different lengths in one array.

Axes: M sequences of a Ragged, I ids of all of them; P pairs."""

from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int64, Integer

# Of each pair: the tokens that it occupies in a row of source and target, the end token included.
Sides = tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]


class Ragged(NamedTuple):
    """Sequences of different lengths: sequence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Integer[np.ndarray, " I"]  # int32, or uint16 in a token store
    offsets: Int64[np.ndarray, " M+1"]

    @property
    def lengths(self) -> Int64[np.ndarray, " M"]:
        """The number of ids in each sequence."""
        return np.diff(self.offsets)


class Pairs(NamedTuple):
    """Token ids of both sides, without start and end tokens: the batch adds those. Other tokens
    around a text (affixes.py) are among its ids."""

    source: Ragged
    target: Ragged
    loss_weights: Float32[np.ndarray, " P"] | None = None  # None: 1.0 for all

    @property
    def row_lengths(self) -> Sides:
        """The tokens that each pair occupies in a row of either side, the end token included."""
        return self.source.lengths + 1, self.target.lengths + 1


def ragged(sequences: list[list[int]]) -> Ragged:
    """Lists of ids as one Ragged."""
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(ids) for ids in sequences], out=offsets[1:])
    return Ragged(np.fromiter(chain.from_iterable(sequences), np.int32, offsets[-1]), offsets)


def select_sequences(sequences: Ragged, index: Int[np.ndarray, " n"]) -> Ragged:
    """The sequences `index[0]`, `index[1]`, … in this order."""
    starts = sequences.offsets[index].astype(np.int64)
    lengths = sequences.offsets[index + 1] - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(sequences.ids[range_places(starts, lengths)], offsets)


def concatenate_sequences(several: list[Ragged]) -> Ragged:
    """All sequences of several Ragged, in order."""
    several = several or [ragged([])]
    lengths = np.concatenate([sequences.lengths for sequences in several])
    return Ragged(
        np.concatenate([sequences.ids for sequences in several]),
        np.concatenate([[0], np.cumsum(lengths)]),
    )


def select_pairs(pairs: Pairs, index: Int[np.ndarray, " n"]) -> Pairs:
    """The pairs `index[0]`, `index[1]`, … in this order."""
    weights = pairs.loss_weights
    return Pairs(
        select_sequences(pairs.source, index),
        select_sequences(pairs.target, index),
        loss_weights=None if weights is None else weights[index],
    )


def range_places(
    starts: Int[np.ndarray, " n"], lengths: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " I"]:
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

"""Requests: the sources of a compiled call as padded arrays, with the limits of their translations.

Lengths include the end token.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.buckets import pad
from seq2seq.decoding.results import Source
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.arguments import Prefix
from seq2seq.model.search.translate import Request


def prefix_arrays(sources: Sequence[Source]) -> int:
    """The number of arrays of `Prefix` that these sources need: 3 if one has tokens that cost
    nothing, 2 if one has a prefix, 0 without."""
    if any(source.forced for source in sources):
        return 3
    return 2 if any(source.prefix for source in sources) else 0


def padded_request(
    sources: Sequence[Source],
    shape: tuple[int, int],
    config: ModelConfig,
    options: DecodingConfig,
    longest: int,
) -> Request:
    """The request for `sources`, padded to `shape`: sentences, tokens.

    `longest` is the longest bucket, which limits translations.
    """
    sentences, bucket = shape
    ids = [[*source.ids, config.end_id, *source.after] for source in sources]
    source, lengths = pad(ids, sentences, bucket, config.pad_id)  # [Q, S], [Q]
    limits, prefix = max_lengths(options, lengths, longest), None
    if arrays := prefix_arrays(sources):
        width = int(max_lengths(options, np.array(bucket), longest))
        tokens = [[*source.forced, *source.prefix] for source in sources]
        _, free = pad([source.forced for source in sources], sentences, width, 0)
        padded: list[Any] = [*pad(tokens, sentences, width, 0), free]  # [Q, P], [Q], [Q]
        prefix = Prefix(*padded[:arrays])
        limits = limits_with_prefix(limits, padded[1])
    # Random keys are made of the lowest 32 bits.
    lines = np.zeros(sentences, np.int64)  # [Q]
    lines[: len(sources)] = [source.number for source in sources]
    # NumPy arrays, which a compiled function accepts as JAX arrays.
    fewest, line_numbers = min_lengths(options, lengths), lines.astype(np.int32)
    values: list[Any] = [source, lengths, limits, fewest, prefix, line_numbers]
    return Request(*values)


def max_lengths(options: DecodingConfig, lengths: np.ndarray, longest: int) -> np.ndarray:
    """The most tokens of a translation for each source length; 0 for length 0. At most `longest`,
    the longest bucket."""
    # In int64: the lengths of a request are int32, in which the sum can overflow.
    limits = np.minimum(lengths.astype(np.int64) + options.max_extra_length, longest)
    if options.max_length:
        limits = np.minimum(limits, options.max_length)
    if options.max_length_ratio:
        limits = np.minimum(limits, rounded_up_product(lengths, options.max_length_ratio))
    return np.where(lengths > 0, np.maximum(limits, 1), 0).astype(np.int32)


def limits_with_prefix(limits: np.ndarray, prefix: np.ndarray | int) -> np.ndarray:
    """The most tokens of translations that begin with `prefix` tokens: at least one more."""
    return np.where(limits > 0, np.maximum(limits, prefix + 1), 0)


def min_lengths(options: DecodingConfig, lengths: np.ndarray) -> np.ndarray | None:
    """The fewest tokens of a translation for each source length; None without such a rule."""
    if not (options.min_length or options.min_length_ratio):
        return None
    products = rounded_up_product(lengths, options.min_length_ratio)
    return np.maximum(products, options.min_length).astype(np.int32)


def rounded_up_product(lengths: np.ndarray, ratio: float) -> np.ndarray:
    """⌈length × ratio⌉, at most 2^31 − 1. Exact in decimals: 25 × 2.2 is 55, but above 55 in
    binary."""
    exact = Fraction(str(ratio))
    return np.vectorize(lambda n: min(ceil(int(n) * exact), 2**31 - 1), otypes=[int])(lengths)

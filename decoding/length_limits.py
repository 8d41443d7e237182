"""Length buckets of sources, and the limits of the lengths of translations. Lengths count </s>."""

from fractions import Fraction
from math import ceil

import numpy as np

from storage.config import DecodingConfig


def length_buckets(longest: int) -> list[int]:
    """The padded source lengths up to `longest`, ascending.

    One compiled shape for each: short sentences are not padded to the longest length.
    """
    return [*(s for s in (16, 32, 64, 128, 256, 512, 1024, 2048) if s < longest), longest]


def max_lengths(options: DecodingConfig, lengths: np.ndarray, longest: int) -> np.ndarray:
    """The most tokens of a translation for each source length; 0 for length 0. At most `longest`,
    the models' max_length."""
    limits = np.minimum(lengths + options.max_extra_length, longest)
    if options.max_length:
        limits = np.minimum(limits, options.max_length)
    if options.max_length_ratio:
        limits = np.minimum(limits, rounded_up_product(lengths, options.max_length_ratio))
    return np.where(lengths > 0, np.maximum(limits, 1), 0).astype(np.int32)


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

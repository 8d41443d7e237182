"""Requests: the lines of a compiled call as padded arrays, with their length limits."""

import numpy as np

from decoding.batches import pad
from decoding.calls import Job
from decoding.length_limits import max_lengths, min_lengths
from model.config import ModelConfig
from model.translate import Request
from storage.config import DecodingConfig


def has_prefix(job: Job, lines: list[int]) -> bool:
    """Whether any of these lines has a prefix. The arrays of a request depend on it."""
    return bool(job.prefixes) and any(i in job.prefixes for i in lines)


def padded_request(
    job: Job,
    lines: list[int],
    shape: tuple[int, int],
    config: ModelConfig,
    options: DecodingConfig,
    longest: int,
) -> Request:
    """The request for `lines` (indices in job.sources), padded to `shape`: sentences, tokens.

    `longest` is the models' max_length, which limits translations.
    """
    sentences, bucket = shape
    sources = [[*job.sources[i], config.end_id] for i in lines]
    source, lengths = pad(sources, sentences, bucket, config.pad_id)
    limits, prefix = max_lengths(options, lengths, longest), None
    if has_prefix(job, lines):
        width = int(max_lengths(options, np.array(bucket), longest))
        prefix = pad([job.prefixes.get(i, []) for i in lines], sentences, width, 0)
        limits = np.where(lengths > 0, np.maximum(limits, prefix[1] + 1), 0)
    return Request(source, lengths, limits, min_lengths(options, lengths), prefix)

"""Batches for the devices: sort lines into length buckets, divide them among threads, pad them,
split them over the copies of the models. A line is its index in a window; lengths include the end
token."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from seq2seq.model.config import ModelConfig

# Tokens of a line for a model without a table of positions, unless its max_length is larger: the
# memory of attention grows with the square of the length.
LONGEST = 4096
BALANCED_FROM = 4  # batches of each thread; the time of fewer depends on the number of batches


def longest_input(model: ModelConfig) -> int:
    """The tokens to which the source and the target of this model are truncated."""
    return min(model.longest, max(model.max_length, LONGEST))


def length_buckets(longest: int) -> list[int]:
    """The padded source lengths up to `longest`, ascending.

    One compiled shape for each: short sentences are not padded to the longest length.
    """
    return [*(s for s in (16, 32, 64, 128, 256, 512, 1024, 2048) if s < longest), longest]


def by_bucket(lengths: Sequence[int], buckets: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """(bucket, indices of its lines), each line in the smallest bucket that holds its length.

    `buckets` are ascending. Lines of length 0 are omitted. The longest line of a bucket comes
    first, so that no lane starts a long sentence when the other lanes have run out of work.
    """
    longest_first = sorted(((length, i) for i, length in enumerate(lengths)), reverse=True)
    shorter = 0
    for bucket in buckets:
        yield bucket, [i for length, i in longest_first if shorter < length <= bucket]
        shorter = bucket


def divide(
    groups: Sequence[tuple[int, list[int]]],
    lengths: Sequence[int],
    threads: int,
    batch_size: Callable[[int], int],
) -> list[tuple[int, list[list[int]]]]:
    """Divide the lines of each bucket, longest first, so that all threads end at about one time.

    `groups` are (bucket, lines), with the buckets ascending, and `batch_size` is that of a bucket.
    Each thread gets a share, but a group has no more shares with lines than it has batches, as a
    batch takes as long for few lines as for many. Large groups compensate for the differences:
    each line goes to the thread with the least work so far, measured in source tokens. This is an
    estimate: a thread takes the next call when it is free.
    """
    divided, work = [], [0] * threads  # work: source tokens of each thread
    for bucket, lines in reversed(groups):
        shares: list[list[int]] = [[] for _ in range(threads)]
        batch = batch_size(bucket)
        if len(lines) >= BALANCED_FROM * batch * threads:
            for line in lines:
                least = work.index(min(work))
                shares[least].append(line)
                work[least] += lengths[line]
        else:
            number = min(threads, -(-len(lines) // batch))
            free = sorted(range(threads), key=work.__getitem__)[:number]
            for i, thread in enumerate(free):
                share = shares[thread] = lines[i::number]
                full = batch * lengths[share[0]]
                work[thread] += max(full, sum(lengths[line] for line in share))
        divided.append((bucket, shares))
    return divided[::-1]


def pad(
    sequences: Sequence[Sequence[int]], rows: int, width: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids [rows, width], lengths [rows]); rows without a sequence come last and have length 0."""
    ids, lengths = np.full((rows, width), pad_id, np.int32), np.zeros(rows, np.int32)
    for row, sequence in enumerate(sequences):
        lengths[row] = len(sequence)
        ids[row, : len(sequence)] = sequence
    return ids, lengths


def distribute(x: np.ndarray, copies: int) -> np.ndarray:
    """[rows, …] → [copies of the models, rows of a copy, …]. The copies take rows in turn, so that
    all get sentences of similar lengths."""
    return x.reshape(-1, copies, *x.shape[1:]).swapaxes(0, 1)


def merge_devices(x: np.ndarray) -> np.ndarray:
    """[copies, rows of a copy, …] → [rows, …], the inverse of `distribute`."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

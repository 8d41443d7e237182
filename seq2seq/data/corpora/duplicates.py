"""Identical pairs of a corpus of any size, found by their hashes block by block.

A hash has 64 bits: among 100 million distinct pairs, the probability that any two have the same
hash, so that one of them is dropped, is n² / 2⁶⁵ = 0.03 %.
"""

from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, UInt64


class DuplicateFilter:
    """The hashes of the pairs so far in sorted runs, 8 bytes per distinct pair.

    Each run is at least twice as large as the next one, so there are few, and a hash is merged
    about log₂(pairs / block) times.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # each sorted; no hash is in two runs

    def first_occurrences(self, source: list[str], target: list[str]) -> Bool[np.ndarray, " P"]:
        """Whether pair i is unlike all earlier pairs of this block and of the blocks before."""
        hashes, first = np.unique(_hashes(source, target), return_index=True)
        new = np.ones(len(hashes), bool)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            new &= run[places] != hashes
        occurs_first = np.zeros(len(source), bool)
        occurs_first[first[new]] = True
        if new.any():
            self._append(hashes[new])
        return occurs_first

    def _append(self, run: UInt64[np.ndarray, " hashes"]) -> None:
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # merges two sorted runs in linear time
        self._runs.append(run)


def _hashes(source: list[str], target: list[str]) -> UInt64[np.ndarray, " P"]:
    """A 64-bit hash of each pair. No text contains a line feed."""
    digests = [
        blake2b(f"{source_text}\n{target_text}".encode(), digest_size=8).digest()
        for source_text, target_text in zip(source, target, strict=True)
    ]
    return np.frombuffer(b"".join(digests), np.uint64)

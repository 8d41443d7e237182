"""Compiled calls of the engine: their input, their results, and a limit on their duration."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from math import isnan
from typing import NamedTuple

from decoding.batches import merge_devices
from model.hypotheses import Hypotheses
from runtime.errors import DIVERGED, UserError


class Job(NamedTuple):
    """Lines to translate together, as token ids without the end token; a blank line has none.

    `numbers` are the line numbers in the input, from 0; the random keys of samples depend on them.
    `prefixes` maps an index in `sources` to the tokens that its translation must begin with.
    `token_counts` are the lengths of the sources before truncation, with the end token, for the
    caller.
    """

    sources: Sequence[list[int]]
    prefixes: Mapping[int, list[int]]
    numbers: Sequence[int]
    token_counts: Sequence[int] = ()


class Result(NamedTuple):
    """The hypotheses of one line: token ids without the end token, score, log-probability."""

    job: Job
    line: int  # index in job.sources
    hypotheses: list[tuple[list[int], float, float]]


class Call(NamedTuple):
    """A call of a compiled search that a thread runs or will run."""

    job: Job
    bucket: int
    lines: list[int]  # indices in job.sources
    # The hypotheses, None if the devices ran out of memory; and the seconds of the call.
    found: Future[tuple[Hypotheses | None, float]]


def read_results(call: Call, hypotheses: Hypotheses) -> list[Result]:
    """The results of a call. UserError(DIVERGED) if a score is NaN."""
    tokens, *numbers = map(merge_devices, hypotheses)
    lengths, scores, log_probs = (values.tolist() for values in numbers)
    results = []
    for row, line in enumerate(call.lines):
        if any(map(isnan, scores[row])):
            raise nonfinite_error(call.job.numbers[line])
        each = zip(tokens[row], lengths[row], scores[row], log_probs[row], strict=True)
        found = [
            (ids[: length - 1].tolist(), score, log_prob)
            for ids, length, score, log_prob in each
            if length > 0
        ]
        if not found:  # no hypothesis satisfies the constraints
            found = [([], float("-inf"), float("-inf"))]
        results.append(Result(call.job, line, found))
    return results


def nonfinite_error(line: int) -> UserError:
    """The error for a line (from 0) whose scores are NaN."""
    return UserError(
        DIVERGED,
        f"line {line + 1}: the model's logits are not finite: expected "
        "numbers, got NaN or infinity; decode with --dtype=float32 or another "
        "--checkpoint",
    )


class Pace:
    """The number of batches in a call, chosen so that a call takes about `seconds`.

    Results become available when a call ends, so this bounds the work that a kill can lose. The
    first calls take FIRST batches, one for each thread, and no other is submitted before one ends.
    The size of each later call follows the time per source position of the last call of the same
    bucket, or of the slowest other bucket.
    """

    FIRST = 1

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._seconds_per_position: dict[int, float] = {}  # by bucket

    @property
    def measured(self) -> bool:
        """Whether a call has been measured."""
        return bool(self._seconds_per_position)

    def batches(self, bucket: int, positions: int, limit: int) -> int:
        """The number of batches of `positions` source positions each, from 1 to `limit`."""
        if not self.measured:
            return min(limit, self.FIRST)
        measured = self._seconds_per_position
        each = measured.get(bucket) or max(measured.values())
        return max(1, min(limit, int(self._seconds / (each * positions))))

    def measure(self, bucket: int, positions: int, seconds: float) -> None:
        """Record that a call of `positions` source positions took `seconds`."""
        self._seconds_per_position[bucket] = max(seconds, 1e-6) / positions

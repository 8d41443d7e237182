"""Compiled calls of the engine and their results."""

from concurrent.futures import Future
from math import isnan
from typing import NamedTuple

import numpy as np

from seq2seq.decoding.engine.buckets import merge_devices
from seq2seq.decoding.engine.programs import Program
from seq2seq.decoding.results import Hypothesis, Source
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.runtime.errors import DIVERGED, UserError

Results = list[tuple[Source, list[Hypothesis]]]  # of one call


class Call(NamedTuple):
    """A call of a compiled search that a thread runs or will run."""

    program: Program
    sources: list[Source]
    # The hypotheses, None if the devices ran out of memory; and the seconds of the call.
    outcome: Future[tuple[Hypotheses | None, float]]


def read_results(
    sources: list[Source], hypotheses: Hypotheses, has_own_rules: bool = False
) -> Results:
    """The hypotheses of each source of a call. UserError(DIVERGED) if a score is NaN.
    `has_own_rules`: the search has a caller's rules."""
    merged = [merge_devices(np.asarray(field)) for field in hypotheses]
    tokens, *numbers = merged  # [B, N, T]; three of [B, N]
    lengths, scores, log_probs = (values.tolist() for values in numbers)
    results = []
    for row, source in enumerate(sources):
        if any(map(isnan, scores[row])):
            raise nonfinite_error(source.number, has_own_rules)
        fields = zip(tokens[row], lengths[row], scores[row], log_probs[row], strict=True)
        best_first = [
            Hypothesis("", score, log_prob, length, ids[: length - 1].tolist())
            for ids, length, score, log_prob in fields
            if length > 0
        ]
        if not best_first:  # no hypothesis satisfies the search rules
            best_first = [Hypothesis("", float("-inf"), float("-inf"), 1, [])]
        results.append((source, best_first))
    return results


def nonfinite_error(line: int, has_own_rules: bool = False) -> UserError:
    """The error for a line (from 0) whose scores are NaN."""
    what = f"line {line + 1}: the model's logits are not finite"
    if has_own_rules:
        what += ", or the rules give a token a log-probability above 0"
    return UserError(
        DIVERGED,
        f"{what}: expected numbers, got NaN or infinity; decode with --dtype=float32 or another "
        "--checkpoint" + (", or lower what the rules add to logits" if has_own_rules else ""),
    )

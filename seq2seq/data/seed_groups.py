"""Scores of groups of runs that differ in their seed only: mean, spread, and a paired test.

Axes: R resamples · L lines.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seq2seq.data.metrics import Metric
from seq2seq.runtime.errors import CONFIGURATION, UserError

RESAMPLES = 1000  # as in sacreBLEU


class GroupScore(NamedTuple):
    """The scores of the runs of a group."""

    values: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """The sample standard deviation; NaN for one run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    def __str__(self) -> str:
        runs = ", ".join(f"{value:.2f}" for value in self.values)
        spread = f" ± {self.deviation:.2f} ({runs})" if len(self.values) > 1 else ""
        return f"{self.mean:.2f}{spread}"


class GroupComparison(NamedTuple):
    """The scores of one or two groups by a metric, and the p-value of the difference of two."""

    name: str
    signature: str
    outputs: GroupScore
    baseline: GroupScore | None = None
    p_value: float = float("nan")


def compare_groups(
    metric: Metric,
    outputs: Sequence[Sequence[str]],
    baseline: Sequence[Sequence[str]],
    *references: Sequence[str],
) -> GroupComparison:
    """Compare the texts of the runs of two groups; without a `baseline` only their scores.
    UserError(CONFIGURATION) for a seed that cannot be read (`bootstrap_seed`).

    The paired bootstrap test (Koehn 2004) with the mean score of a group instead of the score of a
    system: each resample draws the same lines for all runs of both groups. With one run in each
    group it is that of sacreBLEU, with the seed of the environment variable SACREBLEU_SEED.
    """
    groups = [group for group in (outputs, baseline) if group]
    scores = [[metric(texts, *references) for texts in group] for group in groups]
    name, _, signature = scores[0][0]
    means = [GroupScore([score.value for score in group]) for group in scores]
    if not baseline:
        return GroupComparison(name, signature, means[0])
    random = np.random.default_rng(bootstrap_seed())
    lines = random.choice(len(references[0]), (RESAMPLES, len(references[0])))
    drawn = [  # the mean score of each group, [R]
        np.mean([metric.resampled(lines, texts, *references) for texts in group], axis=0)
        for group in groups
    ]
    differences = np.abs(drawn[0] - drawn[1])
    larger = differences - differences.mean() > abs(means[0].mean - means[1].mean)
    p_value = (int(larger.sum()) + 1) / (RESAMPLES + 1)
    return GroupComparison(name, signature, means[0], means[1], p_value)


def bootstrap_seed() -> int | None:
    """The seed as sacreBLEU reads it: SACREBLEU_SEED, or 12345; None if it is "none".
    UserError(CONFIGURATION) for any other text."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() == "none":
        return None
    if not seed.isdecimal():
        raise UserError(
            CONFIGURATION, f"SACREBLEU_SEED is invalid: expected a number or none, got {seed!r}"
        )
    return int(seed)

"""Exact match as a metric of sacreBLEU, which adds the signature and the test: the percentage of
texts that equal one of their references."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature


class ExactMatch(Metric):
    """No settings: upper and lower case, punctuation and spaces count."""

    _SIGNATURE_TYPE = Signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[int]:
        """[1 if it is equal, 1 line]"""
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _aggregate_and_compute(self, stats: list[list[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: list[int]) -> Score:
        equal, lines = stats
        return Score("exact match", 100.0 * equal / lines)

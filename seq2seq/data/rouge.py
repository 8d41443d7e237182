"""ROUGE of the library rouge-score as a metric of sacreBLEU, which adds the signature and the test.

A corpus score is the mean of the F1 of all lines. A line holds a whole text, so that ROUGE-Lsum,
which compares sentences, needs their ends: . ! ? before a space, 。！？।, and <n>, which separates
sentences in the output of Pegasus. Importing this module needs rouge-score, which downloads nothing
for these scores.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import regex
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import Tokenizer
from sacrebleu.metrics.base import Metric, Score, Signature

SENTENCE_END = re.compile(r"\s*<n>\s*|(?<=[.!?])\s+|(?<=[。！？।])")
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")
NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}


class UnicodeWords(Tokenizer):
    """Lower-cased words of letters, marks and digits of all scripts, without a stemmer."""

    def tokenize(self, text: str) -> list[str]:
        return WORD.findall(text.lower())


class RougeSignature(Signature):
    """The settings that change a score."""

    def __init__(self, args: dict[str, Any]):
        super().__init__(args)
        for name in ("tok", "stemmer", "aggregate"):
            self.update(name, args[name])
        if args["kind"] == "rougeLsum":
            self.update("sentences", "punctuation")
        self.update("version", f"rouge-score-{version('rouge-score')}")


class Rouge(Metric):
    """One of NAMES. The tokenizer is that of rouge-score, which has no other letters than a to z,
    with its stemmer; or, `unicode`, UnicodeWords."""

    _SIGNATURE_TYPE = RougeSignature

    def __init__(self, kind: str, unicode: bool = False):
        super().__init__()
        self.kind, self.aggregate = kind, "mean-F1"
        self.tok, self.stemmer = ("unicode", False) if unicode else ("ascii", True)
        tokenizer = UnicodeWords() if unicode else None
        self._scorer = RougeScorer([kind], use_stemmer=self.stemmer, tokenizer=tokenizer)

    def _preprocess_segment(self, sent: str) -> str:
        return SENTENCE_END.sub("\n", sent.strip())

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[float]:
        """[F1, 1 line]"""
        scores = self._scorer.score_multi(ref_kwargs["references"], hypothesis)
        return [scores[self.kind].fmeasure, 1.0]

    def _aggregate_and_compute(self, stats: list[list[float]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: list[float]) -> Score:
        total, lines = stats
        return Score(NAMES[self.kind], 100 * float(total) / float(lines))

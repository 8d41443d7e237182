"""Scores of the translations of a job: --reference, --metric and --baseline of decode.py."""

from collections.abc import Iterator
from typing import NamedTuple

from seq2seq.config.data_config import nfc
from seq2seq.data.metrics import (
    METRIC_NAMES,
    METRICS,
    ROUGE,
    Comparison,
    Metric,
    Score,
    tokenizer_hint,
)
from seq2seq.files.lines import text_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.streams import note

DEFAULT_METRICS = "bleu,tokenized_bleu,chrf"


class References(NamedTuple):
    """The references of a job's lines, and what to compute with them."""

    lines: list[str]
    metrics: list[Metric]
    baseline: list[str] | None  # the translations of another system, to compare with

    def check_parallel(self, lines: int, advice: str) -> None:
        """UserError(DATA) unless the input has as many lines as the references."""
        if lines != len(self.lines):
            raise UserError(
                DATA,
                f"--reference is not parallel to --input: expected {lines} lines, got "
                f"{len(self.lines)}; {advice}",
            )

    def results(self, texts: list[str]) -> Iterator[Score | Comparison]:
        """The score of each metric, or its comparison with the baseline; none for no texts. All
        texts are compared in Unicode NFC, as translations of new runs are."""
        texts = [*map(nfc, texts)]
        self.check_parallel(len(texts), "the translations are written, but not scored")
        for metric in self.metrics if texts else ():
            if self.baseline is None:
                yield metric(texts, self.lines)
            else:
                yield metric.compare(texts, self.baseline, self.lines)


def read_references(reference: str, metrics: str | None, baseline: str) -> References | None:
    """The references in a file; None without one. `metrics` None: DEFAULT_METRICS.

    UserError(CONFIGURATION) for an unknown metric, one whose package is not installed, and if
    metrics or a baseline are given without references; UserError(DATA) if the baseline has another
    number of lines.
    """
    chosen = metrics_of(DEFAULT_METRICS if metrics is None else metrics)
    if not reference:
        for flag, value in (("--baseline", baseline), ("--metric", metrics)):
            if value:
                raise UserError(
                    CONFIGURATION, f"{flag} has no effect without --reference; add --reference=FILE"
                )
        return None
    for metric in chosen:
        metric.check()
    lines = [*map(nfc, text_lines(reference, note))]
    baseline_lines = [*map(nfc, text_lines(baseline, note))] if baseline else None
    if baseline_lines is not None and len(baseline_lines) != len(lines):
        raise UserError(
            DATA,
            f"--baseline is not parallel to --reference: expected {len(lines)} lines, got "
            f"{len(baseline_lines)}; give translations of the same input",
        )
    if hint := tokenizer_hint(chosen, lines):
        note(f"{hint}; set --metric")
    return References(lines, chosen, baseline_lines)


def metrics_of(names: str) -> list[Metric]:
    """The metrics of "bleu:zh,rouge". UserError(CONFIGURATION) for an unknown name."""
    chosen: list[Metric] = []
    for name in names.split(","):
        if name not in METRICS and name not in ROUGE:
            raise UserError(
                CONFIGURATION,
                f"--metric: unknown metric {name!r}: expected {METRIC_NAMES}; separate several by "
                "commas",
            )
        chosen += ROUGE[name] if name in ROUGE else [METRICS[name]]
    return chosen

"""Scores of the translations of a job: --reference, --metric and --baseline of decode.py."""

from collections.abc import Callable, Iterator
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

    files: list[list[str]]  # the lines of each file
    metrics: list[Metric]
    baseline: list[str] | None  # the translations of another system, to compare with

    def check_parallel(self, lines: int, advice: str) -> None:
        """UserError(DATA) unless the input has as many lines as the references."""
        if lines != len(self.files[0]):
            raise UserError(
                DATA,
                f"--reference is not parallel to --input: expected {lines} lines, got "
                f"{len(self.files[0])}; {advice}",
            )

    def results(self, texts: list[str]) -> Iterator[Score | Comparison]:
        """The score of each metric, or its comparison with the baseline; none for no texts. All
        texts are compared in Unicode NFC, as translations of new runs are."""
        texts = [*map(nfc, texts)]
        self.check_parallel(len(texts), "the translations are written, but not scored")
        for metric in self.metrics if texts else ():
            if self.baseline is None:
                yield metric(texts, *self.files)
            else:
                yield metric.compare(texts, self.baseline, *self.files)


def read_references(reference: str, metrics: str | None, baseline: str) -> References | None:
    """The references in files separated by commas; None without one. `metrics` None:
    DEFAULT_METRICS.

    UserError(CONFIGURATION) for an unknown metric, one whose package is not installed, and if
    metrics or a baseline are given without references; UserError(DATA) if the files have different
    numbers of lines.
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
    files = reference_lines(reference, note)
    lines = len(files[0])
    baseline_lines = [*map(nfc, text_lines(baseline, note))] if baseline else None
    if baseline_lines is not None and len(baseline_lines) != lines:
        raise UserError(
            DATA,
            f"--baseline is not parallel to --reference: expected {lines} lines, got "
            f"{len(baseline_lines)}; give translations of the same input",
        )
    if hint := tokenizer_hint(chosen, *files):
        note(f"{hint}; set --metric")
    return References(files, chosen, baseline_lines)


def reference_lines(names: str, warn: Callable[[str], None] | None = None) -> list[list[str]]:
    """The lines of each file of references, with `text_lines(name, warn)`, in Unicode NFC; `names`
    are separated by commas. UserError(DATA) unless each file has as many lines as the first."""
    first, *others = names.split(",")
    files = [[*map(nfc, text_lines(name, warn))] for name in (first, *others)]
    for name, lines in zip(others, files[1:], strict=True):
        if len(lines) != len(files[0]):
            raise UserError(
                DATA,
                f"--reference: {name} is not parallel to {first}: expected {len(files[0])} lines, "
                f"got {len(lines)}; give files with one reference for each input line",
            )
    return files


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

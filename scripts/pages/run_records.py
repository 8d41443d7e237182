"""What a run directory records, read for a report: config, log, metrics, samples and scores.

Nothing is locked or written, so a report can be made while the run trains.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.tree import Config, flat_values, load_config
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.run_files import steps

SAMPLE_FILE = re.compile(r"(\d+|average)(?:-([\w-]+))?\.txt", re.ASCII)
SAMPLE = re.compile(r"source {4}(.*)\nreference (.*)\nmodel {5}(.*)\n")
TRAINING_LINE = re.compile(r"step \d|first step|already complete|expected duration")


class Sample(NamedTuple):
    """The output of a checkpoint for a source of the validation set `name`."""

    name: str
    checkpoint: str  # a step, or average
    source: str
    reference: str
    output: str


class RunRecords(NamedTuple):
    """The records of a run. A file that does not exist yet is empty."""

    name: str
    path: Path
    config: dict[str, Any]  # "part.field" → value
    facts: dict[str, Any]  # run.json
    start: list[str]  # the lines that the last start logged before its first step: data, devices
    log: list[str]
    metrics: list[dict[str, float]]  # by step; finite values only
    samples: list[Sample]  # in the order of the steps, the average last
    best: dict[str, Any]
    scores: dict[str, Any]  # scores.json
    seconds: float | None  # of training in all sessions, up to the newest checkpoint

    def series(self, metric: str) -> dict[str, tuple[list[float], list[float]]]:
        """Validation set → (steps, values) of a metric; "" is the only one."""
        series: dict[str, tuple[list[float], list[float]]] = {}
        for entry in self.metrics:
            for key, value in entry.items():
                name, _, last = key.rpartition("/")
                if last == metric:
                    steps, values = series.setdefault(name, ([], []))
                    steps.append(entry["step"])
                    values.append(value)
        return series

    def best_scores(self) -> dict[str, float]:
        """Metric, or NAME/metric, → value of the best checkpoint on the validation data; {} without
        one."""
        checkpoint = self.best.get("checkpoint")
        prefix = "average_" if checkpoint == "average" else "valid_"
        for entry in reversed(self.metrics):
            parts = [(key.rpartition("/"), value) for key, value in entry.items()]
            scores = {
                f"{name}{slash}{metric.removeprefix(prefix)}": value
                for (name, slash, metric), value in parts
                if metric.startswith(prefix)
            }
            if scores and checkpoint in ("average", entry["step"]):
                return scores
        return {}


def default_config() -> dict[str, Any]:
    """The default of each config field."""
    return flat_values(Config())


def read_records(path: Path) -> RunRecords:
    """The records of the run in a directory. UserError(CHECKPOINT) if it is not a run."""
    path = path.expanduser().absolute()
    config = flat_values(load_config(path / "config.json"))
    log = _text(path / "train.log").removesuffix("\n").split("\n")
    return RunRecords(
        path.name,
        path,
        config,
        _object(path / "run.json"),
        start_lines(log),
        log,
        read_metrics(_text(path / "metrics.jsonl")),
        read_samples(path / "samples"),
        read_best(path),
        _object(path / "scores.json"),
        training_seconds(path),
    )


def training_seconds(path: Path) -> float | None:
    """The seconds of training in all sessions, which the newest checkpoint of a run stores; None
    without one. Its parameters are not loaded."""
    newest = steps(path)[-1:]
    stored = [_object(path / "checkpoints" / str(step) / "data" / "metadata") for step in newest]
    return stored[0].get("seconds") if stored else None


def start_lines(log: list[str]) -> list[str]:
    """The lines of the last start in a log, up to its first step, without the first line."""
    starts = [i for i, line in enumerate(log) if line.startswith("run: ")]
    lines = log[starts[-1] + 1 :] if starts else []
    end = next((i for i, line in enumerate(lines) if TRAINING_LINE.match(line)), len(lines))
    return lines[:end]


def read_metrics(content: str) -> list[dict[str, float]]:
    """The entries of metrics.jsonl, without damaged lines and values that are not finite."""
    entries = []
    for line in content.split("\n"):
        try:
            entry = json.loads(line)
            entry["step"] = int(entry["step"])
        except (ValueError, KeyError, TypeError):
            continue  # the last line is incomplete after a crash
        entries.append(
            {
                key: value
                for key, value in entry.items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
        )
    return sorted(entries, key=lambda entry: entry["step"])


def read_samples(directory: Path) -> list[Sample]:
    """The samples of all evaluations in RUN/samples."""
    files = {
        (math.inf if match[1] == "average" else int(match[1]), match[2] or ""): path
        for path in (directory.iterdir() if directory.is_dir() else ())
        if (match := SAMPLE_FILE.fullmatch(path.name))
    }
    return [
        Sample(name, "average" if step == math.inf else str(step), *match.groups())
        for (step, name), path in sorted(files.items())
        for match in SAMPLE.finditer(_text(path))
    ]


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; {} if the file is missing or damaged: a report has a gap there."""
    try:
        content = json.loads(_text(path))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _text(path: Path) -> str:
    """The text of a file; "" if there is none."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""

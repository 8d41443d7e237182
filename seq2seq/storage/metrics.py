"""The metrics of a training, in metrics.jsonl and for TensorBoard. Resuming does not read them."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.logs import Log
from seq2seq.storage.event_file import EventFile
from seq2seq.storage.writes import append_line, warn_on_write_error


class Metrics:
    """Appends to metrics.jsonl and to an event file of TensorBoard."""

    def __init__(self, run: Path, step: int, last: Mapping[str, int], log: Log):
        """Training starts at `step`. Earlier entries after the `last` step of their kind
        (`metrics_until`) and points after `step` are dropped."""
        self._path = run / "metrics.jsonl"
        content = self._path.read_bytes() if self._path.exists() else b""
        kept, damaged = metrics_until(content, last)
        if damaged:
            log(f"warning: {self._path.name}: {damaged:,} damaged lines are dropped")
        if kept != content:
            write_atomic(self._path, kept)
        self._events = EventFile(run / "tensorboard", step)

    def record(self, step: int, values: dict[str, float]) -> None:
        """Append an entry with the values at a step. If that fails it is lost, with a warning."""
        entry = {"step": step, "time": round(time.time(), 3), **values}
        append_line(self._path, json.dumps(entry))
        with warn_on_write_error("tensorboard"):
            self._events.write(step, values)


def metrics_until(content: bytes, last: Mapping[str, int]) -> tuple[bytes, int]:
    """The lines of metrics.jsonl up to the `last` step of their kind (`step_and_kind`), and the
    number of damaged lines."""
    lines = [(line, step_and_kind(line)) for line in content.split(b"\n") if line]
    kept = [line for line, entry in lines if entry is not None and entry[0] <= last[entry[1]]]
    return b"".join(line + b"\n" for line in kept), sum(entry is None for _, entry in lines)


def step_and_kind(line: bytes) -> tuple[float, str] | None:
    """The step of a metrics line, and the start of the names of its metrics: train, average, or
    else valid. None for a damaged line, such as one truncated by a crash."""
    try:
        entry = json.loads(line)
        starts = {name.rpartition("/")[2].partition("_")[0] for name in entry}  # NAME/valid_bleu
        kind = next((kind for kind in ("train", "average") if kind in starts), "valid")
        return float(entry["step"]), kind
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

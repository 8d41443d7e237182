"""The best checkpoint: chosen by evaluations, named in best.json, taken back if it is not saved.

It is the one with the best training.best_metric on the first validation set; of equal ones the one
with the lowest loss, then the first.

    evaluation         BestCheckpoint.update chooses
    save               the checkpoint stores `to_json`; then `write_best`; the best step is kept
    save that failed   BestCheckpoint.undo
    interruption       of an evaluation: nothing is chosen, the next start repeats it
                       (Trainer._evaluate_if_due); before a save: best.json is that of the last one
    resume             `without_missing` and `repair_best`, then BestCheckpoint.restore
    use                `read_best`: decoding, training.init_from, scores.json
"""

import json
import math
from collections.abc import Set
from pathlib import Path
from typing import Any

from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.errors import CHECKPOINT, OUTPUT, UserError
from seq2seq.runtime.json_objects import json_object
from seq2seq.runtime.logs import Log


class BestCheckpoint:
    """The checkpoint with the best validation score, and the evaluations since.

    Invariant: `entry` is the content of best.json after the next successful save. It is {}, or
    {"checkpoint": STEP or "average", metric: value, "loss": loss} with a checkpoint that is saved
    or about to be saved. If that save fails, `undo` restores the previous entry.
    """

    def __init__(self, metric: str):
        """`metric` is training.best_metric: bleu, chrf (higher is better) or loss (lower)."""
        self._metric = metric
        self.entry: dict[str, Any] = {}
        self.without_improvement = 0  # evaluations in a row
        self.evaluated_step = 0  # of the last evaluation
        self._previous = self.entry, self.without_improvement  # before the last update

    def reset(self) -> None:
        """Forget all scores."""
        self.entry, self.without_improvement = {}, 0

    def update(self, checkpoint: int | str, value: float, loss: float) -> None:
        """Make `checkpoint` the best if its score `value` is better than that of the best so far,
        or equal with a lower loss. Any number is better than NaN."""
        self._previous = self.entry, self.without_improvement
        entry = {"checkpoint": checkpoint, self._metric: value, "loss": loss}
        if not self.entry or self._rank(entry) > self._rank(self.entry):
            self.entry = entry
            self.without_improvement = 0
        else:
            self.without_improvement += 1

    def _rank(self, entry: dict[str, Any]) -> list[tuple[bool, float]]:
        """Of two entries the better one has the higher rank."""
        loss = -entry.get("loss", math.nan)  # earlier versions did not store it
        score = loss if self._metric == "loss" else entry[self._metric]
        return [(False, 0.0) if math.isnan(value) else (True, value) for value in (score, loss)]

    def undo(self, step: int) -> None:
        """Take back the last update if it made `step` the best: that step could not be saved. It
        stays the `evaluated_step`: it is not evaluated again."""
        if self.entry.get("checkpoint") == step:
            self.entry, self.without_improvement = self._previous

    def to_json(self) -> dict[str, Any]:
        """The fields that a checkpoint stores. The keys belong to the format of checkpoints."""
        return {
            "best": self.entry,
            "without_improvement": self.without_improvement,
            "evaluated_step": self.evaluated_step,
        }

    def restore(
        self, stored: dict[str, Any], files: dict[str, Any], eval_sentences: int, log: Log
    ) -> None:
        """Continue from the data `stored` in a checkpoint, with the scores if they can be compared.

        They are reset if the `files` of the validation data have changed, or the number of its
        sentences that are translated for the metric, training.eval_sentences.
        """
        self.entry = stored["best"]
        self.without_improvement = stored["without_improvement"]
        self.evaluated_step = stored["evaluated_step"]
        # Earlier versions did not store eval_sentences.
        is_same_number = stored.get("eval_sentences", eval_sentences) == eval_sentences
        if stored["files"].get("valid") != files.get("valid"):
            changed = "the validation data"
        elif self._metric != "loss" and not is_same_number:
            changed = "training.eval_sentences"
        else:
            return
        log(f"warning: {changed} has changed: the best score is reset")
        self.reset()


def read_best(run: Path) -> dict[str, Any]:
    """best.json: an entry of BestCheckpoint; {} without an evaluation.

    Raises UserError(CHECKPOINT) if the file is damaged.
    """
    try:
        best = json_object((run / "best.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        best = {"checkpoint": None}
    if not isinstance(best.get("checkpoint", ""), int | str):
        raise UserError(
            CHECKPOINT,
            f"{run}/best.json is damaged: expected a JSON object that names a checkpoint; "
            "delete it (best then means latest) or use --checkpoint=latest",
        )
    return best


def write_best(run: Path, entry: dict[str, Any]) -> None:
    """Replace best.json; if that fails, it is unchanged."""
    try:
        write_atomic(run / "best.json", json.dumps(entry) + "\n")
    except OSError as error:
        raise UserError(
            OUTPUT, f"{run}/best.json could not be written: {error.strerror}; it is unchanged"
        ) from None


def without_missing(entry: dict[str, Any], steps: Set[int], log: Log) -> dict[str, Any]:
    """The entry that a checkpoint has stored; {} if its checkpoint is not one of the `steps`."""
    best = entry.get("checkpoint")
    if best in {None, *steps}:
        return entry
    log(
        f"warning: the best checkpoint, {best}, is missing; the next one that is evaluated "
        "becomes the best"
    )
    return {}


def repair_best(run: Path, entry: dict[str, Any], existing: Set[int | str], log: Log) -> None:
    """Write the `entry` to best.json if that is damaged or names no `existing` checkpoint."""
    try:
        best = read_best(run).get("checkpoint")
    except UserError:
        log(f"warning: {run}/best.json is damaged; it is restored from the checkpoint")
    else:
        if best in {None, *existing}:
            return
    write_best(run, entry)

"""The best checkpoint: the one with the best training.best_metric on the first validation set; of
equal ones the one with the lowest loss, then the first.

    Evaluator.evaluate → update → a checkpoint stores to_json → best.json (Checkpoints.save)
    if the checkpoint cannot be saved: undo; on resume: restore, or reset for changed data
Decoding and init_from read best.json (`params_directory` of seq2seq/storage/run_files.py).
"""

import math
from typing import Any


class BestCheckpoint:
    """The checkpoint with the best validation score, and the evaluations since.

    Invariant: `entry` is the content of best.json after the next successful save. It is {}, or
    {"checkpoint": STEP or "average", metric: value, "loss": loss} with a checkpoint that is saved
    or about to be saved. If that save fails, `undo` restores the previous entry.
    """

    def __init__(self, metric: str):
        """`metric` is training.best_metric: bleu, chrf (higher is better) or loss (lower)."""
        self._metric = metric
        self.evaluated_step = 0  # of the last evaluation
        self.reset()

    def reset(self) -> None:
        """Forget all scores."""
        self.entry: dict[str, Any] = {}
        self.without_improvement = 0
        self._previous = self.entry, self.without_improvement

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
        """Take back the last update if it made `step` the best: that step could not be saved."""
        if self.entry.get("checkpoint") == step:
            self.entry, self.without_improvement = self._previous

    def to_json(self) -> dict[str, Any]:
        """The fields that a checkpoint stores. The keys belong to the format of checkpoints."""
        return {
            "best": self.entry,
            "without_improvement": self.without_improvement,
            "evaluated_step": self.evaluated_step,
        }

    def restore(self, stored: dict[str, Any]) -> None:
        """Continue from the result of `to_json`."""
        self.entry = stored["best"]
        self.without_improvement = stored["without_improvement"]
        self.evaluated_step = stored["evaluated_step"]

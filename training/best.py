"""The best checkpoint of a run, by validation score."""

from typing import Any


class BestCheckpoint:
    """The checkpoint with the best validation score, and the evaluations since.

    Invariant: `entry` is the content of best.json after the next successful save. It is {}, or
    {"checkpoint": STEP or "average", metric: value} with a checkpoint that is saved or about to be
    saved. If that save fails, `undo` restores the previous entry.
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

    def update(self, checkpoint: int | str, value: float) -> None:
        """Make `checkpoint` the best if its score is better than that of the best so far."""
        self._previous = self.entry, self.without_improvement
        sign = -1.0 if self._metric == "loss" else 1.0
        if not self.entry or sign * value > sign * self.entry[self._metric]:
            self.entry = {"checkpoint": checkpoint, self._metric: value}
            self.without_improvement = 0
        else:
            self.without_improvement += 1

    def undo(self, step: int) -> None:
        """Take back the last update if it made `step` the best: that step could not be saved."""
        if self.entry.get("checkpoint") == step:
            self.entry, self.without_improvement = self._previous

    def to_json(self) -> dict[str, Any]:
        """The fields that a checkpoint stores. The keys belong to the format of checkpoints."""
        return {
            "best": self.entry,
            "without_better": self.without_improvement,
            "judged": self.evaluated_step,
        }

    def restore(self, stored: dict[str, Any]) -> None:
        """Continue from the result of `to_json`."""
        self.entry = stored["best"]
        self.without_improvement = stored["without_better"]
        self.evaluated_step = stored["judged"]

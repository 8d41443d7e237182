"""Reports and counts the steps whose loss or gradient is not finite.

Such a step changes no parameter: seq2seq/training/step.py skips its update. Too many in a row end
the training.
"""

import math
from collections.abc import Callable

from seq2seq.config.training_config import TrainingConfig
from seq2seq.data.batching.batches import DataPosition
from seq2seq.runtime.errors import DIVERGED, UserError
from seq2seq.storage.run import Run

EXAMPLES = 5  # pairs of a batch that the message lists


class NonfiniteReport:
    """Reports steps that were skipped, and counts those in a row."""

    def __init__(
        self, run: Run, config: TrainingConfig, locate: Callable[[DataPosition], list[str]]
    ):
        """`locate` lists the pairs of a batch as file:line."""
        self._run, self._config, self._locate = run, config, locate
        self._in_a_row = 0

    def end_row(self) -> None:
        """Restart the count after a finite step."""
        self._in_a_row = 0

    def add(self, step: int, values: dict[str, float], position: DataPosition) -> None:
        """Count a step, write the pairs of its batch to samples/, and log a warning.

        Raises UserError(DIVERGED) after more than training.skip_nonfinite such steps in a row.
        """
        self._in_a_row += 1
        places, name = self._locate(position), f"nonfinite-{step}"
        examples = places[:EXAMPLES] if len(places) <= EXAMPLES else [*places[:EXAMPLES], "…"]
        self._run.write_samples(name, places)
        message = (
            f"step {step}: loss {values['loss']}, gradient norm {values['gradient_norm']}, not "
            f"applied; batch {position.index} of window {position.window} of epoch "
            f"{position.epoch}, {len(places)} pairs: {', '.join(examples)} "
            f"(all in samples/{name}.txt)"
        )
        if self._in_a_row > self._config.skip_nonfinite:
            raise UserError(
                DIVERGED,
                f"{message}; lower training.learning_rate, raise training.warmup_steps or check "
                "these pairs, and resume from the last checkpoint; training.skip_nonfinite sets "
                "how many such steps in a row are skipped",
            )
        self._run.log(
            f"warning: {message}; {self._in_a_row} in a row, "
            f"training.skip_nonfinite={self._config.skip_nonfinite}"
        )


def is_finite(values: dict[str, float]) -> bool:
    """Whether the loss and the gradient of a step with these metrics are finite."""
    return math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])

"""Steps that change no parameter, because their loss or gradient is not finite.

seq2seq/training/step.py skips the update. Here such steps are reported and counted, and too many in
a row end the training.
"""

from collections.abc import Callable

from seq2seq.config.training_config import TrainingConfig
from seq2seq.data.batching.batches import DataPosition
from seq2seq.runtime.errors import DIVERGED, UserError
from seq2seq.storage.run import Run

EXAMPLES = 5  # pairs of a batch that the message lists


class NonfiniteSteps:
    """Reports steps that were skipped; `in_a_row` is their number since the last finite step."""

    def __init__(
        self, run: Run, config: TrainingConfig, locate: Callable[[DataPosition], list[str]]
    ):
        """`locate` lists the pairs of a batch as file:line."""
        self._run, self._config, self._locate = run, config, locate
        self.in_a_row = 0

    def report(self, step: int, values: dict[str, float], position: DataPosition) -> None:
        """Write the pairs of the batch to samples/ and log a warning.

        Raises UserError(DIVERGED) after more than training.skip_nonfinite such steps in a row.
        """
        self.in_a_row += 1
        places, name = self._locate(position), f"nonfinite-{step}"
        self._run.write_samples(name, places)
        message = (
            f"step {step}: loss {values['loss']}, gradient norm {values['gradient_norm']}, not "
            f"applied; batch {position.index} of window {position.window} of epoch "
            f"{position.epoch}, {len(places)} pairs: {', '.join(places[:EXAMPLES])}"
            f"{', …' * (len(places) > EXAMPLES)} (all in samples/{name}.txt)"
        )
        if self.in_a_row > self._config.skip_nonfinite:
            raise UserError(
                DIVERGED,
                f"{message}; lower training.learning_rate, raise training.warmup_steps or check "
                "these pairs, and resume from the last checkpoint; training.skip_nonfinite sets "
                "how many such steps in a row are skipped",
            )
        self._run.log(
            f"warning: {message}; {self.in_a_row} in a row, "
            f"training.skip_nonfinite={self._config.skip_nonfinite}"
        )

"""What a run says while it trains: a live line on a terminal, log lines every n steps."""

import math
import time
from collections.abc import Callable

import jax
import optax

from data.batches import DataPosition
from runtime.durations import format_duration
from runtime.errors import DIVERGED, UserError
from storage.config import TrainingConfig
from storage.run import Run

EXAMPLES = 5  # places of a bad batch that its message names


class Progress:
    """Counts steps and tokens between log lines; time spent elsewhere is left out by `restart`."""

    def __init__(
        self,
        run: Run,
        config: TrainingConfig,
        schedule: optax.Schedule,
        step: int,
        places: Callable[[DataPosition], list[str]],
    ):
        """`places` names the examples of a batch."""
        self._run, self._config, self._schedule, self._places = run, config, schedule, places
        self._first, self._skipped = step + 1, 0
        self.restart()

    def restart(self) -> None:
        """Begin to measure the speed again, after compilation or an evaluation."""
        self._since, self._tokens, self._steps = time.perf_counter(), 0.0, 0

    def after(self, step: int, metrics: dict[str, jax.Array], taken: DataPosition) -> None:
        """Tell of a step on the batch at `taken`, in the log where it is due; waits for its end.

        Raises UserError(DIVERGED) after more steps in a row than training.skip_nonfinite whose loss
        or gradient was not finite; these have changed nothing.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if not (math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])):
            self._not_finite(step, values, taken)
            return
        self._skipped = 0
        self._tokens += values.pop("tokens")
        self._steps += 1
        seconds = time.perf_counter() - self._since
        values["learning_rate"] = float(self._schedule(step - 1))
        values["tokens_per_second"] = self._tokens / seconds
        left = format_duration((self._config.num_steps - step) * seconds / self._steps)
        line = (
            f"step {step}/{self._config.num_steps}  loss {values['loss']:.3f}  "
            f"accuracy {values['accuracy']:.3f}  lr {values['learning_rate']:.2e}  "
            f"{values['tokens_per_second']:,.0f} target tokens/s  {left} left"
        )
        if step == self._first:
            self._run.log(f"first step after {seconds:.1f} s, compilation included")
        if step % self._config.log_every == 0 or step == self._config.num_steps:
            self._run.record(step, {f"train_{name}": value for name, value in values.items()})
            self._run.log(line)
            self.restart()
        else:
            self._run.progress(line)
        if step == self._first:
            self.restart()

    def _not_finite(self, step, values, taken):
        self._skipped += 1
        places, name = self._places(taken), f"nonfinite-{step}"
        self._run.write_samples(name, places)
        said = (
            f"step {step}: loss {values['loss']}, gradient norm {values['gradient_norm']}, not "
            f"applied; batch {taken.index} of epoch {taken.epoch}, {len(places)} pairs: "
            f"{', '.join(places[:EXAMPLES])}, … (all in samples/{name}.txt)"
        )
        if self._skipped > self._config.skip_nonfinite:
            raise UserError(
                DIVERGED,
                f"{said}; lower training.learning_rate, raise "
                "training.warmup_steps or look at these pairs, and go on from the last "
                "checkpoint; training.skip_nonfinite allows some",
            )
        self._run.log(
            f"warning: {said}; {self._skipped} in a row, training.skip_nonfinite is "
            f"{self._config.skip_nonfinite}"
        )

"""Progress of training: a live line on a terminal, and log lines every n steps."""

import math
import time
from collections.abc import Callable
from statistics import median

import jax

from data.batches import DataPosition
from runtime.durations import format_duration
from runtime.errors import DIVERGED, UserError
from storage.config import TrainingConfig
from storage.run import Run
from training.limits import Stopwatch, seconds_left

EXAMPLES = 5  # pairs of a bad batch that the message lists
MEASURED = 5  # steps after the first one whose durations give the expected duration of training


class Progress:
    """Logs loss, throughput and remaining time; `restart` excludes time between steps."""

    def __init__(
        self,
        run: Run,
        config: TrainingConfig,
        step: int,
        locate: Callable[[DataPosition], list[str]],
        stopwatch: Stopwatch,
    ):
        """`step` is the number of steps done; `locate` lists the pairs of a batch as file:line."""
        self._run, self._config, self._locate = run, config, locate
        self._first, self._skipped, self._stopwatch = step + 1, 0, stopwatch
        self._durations: list[float] = []  # of single steps, seconds
        self.restart()

    def restart(self) -> None:
        """Restart the measurement of throughput, after compilation or an evaluation."""
        self._started, self._tokens, self._steps = time.perf_counter(), 0.0, 0
        self._last_step = self._started

    def report(self, step: int, metrics: dict[str, jax.Array], position: DataPosition) -> None:
        """Report `step`, on the batch at `position`; waits until the step has ended.

        `metrics` are those of the step and its learning rate. A step whose loss or gradient is not
        finite has changed no parameter. Raises UserError(DIVERGED) after more than
        training.skip_nonfinite such steps in a row.
        """
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not (math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])):
            self._report_nonfinite(step, values, position)
            return
        self._skipped = 0
        self._tokens += values.pop("tokens")
        self._steps += 1
        now = time.perf_counter()
        seconds = now - self._started
        self._measure(step, now)
        values["tokens_per_second"] = self._tokens / seconds
        left = self._left(step, seconds / self._steps)
        line = (
            f"step {step}/{self._config.num_steps}  loss {values['loss']:.3f}  "
            f"accuracy {values['accuracy']:.3f}  lr {values['learning_rate']:.2e}  "
            f"{values['tokens_per_second']:,.0f} target tokens/s  {left} left"
        )
        if step == self._first:
            self._run.log(f"first step after {seconds:.1f} s, including compilation")
        if step % self._config.log_every == 0 or step == self._config.num_steps:
            self._run.record(step, {f"train_{name}": value for name, value in values.items()})
            self._run.log(line)
            self.restart()
        else:
            self._run.progress(line)
        if step == self._first:
            self.restart()

    def _measure(self, step: int, now: float) -> None:
        """Log the expected duration once, after the first steps that include no compilation.

        It is computed from the median, which excludes an evaluation between two steps.
        """
        duration, self._last_step = now - self._last_step, now
        if step == self._first or len(self._durations) == MEASURED:
            return
        self._durations.append(duration)
        steps, seconds = self._config.num_steps - step, median(self._durations)
        if steps and len(self._durations) == MEASURED:
            self._run.log(
                f"expected duration: {self._left(step, seconds)} for the remaining {steps:,} "
                f"of {self._config.num_steps:,} steps at {seconds:.2g} s each, and the evaluations"
            )

    def _left(self, step: int, seconds_per_step: float) -> str:
        """The duration of the remaining steps, "at most" if max_epochs may end training earlier."""
        left = seconds_left(self._config, step, self._stopwatch.seconds, seconds_per_step)
        return ("at most " if self._config.max_epochs else "") + format_duration(left)

    def _report_nonfinite(
        self, step: int, values: dict[str, float], position: DataPosition
    ) -> None:
        self._skipped += 1
        places, name = self._locate(position), f"nonfinite-{step}"
        self._run.write_samples(name, places)
        message = (
            f"step {step}: loss {values['loss']}, gradient norm {values['gradient_norm']}, not "
            f"applied; batch {position.index} of epoch {position.epoch}, {len(places)} pairs: "
            f"{', '.join(places[:EXAMPLES])}, … (all in samples/{name}.txt)"
        )
        if self._skipped > self._config.skip_nonfinite:
            raise UserError(
                DIVERGED,
                f"{message}; lower training.learning_rate, raise training.warmup_steps or check "
                "these pairs, and resume from the last checkpoint; training.skip_nonfinite sets "
                "how many such steps in a row are skipped",
            )
        self._run.log(
            f"warning: {message}; {self._skipped} in a row, "
            f"training.skip_nonfinite={self._config.skip_nonfinite}"
        )

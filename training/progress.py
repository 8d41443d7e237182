"""What a run says while it trains: a live line on a terminal, log lines every n steps."""

import math
import time

import jax
import optax

from data.errors import DIVERGED, UserError
from training.config import TrainingConfig
from training.run import Run


class Progress:
    """Counts steps and tokens between log lines; time spent elsewhere is left out by `restart`."""

    def __init__(self, run: Run, config: TrainingConfig, schedule: optax.Schedule, step: int):
        self._run, self._config, self._schedule = run, config, schedule
        self._first = step + 1
        self.restart()

    def restart(self) -> None:
        """Begin to measure the speed again, after compilation or an evaluation."""
        self._since, self._tokens, self._steps = time.perf_counter(), 0.0, 0

    def after(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Tell of a step, in the log where it is due; waits for the step to end.

        Raises UserError(DIVERGED) where the loss or the gradient is not finite, before anything
        of that step is saved.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss"] + values["gradient_norm"]):
            raise UserError(
                DIVERGED, f"step {step}: loss {values['loss']}, gradient norm "
                f"{values['gradient_norm']}; lower training.learning_rate or raise "
                "training.warmup_steps, and go on from the last checkpoint"
            )
        self._tokens += values.pop("tokens")
        self._steps += 1
        seconds = time.perf_counter() - self._since
        values["learning_rate"] = float(self._schedule(step - 1))
        values["tokens_per_second"] = self._tokens / seconds
        left = clock((self._config.num_steps - step) * seconds / self._steps)
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


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

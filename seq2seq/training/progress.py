"""Progress of training: the report at its start, its limits, log lines, and a profile of steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter

import jax

from seq2seq.config.training_config import profile_steps
from seq2seq.config.tree import Config, TrainingConfig
from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.packing import Batch
from seq2seq.model.config import num_parameters
from seq2seq.runtime import processes
from seq2seq.runtime.logs import format_duration
from seq2seq.runtime.precision import precision_hint
from seq2seq.storage.run import Run
from seq2seq.storage.writes import refuse_link, warn_on_write_error
from seq2seq.training.memory_check import size_hint
from seq2seq.training.nonfinite_report import NonfiniteReport, is_finite
from seq2seq.training.parameters import num_frozen
from seq2seq.training.step import Metrics, TrainState, TrainStep

MEASURED = 5  # steps after the first one whose durations give the expected duration of training


def announce(config: Config, run: Run, batches: Batches, position: DataPosition) -> None:
    """Log the devices, the number of parameters, and the batches of the epoch of `position`."""
    rows, source, target = batches.shape
    epoch = batches.summary(position)
    about = "" if epoch.exact else "about "
    kind, platform = jax.devices()[0].device_kind, jax.default_backend()
    model_parallel = config.training.model_parallel
    run.log(
        f"devices: {jax.device_count()} × {kind} ({platform})"
        + (f", {processes.count()} processes" if processes.count() > 1 else "")
        + (f", {model_parallel} for each copy of the model" if model_parallel > 1 else "")
    )
    if hint := precision_hint(config.model.dtype, "training"):
        run.log(hint)
    parameters, frozen = num_parameters(config.model), num_frozen(config)
    run.log(
        f"parameters: {parameters:,}"
        + (f", {frozen:,} frozen and {parameters - frozen:,} trained" if frozen else "")
    )
    if not run.resumed and (hint := size_hint(config, epoch.pairs)):
        run.log(hint)
    run.log(
        f"batch: {rows} rows of {source} + {target} tokens, {epoch.useful:.1%} useful (not "
        f"padding); {about}{epoch.batches:,} batches per epoch, {limits_text(config.training)}"
    )
    if epoch.left_out:
        run.log(
            f"epoch {position.epoch}: {about}{epoch.left_out:,} of {epoch.pairs:,} pairs are left "
            "out, because they do not fill a last batch; each epoch leaves out other pairs"
        )


def limits_text(training: TrainingConfig) -> str:
    """The limits of training, as "100,000 steps or 3 epochs": the first one that is reached."""
    limits = [f"{training.num_steps:,} steps"]
    if epochs := training.max_epochs:
        limits.append("1 epoch" if epochs == 1 else f"{epochs:,} epochs")
    if training.max_hours:
        limits.append(f"{training.max_hours:g} hours")
    return " or ".join(limits)


def reached_limit(
    config: TrainingConfig, step: int, epoch: int, seconds: float, without_improvement: int
) -> str:
    """The limit that training has reached, such as "training.max_epochs=3"; "" if it continues.

    `epoch` is that of the next batch, which is the number of complete epochs.
    """
    reached = {
        "num_steps": step,
        "max_epochs": epoch,
        "max_hours": seconds / 3600,
        "patience": without_improvement,
    }
    for name, value in reached.items():
        limit = getattr(config, name)
        if 0 < limit <= value:
            return f"training.{name}={limit}"
    return ""


def seconds_left(
    config: TrainingConfig, step: int, seconds: float, seconds_per_step: float
) -> float:
    """The time until training.num_steps or training.max_hours, whichever comes first."""
    left = (config.num_steps - step) * seconds_per_step
    return min(left, max(0.0, 3600 * config.max_hours - seconds)) if config.max_hours else left


class Stopwatch:
    """Seconds of training in all sessions of a run, up to the last `update`.

    Process 0 measures them, and its `max_hours` ends the training of all processes. In the others
    the value does not change.
    """

    def __init__(self, earlier: float):
        """`earlier` are the seconds of the earlier sessions, which a checkpoint stores."""
        self.seconds, self._start = earlier, monotonic() - earlier

    def update(self) -> None:
        """Count the time since the last update."""
        if processes.is_first():
            self.seconds = monotonic() - self._start


@dataclass
class Interval:
    """Time, target tokens and steps for which throughput is measured."""

    started: float
    tokens: float = 0.0
    steps: int = 0


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
        self._run, self._config, self._stopwatch = run, config, stopwatch
        self._first, self._nonfinite = step + 1, NonfiniteReport(run, config, locate)
        self._durations: list[float] = []  # of single steps, seconds
        self._interval = Interval(perf_counter())
        self._last_step = self._interval.started  # its end, or the restart since

    def restart(self) -> None:
        """Restart the measurement of throughput, after compilation or an evaluation."""
        self._interval = Interval(perf_counter())
        self._last_step = self._interval.started

    def report(self, step: int, metrics: Metrics, position: DataPosition) -> None:
        """Report `step`, on the batch at `position`; waits until the step has ended.

        `metrics` are those of the step and its learning rate. A step whose loss or gradient is not
        finite has changed no parameter. Raises UserError(DIVERGED) after more than
        training.skip_nonfinite such steps in a row.
        """
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not is_finite(values):
            self._nonfinite.add(step, values, position)
            return
        self._nonfinite.end_row()
        interval, now = self._interval, perf_counter()
        interval.tokens += values.pop("tokens")
        interval.steps += 1
        seconds = now - interval.started
        self._measure(step, now)
        values["tokens_per_second"] = interval.tokens / seconds
        left = self._left(step, seconds / interval.steps)
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
                f"of {self._config.num_steps:,} steps at {seconds:.2g} s each, without the "
                "evaluations"
            )

    def _left(self, step: int, seconds_per_step: float) -> str:
        """The duration of the remaining steps, "at most" if max_epochs may end training earlier."""
        left = seconds_left(self._config, step, self._stopwatch.seconds, seconds_per_step)
        return ("at most " if self._config.max_epochs else "") + format_duration(left)


def with_profile(train_step: TrainStep, steps: str, directory: Path, step: int) -> TrainStep:
    """`train_step` that writes a trace of `steps` ("10:12", inclusive) to `directory`.

    `step` is the number of steps done before. Returns `train_step` itself if `steps` is "", and in
    all processes but process 0. A trace that cannot be written is lost, with a warning. Raises
    UserError(OUTPUT) if `directory` is a link.
    """
    if not steps or not processes.is_first():
        return train_step
    refuse_link(directory, "set training.profile to nothing")
    first, last = profile_steps(steps)
    tracing = False

    def traced(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal step, tracing
        step += 1
        if first <= step <= last and not tracing:
            jax.block_until_ready(state)  # earlier steps are not part of the trace
            with profiling():
                jax.profiler.start_trace(str(directory))
                tracing = True
        result = train_step(state, batch)
        if step == last and tracing:
            jax.block_until_ready(result)
            with profiling():
                jax.profiler.stop_trace()
            tracing = False
        return result

    return traced


@contextmanager
def profiling() -> Iterator[None]:
    """The body starts or stops the profiler; training continues if it cannot write."""
    with warn_on_write_error("profile"):
        try:
            yield
        except jax.errors.JaxRuntimeError as error:  # a full disk too
            raise OSError(str(error)) from error

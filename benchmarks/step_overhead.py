"""Benchmark: the share of training time outside the compiled step, and the cost of a checkpoint.

    python benchmarks/step_overhead.py --config=configs/small.py --config.data.valid= \\
        --config.data.corpus=text:train.en,train.de [--profile=50] [--rounds=4] [--steps=25]

1. A profile of --profile steps of the trainer's loop, without evaluations and checkpoints. A
   thread waits for the results of each step and records the time. The program of a step runs from
   the return of its call, or from the end of the step before if that is later, to its results. All
   other time is outside: the call itself, the next batch, the report. Wall time is counted from
   results to results. Prints one line per step and the share of all of them.
2. Three loops of the same steps alternate, --rounds times: the compiled step alone on one batch,
   waiting for each; the trainer's loop; the trainer's loop with a checkpoint after its first step.

Prints Markdown tables; recorded in benchmarks/step_overhead.md.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq import train
from seq2seq.runtime.command import run_command
from seq2seq.runtime.devices import keep_freed_memory
from seq2seq.runtime.signals import StopFlag
from seq2seq.storage.run import Run
from seq2seq.training.config_flag import define_config, parsed_config
from seq2seq.training.trainer import BatchStream, Trainer

WARM_UP = 3


class StepTimes(NamedTuple):
    """The times of a step, in seconds: from the results of the step before to its results, and the
    part of them in which its program ran."""

    wall: float
    program: float


def main() -> None:
    f = flags.FLAGS
    config = parsed_config(f)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "run")
        trainer = train.resume_or_start(config, run, StopFlag(), None, f.compilation_cache)
        stream = trainer.batches.iterate(trainer.position, trainer._place)
        trainer._prepare_steps()
        do_steps(trainer, stream, WARM_UP)
        print_profile(profiled(trainer, stream, f.profile))
        print_loops(measure(trainer, stream, f.rounds, f.steps))
        stream.close()
        trainer.batches.close()
        trainer.checkpoints.close()
        run.close()


def do_steps(trainer: Trainer, stream: BatchStream, steps: int) -> None:
    """The trainer's loop without evaluations and checkpoints, to the end of the last step."""
    for _ in range(steps):
        trainer._continues(stream)
        trainer._do_step(stream)
        trainer.stopwatch.update()
    trainer._finish_step()


def profiled(trainer: Trainer, stream: BatchStream, steps: int) -> list[StepTimes]:
    """The times of each step of the trainer's loop."""
    train_step, calls = trainer._train_step, []

    def end(results) -> float:
        jax.block_until_ready(results)
        return time.perf_counter()

    with ThreadPoolExecutor(1) as waiter:

        def timed(state, batch):
            state, metrics = train_step(state, batch)
            # Only the metrics: the state is donated to the next step.
            calls.append((time.perf_counter(), waiter.submit(end, metrics)))
            return state, metrics

        trainer._train_step = timed
        last_end = time.perf_counter()
        do_steps(trainer, stream, steps)
    trainer._train_step = train_step
    times = []
    for returned, ended in calls:
        times.append(StepTimes(ended.result() - last_end, ended.result() - max(returned, last_end)))
        last_end = ended.result()
    return times


def print_profile(times: list[StepTimes]) -> None:
    print("| step | wall time, ms | in the compiled step, ms | outside |\n|---|---|---|---|")
    total = StepTimes(*map(sum, zip(*times, strict=True)))
    for name, (wall, program) in [*enumerate(times, 1), ("all", total)]:
        print(f"| {name} | {1e3 * wall:.1f} | {1e3 * program:.1f} | {1 - program / wall:.2%} |")


def print_loops(seconds: dict[str, list[float]]) -> None:
    alone = statistics.median(seconds["the compiled step alone"])
    print("\n| loop | ms per step, median (range) | outside the step |\n|---|---|---|")
    for name, times in seconds.items():
        low, middle, high = (1000 * x for x in (min(times), statistics.median(times), max(times)))
        share = 1 - 1000 * alone / middle
        print(f"| {name} | {middle:.1f} ({low:.1f}–{high:.1f}) | {share:.1%} |")


def measure(
    trainer: Trainer, stream: BatchStream, rounds: int, steps: int
) -> dict[str, list[float]]:
    """The seconds per step of each loop, in each round."""
    _, batch, _ = next(stream)

    def alone():
        for _ in range(steps):
            trainer.state, metrics = trainer._train_step(trainer.state, batch)
            jax.block_until_ready((trainer.state, metrics))

    def loop():
        do_steps(trainer, stream, steps)

    def saving():
        do_steps(trainer, stream, 1)
        trainer._start_save()
        do_steps(trainer, stream, steps - 1)
        trainer._finish_save()

    loops: dict[str, Callable[[], None]] = {
        "the compiled step alone": alone,
        "the trainer's loop": loop,
        f"the trainer's loop, a checkpoint in {steps} steps": saving,
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, function in loops.items():
            start = time.perf_counter()
            function()
            seconds[name].append((time.perf_counter() - start) / steps)
    return seconds


def define_flags() -> None:
    define_config(sys.argv)
    flags.DEFINE_integer("profile", 50, "Steps of the profile.", lower_bound=1)
    flags.DEFINE_integer("rounds", 4, "Rounds of all loops.", lower_bound=1)
    flags.DEFINE_integer("steps", 25, "Steps of each loop in each round.", lower_bound=1)


if __name__ == "__main__":
    keep_freed_memory()
    run_command(define_flags, main)

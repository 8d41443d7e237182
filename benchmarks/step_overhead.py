"""Benchmark: the share of training time outside the compiled step, and the cost of a checkpoint.

    python benchmarks/step_overhead.py --config=configs/small.py --config.data.valid= \\
        --config.data.corpus=text:train.en,train.de [--rounds=4] [--steps=25]
Three loops of the same steps alternate: the compiled step alone on one batch, waiting for each; the
trainer's loop; the trainer's loop with a checkpoint after its first step. Prints a Markdown table;
recorded in benchmarks/step_overhead.md.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

import train
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.signals import StopFlag
from storage.run import Run
from training.config_flag import define_config, parsed_config
from training.trainer import Trainer

WARM_UP = 3


def main() -> None:
    f = flags.FLAGS
    config = parsed_config(f)
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "run")
        data = train.prepare_data(config, run, overwrite=False)
        prepare_jax(f.compilation_cache)
        trainer = Trainer(config, run, data, None, StopFlag())
        seconds = measure(trainer, f.rounds, f.steps)
        trainer.checkpoints.close()
        run.close()
    alone = statistics.median(seconds["the compiled step alone"])
    print("| loop | ms per step, median (range) | outside the step |\n|---|---|---|")
    for name, times in seconds.items():
        low, middle, high = (1000 * x for x in (min(times), statistics.median(times), max(times)))
        share = 1 - 1000 * alone / middle
        print(f"| {name} | {middle:.1f} ({low:.1f}–{high:.1f}) | {share:.1%} |")


def measure(trainer: Trainer, rounds: int, steps: int) -> dict[str, list[float]]:
    """The seconds per step of each loop, in each round."""
    stream = trainer.batches.iterate(trainer.position, trainer._place)
    trainer._prepare_steps()
    for _ in range(WARM_UP):
        trainer._do_step(*next(stream))
    _, batch, _ = next(stream)

    def alone():
        for _ in range(steps):
            trainer.state, metrics = trainer._train_step(trainer.state, batch)
            jax.block_until_ready((trainer.state, metrics))

    def loop(save=False):
        for i in range(steps):
            trainer._do_step(*next(stream))
            if save and i == 0:
                trainer._finish_step()
                trainer._start_save()
        trainer._finish_step()
        trainer._finish_save()

    loops = {
        "the compiled step alone": alone,
        "the trainer's loop": loop,
        f"the trainer's loop, a checkpoint in {steps} steps": lambda: loop(save=True),
    }
    seconds = {name: [] for name in loops}
    for _ in range(rounds):
        for name, function in loops.items():
            trainer._finish_step()
            start = time.perf_counter()
            function()
            seconds[name].append((time.perf_counter() - start) / steps)
    stream.close()
    return seconds


def define_flags() -> None:
    define_config(sys.argv)
    flags.DEFINE_integer("rounds", 4, "Rounds of all loops.", lower_bound=1)
    flags.DEFINE_integer("steps", 25, "Steps of each loop in each round.", lower_bound=1)


if __name__ == "__main__":
    run_command(define_flags, main)

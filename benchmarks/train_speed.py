"""Training speed of the full step (forward, backward, update), variants alternating in one run.

    python benchmarks/train_speed.py [--size=small|base|korean] [--rounds=3]
Prints a Markdown table of useful target tokens a second; benchmarks/train_speed.md keeps it.
Each measurement is its own process, since devices and the allocator are set before JAX starts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from absl import app, flags

# d_model, d_ff, heads, layers, vocabulary, rows of a step, tokens of a row on each side
SIZES = {
    "korean": (128, 512, 4, 2, 1500, 16, 64),
    "small": (256, 1024, 4, 3, 8000, 64, 32),
    "base": (512, 2048, 8, 6, 8000, 64, 32),
}
VARIANTS = {
    "one device": {"devices": 1, "keep": False},
    "one device, freed memory kept": {"devices": 1, "keep": True},
    "a device a core": {"devices": 0, "keep": False},
    "a device a core, freed memory kept": {"devices": 0, "keep": True},
}
WARM_UP, STEPS = 2, 10


def measure(size: str, devices: int, keep: bool) -> float:
    """Target tokens a second of our step: the median of STEPS."""
    from training import command

    if not keep:
        command.keep_freed_memory = lambda: None
    command.prepare_jax("off", devices)
    import jax
    import numpy as np

    from data.batches import Batch
    from model.config import ModelConfig
    from model.transformer import Transformer
    from training.config import TrainingConfig
    from training.optimizer import make_optimizer
    from training.step import init_state, make_train_step, pmap_train_step, split_rows

    d_model, d_ff, heads, layers, vocab, rows, length = SIZES[size]
    model = Transformer(ModelConfig(
        source_vocab_size=vocab, target_vocab_size=vocab, d_model=d_model, d_ff=d_ff,
        num_heads=heads, num_layers=layers, max_length=length,
    ))
    training = TrainingConfig()
    optimizer = make_optimizer(training, d_model)
    step = pmap_train_step(make_train_step(model, optimizer, training))
    state = init_state(model, optimizer, training)
    random = np.random.default_rng(0)
    ids = random.integers(4, vocab, (3, rows, length)).astype(np.int32)
    ones = np.ones((rows, length), np.int32)
    along = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    batch = Batch(ids[0], ones, along, ids[1], ids[2], ones, along,
                  np.arange(rows, dtype=np.int32))
    batch = split_rows(batch, jax.local_device_count(), 1)
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        metrics["loss"].block_until_ready()
        seconds.append(time.perf_counter() - start)
    return rows * length / statistics.median(seconds[WARM_UP:])


def main(_):
    f = flags.FLAGS
    if f.variant:
        print(json.dumps(measure(f.size, **VARIANTS[f.variant])))
        return
    speeds = {name: [] for name in VARIANTS}
    for _ in range(f.rounds):
        for name, seen in speeds.items():
            command = [sys.executable, __file__, f"--size={f.size}", f"--variant={name}"]
            root = str(Path(__file__).parent.parent)
            done = subprocess.run(command, check=True, capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": root})
            seen.append(json.loads(done.stdout.splitlines()[-1]))
    first = statistics.median(next(iter(speeds.values())))
    print(f"| {f.size} | target tokens/s, median of {f.rounds} (range) | ratio |\n|---|---|---|")
    for name, seen in speeds.items():
        middle = statistics.median(seen)
        print(f"| {name} | {middle:,.0f} ({min(seen):,.0f}–{max(seen):,.0f}) | "
              f"{middle / first:.2f} |")


if __name__ == "__main__":
    flags.DEFINE_enum("size", "small", SIZES, "Which model and batch.")
    flags.DEFINE_integer("rounds", 3, "How often each variant is measured, alternating.", 1)
    flags.DEFINE_string("variant", "", "Measure this one here (the benchmark calls itself).")
    app.run(main)

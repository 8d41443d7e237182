"""Benchmark: training speed of the full step (forward, backward, update), against PyTorch.

    python benchmarks/train_speed.py [--size=small|base|korean] [--rounds=3] [--variants="ours;HF"]
Prints a Markdown table of target tokens per second and the share of XLA's float32 matmul peak,
which is measured in the same run; recorded in benchmarks/train_speed.md. Variants alternate; each
measurement is a process of its own, since devices and the allocator are set before JAX starts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.variants import chosen
from seq2seq.cli.command import run_command
from seq2seq.runtime.errors import CONFIGURATION, UserError

# d_model, d_ff, heads, layers, vocabulary, rows of a step, tokens of a row on each side
SIZES = {
    "korean": (128, 512, 4, 2, 1500, 16, 64),
    "small": (256, 1024, 4, 3, 8000, 64, 32),
    "base": (512, 2048, 8, 6, 8000, 64, 32),
}
# Variant → the function that measures it, and its arguments. PyTorch needs [interop].
PEAK = "XLA: one large matmul"
VARIANTS = {
    PEAK: ("matmul", {}),
    "ours: one device": ("ours", {"devices": 1, "keep": False}),
    "ours: one device, freed memory kept": ("ours", {"devices": 1, "keep": True}),
    "ours: one device per core": ("ours", {"devices": 0, "keep": False}),
    "ours: one device per core, freed memory kept (train.py)": ("ours", {}),
    "PyTorch nn.Transformer": ("torch", {}),
    "HF MarianMT": ("torch", {"marian": True}),
    "ours, mixed (train.py)": ("ours", {"dtype": "mixed"}),
    "ours, bfloat16 (train.py)": ("ours", {"dtype": "bfloat16"}),
    "PyTorch nn.Transformer, bfloat16 autocast": ("torch", {"autocast": True}),
    "HF MarianMT, bfloat16 autocast": ("torch", {"marian": True, "autocast": True}),
    "PyTorch nn.Transformer, torch.compile": ("torch", {"compiled": True}),
    "PyTorch nn.Transformer, torch.compile, bfloat16 autocast": (
        "torch",
        {"compiled": True, "autocast": True},
    ),
    "HF MarianMT, torch.compile, bfloat16 autocast": (
        "torch",
        {"marian": True, "compiled": True, "autocast": True},
    ),
}
WARM_UP, STEPS = 3, 12


def config_of(size: str, **options):
    """The ModelConfig of a size."""
    from seq2seq.model.config import ModelConfig

    d_model, d_ff, heads, layers, vocab, _, length = SIZES[size]
    return ModelConfig(
        source_vocab_size=vocab,
        target_vocab_size=vocab,
        d_model=d_model,
        d_ff=d_ff,
        num_heads=heads,
        num_layers=layers,
        max_length=length,
        **options,
    )


def batch_of(size: str):
    """Random rows without padding, one pair in each."""
    from benchmarks.parts.training import packed_batch

    rows, length = SIZES[size][-2:]
    return packed_batch(config_of(size), rows, length, length)


def step_flops(size: str) -> float:
    """Floating-point operations of the matmuls of a step."""
    from benchmarks.parts.counts import training_flops

    rows, length = SIZES[size][-2:]
    return rows * training_flops(config_of(size), length, length)


def matmul(size: str) -> float:
    """Seconds for `step_flops` at the speed of XLA's fastest large float32 matmul."""
    from seq2seq.runtime.devices import keep_freed_memory, prepare_jax

    keep_freed_memory()
    prepare_jax("off", 1)
    import jax
    import jax.numpy as jnp

    peak = 0.0
    for m, k, n in ((2048, 2048, 2048), (2048, 512, 8000), (4096, 1024, 4096)):
        a, b = jnp.ones((m, k)), jnp.ones((k, n))
        dot = jax.jit(jnp.dot)
        seconds = median_seconds(lambda dot=dot, a=a, b=b: dot(a, b).block_until_ready())
        peak = max(peak, 2 * m * k * n / seconds)
    return step_flops(size) / peak


def median_seconds(step) -> float:
    """The median seconds of a call of `step`, which must block until its result is ready."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def ours(size: str, devices: int = 0, keep: bool = True, dtype: str = "float32") -> float:
    """Seconds per step of train.py."""
    from seq2seq.runtime.devices import keep_freed_memory, prepare_jax

    if keep:
        keep_freed_memory()
    prepare_jax("off", devices)
    from benchmarks.parts.training import FullStep

    full_step = FullStep(config_of(size, dtype=dtype))
    batch = full_step.place(batch_of(size))
    return median_seconds(lambda: full_step(batch).block_until_ready())


def torch(size: str, marian: bool = False, autocast: bool = False, compiled: bool = False) -> float:
    """Seconds per step in PyTorch: tied embeddings, dropout 0.1, clipping, Adam."""
    import torch

    from benchmarks.parts.peers import marian_model, torch_transformer
    from benchmarks.parts.training_peer import torch_step

    torch.set_num_threads(os.cpu_count())
    config, length, batch = config_of(size), SIZES[size][-1], batch_of(size)
    if marian:
        model = marian_model(config, use_cache=False)

        def logits(source, target):
            return model(input_ids=source, decoder_input_ids=target).logits

    else:
        model, logits = torch_transformer(config, length)
    if compiled:
        logits = torch.compile(logits, dynamic=False)
    step = torch_step(model, logits, "cpu", autocast)
    ids = [torch.from_numpy(x).long() for x in (batch.source, batch.decoder_input, batch.labels)]
    return median_seconds(lambda: step(*ids))


def measured(f, name: str) -> float | None:
    """Target tokens per second of a variant in a new process; None if a package is missing."""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, __file__, f"--size={f.size}", f"--variant={name}"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if "ModuleNotFoundError" not in done.stderr:
        raise RuntimeError(f"{name}: {done.stderr}")
    return None


def print_table(f, speeds: dict[str, list[float]]) -> None:
    """Print the peak and a row for each variant."""
    rows, length = SIZES[f.size][-2:]
    giga = step_flops(f.size) / (rows * length) / 1e9  # per target token
    peak = statistics.median(speeds.pop(PEAK))
    first = statistics.median(next(iter(speeds.values())))
    print(f"{PEAK}: {peak * giga:,.0f} GFLOP/s; a step: {giga * rows * length:,.0f} GFLOP\n")
    print(
        f"| {f.size} | target tokens/s, median of {f.rounds} (range) | ratio | "
        "of the float32 peak |"
    )
    print("|---|---|---|---|")
    for name, rates in speeds.items():
        middle = statistics.median(rates)
        print(
            f"| {name} | {middle:,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) | "
            f"{middle / first:.2f} | {middle / peak:.0%} |"
        )


def main() -> None:
    f = flags.FLAGS
    if f.variant:
        program, arguments = VARIANTS[f.variant]
        seconds = {"ours": ours, "torch": torch, "matmul": matmul}[program](f.size, **arguments)
        rows, length = SIZES[f.size][-2:]
        print(json.dumps(rows * length / seconds))
        return
    names = chosen([name for name in VARIANTS if name != PEAK], f.variants)
    speeds = {name: [] for name in (PEAK, *names)}
    for _ in range(f.rounds):
        for name, rates in speeds.items():
            rate = measured(f, name)
            if rate is not None:
                rates.append(rate)
    measured_speeds = {name: rates for name, rates in speeds.items() if rates}
    if len(measured_speeds) < 2:
        raise UserError(CONFIGURATION, f"no package of {'; '.join(names)} is installed")
    print_table(f, measured_speeds)


def define_flags() -> None:
    flags.DEFINE_enum("size", "small", SIZES, "Size of the model and the batch.")
    flags.DEFINE_integer("rounds", 3, "Measurements of each variant, alternating.", 1)
    flags.DEFINE_string(
        "variants", "", "Only variants whose name contains one of these strings, separated by ;."
    )
    flags.DEFINE_string("variant", "", "Measure this variant in this process (used internally).")


if __name__ == "__main__":
    run_command(define_flags, main)

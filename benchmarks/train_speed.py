"""Training speed of the full step (forward, backward, update), variants alternating in one run.

    python benchmarks/train_speed.py [--size=small|base|korean] [--rounds=3] [--variants="ours;HF"]
Prints a Markdown table of useful target tokens a second and the share of XLA's float32 matmul peak,
which it measures too; benchmarks/train_speed.md keeps it.
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
# What each variant is, and its arguments; peers are there where they are installed ([interop]).
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
}
WARM_UP, STEPS = 3, 12


def ids_of(size: str):
    """Source, decoder input and labels [3, rows, length]: random, nothing padded."""
    import numpy as np

    _, _, _, _, vocab, rows, length = SIZES[size]
    return np.random.default_rng(0).integers(4, vocab, (3, rows, length))


def step_flops(size: str) -> float:
    """Floating-point operations of the matmuls of a step; the backward pass takes two for each."""
    d_model, d_ff, _, layers, vocab, rows, length = SIZES[size]
    attention = 4 * d_model**2 + 2 * length * d_model  # projections; scores and weighted values
    feed_forward = 2 * d_model * d_ff
    a_token = layers * (3 * attention + 2 * feed_forward) + d_model * vocab
    return 3 * 2 * rows * length * a_token


def matmul(size: str) -> float:
    """Seconds that `step_flops` would take at the speed of XLA's best large float32 matmul."""
    from runtime.devices import keep_freed_memory, prepare_jax

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
    """The median time of a call of `step`, which must wait for its result."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def ours(size: str, devices: int = 0, keep: bool = True, dtype: str = "float32") -> float:
    """Seconds of a step of train.py."""
    from runtime.devices import keep_freed_memory, prepare_jax

    if keep:
        keep_freed_memory()
    prepare_jax("off", devices)
    import jax
    import numpy as np

    from data.batches import Batch
    from model.config import ModelConfig
    from model.transformer import Transformer
    from storage.config import TrainingConfig
    from training.optimizer import make_optimizer
    from training.step import init_state, make_train_step, pmap_train_step, split_rows

    d_model, d_ff, heads, layers, vocab, rows, length = SIZES[size]
    model = Transformer(
        ModelConfig(
            source_vocab_size=vocab,
            target_vocab_size=vocab,
            d_model=d_model,
            d_ff=d_ff,
            num_heads=heads,
            num_layers=layers,
            max_length=length,
            dtype=dtype,
        )
    )
    training = TrainingConfig()
    optimizer = make_optimizer(training, d_model)
    train_step = pmap_train_step(make_train_step(model, optimizer, training))
    state = init_state(model, optimizer, training)
    source, target, labels = ids_of(size).astype(np.int32)
    ones = np.ones((rows, length), np.int32)
    along = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    batch = Batch(source, ones, along, target, labels, ones, along, np.arange(rows, dtype=np.int32))
    batch = split_rows(batch, jax.local_device_count(), 1)

    def step():
        nonlocal state
        state, metrics = train_step(state, batch)
        metrics["loss"].block_until_ready()

    return median_seconds(step)


def torch(size: str, marian: bool = False, autocast: bool = False) -> float:
    """Seconds of the same step in PyTorch: tied embeddings, dropout 0.1, clipping, Adam."""
    import torch
    from torch import nn

    torch.set_num_threads(os.cpu_count())
    d_model, d_ff, heads, layers, vocab, rows, length = SIZES[size]
    source, target, labels = torch.from_numpy(ids_of(size))
    if marian:
        from transformers import MarianConfig, MarianMTModel

        model = MarianMTModel(
            MarianConfig(
                vocab_size=vocab,
                d_model=d_model,
                encoder_layers=layers,
                decoder_layers=layers,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                encoder_ffn_dim=d_ff,
                decoder_ffn_dim=d_ff,
                dropout=0.1,
                activation_function="relu",
                pad_token_id=0,
                decoder_start_token_id=1,
                eos_token_id=2,
                max_position_embeddings=length,
                scale_embedding=True,
                use_cache=False,
            )
        )

        def logits():
            return model(input_ids=source, decoder_input_ids=target).logits
    else:
        model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(vocab, d_model),
                "transformer": nn.Transformer(
                    d_model, heads, layers, layers, d_ff, dropout=0.1, batch_first=True
                ),
            }
        )
        drop, causal = nn.Dropout(0.1), nn.Transformer.generate_square_subsequent_mask(length)
        positions = torch.randn(length, d_model)

        def logits():
            embedded = [
                drop(model["embedding"](x) * d_model**0.5 + positions) for x in (source, target)
            ]
            x = model["transformer"](*embedded, tgt_mask=causal, tgt_is_causal=True)
            return x @ model["embedding"].weight.T

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = criterion(logits().reshape(-1, vocab), labels.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return median_seconds(step)


def main(_):
    f = flags.FLAGS
    if f.variant:
        what, arguments = VARIANTS[f.variant]
        seconds = {"ours": ours, "torch": torch, "matmul": matmul}[what](f.size, **arguments)
        rows, length = SIZES[f.size][-2:]
        print(json.dumps(rows * length / seconds))
        return
    wanted = [
        name
        for name in VARIANTS
        if name == PEAK or any(part in name for part in f.variants.split(";"))
    ]
    speeds = {name: [] for name in wanted}
    for _ in range(f.rounds):
        for name, seen in speeds.items():
            command = [sys.executable, __file__, f"--size={f.size}", f"--variant={name}"]
            root = str(Path(__file__).parent.parent)
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": root},
            )
            if done.returncode == 0:
                seen.append(json.loads(done.stdout.splitlines()[-1]))
            elif "ModuleNotFoundError" not in done.stderr:
                raise RuntimeError(f"{name}: {done.stderr}")
    speeds = {name: seen for name, seen in speeds.items() if seen}
    rows, length = SIZES[f.size][-2:]
    giga = step_flops(f.size) / (rows * length) / 1e9  # of a target token
    peak = statistics.median(speeds.pop(PEAK))
    first = statistics.median(next(iter(speeds.values())))
    print(f"{PEAK}: {peak * giga:,.0f} GFLOP/s; a step: {giga * rows * length:,.0f} GFLOP\n")
    print(
        f"| {f.size} | target tokens/s, median of {f.rounds} (range) | ratio | "
        "of the float32 peak |"
    )
    print("|---|---|---|---|")
    for name, seen in speeds.items():
        middle = statistics.median(seen)
        print(
            f"| {name} | {middle:,.0f} ({min(seen):,.0f}–{max(seen):,.0f}) | "
            f"{middle / first:.2f} | {middle / peak:.0%} |"
        )


if __name__ == "__main__":
    flags.DEFINE_enum("size", "small", SIZES, "Which model and batch.")
    flags.DEFINE_integer("rounds", 3, "How often each variant is measured, alternating.", 1)
    flags.DEFINE_string("variants", "", "Only those whose name has one of these parts.")
    flags.DEFINE_string("variant", "", "Measure this one here (the benchmark calls itself).")
    app.run(main)

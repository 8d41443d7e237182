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

from absl import app, flags

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
}
WARM_UP, STEPS = 3, 12


def ids_of(size: str):
    """Source, decoder input and labels [3, rows, length]: random ids without padding."""
    import numpy as np

    _, _, _, _, vocab, rows, length = SIZES[size]
    return np.random.default_rng(0).integers(4, vocab, (3, rows, length))


def step_flops(size: str) -> float:
    """Floating-point operations of the matmuls of a step; the backward pass takes twice those of
    the forward pass."""
    d_model, d_ff, _, layers, vocab, rows, length = SIZES[size]
    attention = 4 * d_model**2 + 2 * length * d_model  # projections; scores and weighted values
    feed_forward = 2 * d_model * d_ff
    a_token = layers * (3 * attention + 2 * feed_forward) + d_model * vocab
    return 3 * 2 * rows * length * a_token


def matmul(size: str) -> float:
    """Seconds for `step_flops` at the speed of XLA's fastest large float32 matmul."""
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
    """The median seconds of a call of `step`, which must block until its result is ready."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def ours(size: str, devices: int = 0, keep: bool = True, dtype: str = "float32") -> float:
    """Seconds per step of train.py."""
    from runtime.devices import keep_freed_memory, prepare_jax

    if keep:
        keep_freed_memory()
    prepare_jax("off", devices)
    import jax
    import numpy as np

    from data.packing import Batch
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
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    indices = np.arange(rows, dtype=np.int32)
    batch = Batch(source, ones, positions, target, labels, ones, positions, indices)
    batch = split_rows(batch, jax.local_device_count(), 1)

    def step():
        nonlocal state
        state, metrics = train_step(state, batch)
        metrics["loss"].block_until_ready()

    return median_seconds(step)


def torch(size: str, marian: bool = False, autocast: bool = False) -> float:
    """Seconds per step in PyTorch: tied embeddings, dropout 0.1, clipping, Adam."""
    import torch
    from torch import nn

    torch.set_num_threads(os.cpu_count())
    source, target, labels = torch.from_numpy(ids_of(size))
    model, logits = marian_model(size) if marian else torch_transformer(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs = logits(source, target)
            loss = criterion(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return median_seconds(step)


def marian_model(size: str):
    """(module, function of source and target that gives logits) of MarianMT of transformers."""
    from transformers import MarianConfig, MarianMTModel

    d_model, d_ff, heads, layers, vocab, _, length = SIZES[size]
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
    return model, lambda source, target: model(input_ids=source, decoder_input_ids=target).logits


def torch_transformer(size: str):
    """(module, function of source and target that gives logits) of nn.Transformer."""
    import torch
    from torch import nn

    d_model, d_ff, heads, layers, vocab, _, length = SIZES[size]
    transformer = nn.Transformer(
        d_model, heads, layers, layers, d_ff, dropout=0.1, batch_first=True
    )
    model = nn.ModuleDict({"embedding": nn.Embedding(vocab, d_model), "transformer": transformer})
    dropout = nn.Dropout(0.1)
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    positions = torch.randn(length, d_model)

    def logits(source, target):
        embedded = [
            dropout(model["embedding"](x) * d_model**0.5 + positions) for x in (source, target)
        ]
        x = transformer(*embedded, tgt_mask=causal, tgt_is_causal=True)
        return x @ model["embedding"].weight.T

    return model, logits


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


def main(_):
    f = flags.FLAGS
    if f.variant:
        program, arguments = VARIANTS[f.variant]
        seconds = {"ours": ours, "torch": torch, "matmul": matmul}[program](f.size, **arguments)
        rows, length = SIZES[f.size][-2:]
        print(json.dumps(rows * length / seconds))
        return
    parts = f.variants.split(";")
    chosen = [name for name in VARIANTS if name == PEAK or any(part in name for part in parts)]
    speeds = {name: [] for name in chosen}
    for _ in range(f.rounds):
        for name, rates in speeds.items():
            rate = measured(f, name)
            if rate is not None:
                rates.append(rate)
    print_table(f, {name: rates for name, rates in speeds.items() if rates})


if __name__ == "__main__":
    flags.DEFINE_enum("size", "small", SIZES, "Size of the model and the batch.")
    flags.DEFINE_integer("rounds", 3, "Measurements of each variant, alternating.", 1)
    flags.DEFINE_string(
        "variants", "", "Only variants whose name contains one of these strings, separated by ;."
    )
    flags.DEFINE_string("variant", "", "Measure this variant in this process (used internally).")
    app.run(main)

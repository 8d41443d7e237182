"""Part: the training step of PyTorch's nn.Transformer with bfloat16 autocast and torch.compile.

Its rows are single pairs of PAIR + PAIR tokens, so it computes no attention between pairs.
"""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.parts.measuring import call_seconds, doublings, growing_batches
from benchmarks.parts.peers import peer_device, torch_transformer
from benchmarks.parts.sizes import PAIR, Sizes
from benchmarks.parts.training import packed_batch


def torch_step(
    model: Any, logits: Callable[..., Any], device: str, autocast: bool
) -> Callable[..., Any]:
    """(source, target, labels) → loss: forward, backward, clipping and Adam."""
    import torch
    from torch import nn

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()

    def step(source, target, labels):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            outputs = logits(source, target)
            loss = criterion(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def torch_training_rows(sizes: Sizes, deadline: float, size: str) -> Iterator[dict[str, Any]]:
    """A row for each batch size, on one device."""
    import torch

    training, device = sizes.training[size], peer_device(torch.cuda.is_available(), sizes.platform)
    pair = min(PAIR, training.length)
    model, logits = torch_transformer(training.model, pair, device)
    compiled = device == "cuda"  # on a CPU compilation takes longer than the tiny measurement
    if compiled:
        logits = torch.compile(logits, dynamic=False)
    step = torch_step(model, logits, device, autocast=True)

    def measure(rows: int) -> dict[str, Any]:
        pairs = rows * training.length // pair
        batch = packed_batch(training.model, pairs, pair, pair)
        ids = [torch.from_numpy(x).long().to(device) for x in
               (batch.source, batch.decoder_input, batch.labels)]  # fmt: skip
        wait = torch.cuda.synchronize if compiled else lambda: None
        if compiled:
            torch.cuda.reset_peak_memory_stats()
        seconds = call_seconds({"": lambda: step(*ids)}, sizes.seconds, lambda _: wait())[""]
        return {
            "size": size, "dtype": "bfloat16", "tokens": pairs * pair,
            "program": f"PyTorch nn.Transformer{', torch.compile' if compiled else ''} ({device})",
            "tokens_per_second": pairs * pair / seconds,
            "memory": torch.cuda.max_memory_allocated() if compiled else None,
        }  # fmt: skip

    sizes_of_batches = doublings(training.first_rows, training.most_rows)
    yield from growing_batches(sizes_of_batches, measure, "tokens_per_second", deadline)

"""The losses of fine-tuning: those that a run has recorded, and those of transformers and torch's
Adam for the same batches."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.batching.packing import Batch
from seq2seq.training.inputs import training_batches
from seq2seq.training.trainer import Trainer

PairIds = tuple[list[int], list[int]]  # source and labels


def losses_of_run(run: Path) -> list[float]:
    """The loss of each step."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["train_loss"] for entry in map(json.loads, lines) if "train_loss" in entry]


def batches_of(trainer: Trainer) -> Iterator[list[PairIds]]:
    """The pairs of each training batch, in the order of the steps."""
    batches = training_batches(trainer.config, trainer.data)
    position = DataPosition()
    while True:
        yield [*pairs_of(batches[position])]
        position = batches.next_position(position)


def pairs_of(batch: Batch) -> Iterator[PairIds]:
    """The token ids of each pair of a packed batch, ends included."""
    for row in range(len(batch.source)):
        source_segments, target_segments = batch.source_segments[row], batch.target_segments[row]
        for segment in range(1, target_segments.max(initial=0) + 1):
            source = batch.source[row][source_segments == segment]
            yield source.tolist(), batch.labels[row][target_segments == segment].tolist()


def losses_of_transformers(
    network, batches: Iterable[list[PairIds]], settings: TrainingConfig
) -> list[float]:
    """The mean loss per target token of each step with torch's Adam."""
    import torch

    def padded(rows: list[list[int]], value: int) -> torch.Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    betas = settings.adam_b1, settings.adam_b2
    optimizer = torch.optim.Adam(
        network.parameters(), settings.learning_rate, betas, settings.adam_epsilon
    )
    losses = []
    for batch in batches:
        sources, labels = map(list, zip(*batch, strict=True))
        mask = padded([[1] * len(source) for source in sources], 0)
        loss = network(padded(sources, 0), mask, labels=padded(labels, -100)).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm)
        optimizer.step()
    return losses

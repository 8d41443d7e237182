"""Benchmark: the losses of ten steps of fine-tuning, ours and those of transformers.

    python benchmarks/fine_tuning_parity.py --shape=t5-small --source=FILE --target=FILE
The weights are random, the vocabulary is that of the first 1,000 pairs of the files, and dropout is
off. Ours is a run of train.py's functions with packed rows; torch's Adam gets the pairs of each of
its batches. Prints a Markdown table. Recorded in docs/MODELS.md.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.pretrained_speed import SHAPES, write_random
from seq2seq import train
from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.batching.packing import Batch
from seq2seq.data.config import DataConfig
from seq2seq.interop.models import open_model
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.command import run_command
from seq2seq.runtime.lines import text_lines
from seq2seq.runtime.path_flags import define_path
from seq2seq.runtime.signals import StopFlag
from seq2seq.storage.config import Config, TrainingConfig
from seq2seq.storage.run import Run
from seq2seq.training.inputs import training_batches
from seq2seq.training.trainer import Trainer

PAIRS, STEPS, PIECES = 1000, 10, 2000
SETTINGS = TrainingConfig(
    num_steps=STEPS, tokens_per_batch=2048, schedule="constant", learning_rate=1e-4, warmup_steps=1,
    label_smoothing=0.0, log_every=1, checkpoint_every=STEPS, eval_every=STEPS, keep=1,
)  # fmt: skip
PairIds = tuple[list[int], list[int]]  # source and labels


def write_tokenizer(shape: str, lines: list[str], directory: Path) -> None:
    """Train the tokenizer of a family and write it into the directory."""
    if SHAPES[shape][0] == "Bart":
        from tokenizers import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer.train_from_iterator(lines, PIECES, special_tokens=special, show_progress=False)
        tokenizer.save_model(str(directory))
        return
    from sentencepiece import SentencePieceTrainer

    with (directory / "spiece.model").open("wb") as file:
        SentencePieceTrainer.Train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=PIECES,
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
        )  # fmt: skip
    (directory / "tokenizer_config.json").write_text('{"extra_ids": 0}')


def trained(run: Path, directory: Path, corpus: Path) -> Trainer:
    """The trainer of a run that started from the directory, after its last step."""
    data = DataConfig(corpus=f"tsv:{corpus}", valid="", source_length=64, target_length=64)
    has_bias = bool(open_model(directory, "best")[0].model.output_bias)
    freeze = "output_bias" if has_bias else ""  # a constant in transformers
    training = replace(SETTINGS, init_from=str(directory), freeze=freeze)
    config = Config(model=ModelConfig(dropout=0.0), data=data, training=training)
    trainer = train.resume_or_start(config, Run(run), StopFlag(), None)
    train.train(trainer)
    return trainer


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


def main() -> None:
    f = flags.FLAGS
    sides = [list(islice(text_lines(path), PAIRS)) for path in (f.source, f.target)]
    with tempfile.TemporaryDirectory() as temporary:
        directory, run, corpus = (Path(temporary) / name for name in ("model", "run", "pairs.tsv"))
        corpus.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True)), "utf-8")
        write_random(f.shape, directory)
        write_tokenizer(f.shape, [line for side in sides for line in side], directory)
        trainer = trained(run, directory, corpus)
        ours = losses_of_run(run)
        from transformers import AutoModelForSeq2SeqLM

        network = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype="float32").eval()
        theirs = losses_of_transformers(network, islice(batches_of(trainer), STEPS), SETTINGS)
    print(f"| {f.shape}, step | ours | transformers | difference |\n|---|---|---|---|")
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        print(f"| {step} | {a:.5f} | {b:.5f} | {a - b:.0e} |")
    print(f"largest difference: {np.abs(np.subtract(ours, theirs)).max():.1e}")


def define_flags() -> None:
    shapes = [name for name, shape in SHAPES.items() if shape[0] in ("T5", "Bart")]
    flags.DEFINE_enum("shape", "t5-small", shapes, "The shape of the model.")
    define_path("source", None, "A file with one source per line.", required=True)
    define_path("target", None, "Their targets.", required=True)


if __name__ == "__main__":
    run_command(define_flags, main)

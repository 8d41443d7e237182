"""train.py --compile_for: the programs of training for devices that need not be present."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Traced

from seq2seq.compilation.report import (
    Report,
    compiled_report,
    largest_that_fits,
    report_lines,
    shapes_of,
)
from seq2seq.compilation.targets import Target, target_of
from seq2seq.config.tree import Config, has_config, load_config
from seq2seq.data.batching.packing import Batch
from seq2seq.model.kinds import make_model
from seq2seq.runtime.devices import AXIS
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import make_eval_step, sharded_step, split_rows
from seq2seq.training.parameters import parameter_shapes
from seq2seq.training.step import init_state, make_train_step


def print_report(config: Config, run: Path, name: str) -> None:
    """Print what the programs of a training need on the target with this name, line by line. The
    sizes of the vocabulary are those of the run in the directory `run`, if there is one."""
    for line in training_lines(with_sizes_of_run(config, run), target_of(name)):
        print(line, flush=True)


def training_lines(config: Config, target: Target) -> Iterator[str]:
    """The lines of the report on training and evaluation, each as soon as it is known."""
    config = with_vocabulary_sizes(config)
    devices, accumulate = len(target.devices), config.training.accumulate
    rows = -(-config.rows_at_a_time // devices)
    lengths = f"{config.data.source_length} + {config.data.target_length}"
    yield (
        f"training step for {target.name}, {devices} devices: {rows} rows of {lengths} tokens in "
        f"each of {accumulate} micro-batches of a device"
    )

    def report_of(rows: int) -> Report | None:
        return compiled_report(step_program(config, rows, target))

    report = report_of(rows)
    yield from report_lines(report, target)
    target_tokens = devices * accumulate * config.data.target_length  # for each row
    if report is not None:
        rate = rows * target_tokens / report.binding(target)[1]
        yield f"  at most {rate:,.0f} target tokens/s, padding included"
    yield f"evaluation of the loss: {rows} rows of a device"
    yield from report_lines(compiled_report(evaluation_program(config, rows, target)), target)
    yield "the largest batch of the training step:"
    largest = largest_that_fits(report_of, rows, report, target)
    if largest:
        tokens = largest * target_tokens
        yield f"  {largest} rows of a device fit: training.tokens_per_batch={tokens}"
    else:
        yield "  not even one row fits: lower data.source_length and data.target_length"


def with_sizes_of_run(config: Config, run: Path) -> Config:
    """The config with the sizes of the vocabulary of the run in the directory `run`, if there is
    one."""
    if not has_config(run):
        return config
    model = load_config(run / "config.json").model
    source, target = model.source_vocab_size, model.target_vocab_size
    return replace(
        config,
        model=replace(config.model, source_vocab_size=source, target_vocab_size=target),
    )


def with_vocabulary_sizes(config: Config) -> Config:
    """The config of a run that has no vocabulary yet, with the sizes that it asks for."""
    source = config.data.vocab_size
    target = config.data.target_vocab_size or source
    model = replace(
        config.model,
        source_vocab_size=config.model.source_vocab_size or source,
        target_vocab_size=config.model.target_vocab_size or target,
    )
    return replace(config, model=model)


def step_program(config: Config, rows: int, target: Target) -> Traced:
    """The training step on `rows` rows of a micro-batch for each device."""
    model = make_model(config.model)
    optimizer = make_optimizer(config.training, config.model.d_model, config.model.weights_dtype)
    step = make_train_step(model, optimizer, config.training)
    state = jax.eval_shape(partial(init_state, model, optimizer, config.training))
    counts = len(target.devices), config.training.accumulate
    batch = split_rows(empty_rows(config, rows * int(np.prod(counts))), *counts)
    mesh = mesh_of(target)
    return sharded_step(step, mesh, donate_argnums=0).trace(
        shapes_of(state, NamedSharding(mesh, PartitionSpec())),
        shapes_of(batch, NamedSharding(mesh, PartitionSpec(AXIS))),
    )


def evaluation_program(config: Config, rows: int, target: Target) -> Traced:
    """The evaluation of the loss on `rows` rows for each device."""
    model = make_model(config.model)
    step = make_eval_step(model, config.training)
    batch = split_rows(empty_rows(config, rows * len(target.devices)), len(target.devices))
    mesh = mesh_of(target)
    return sharded_step(step, mesh).trace(
        shapes_of(parameter_shapes(config.model), NamedSharding(mesh, PartitionSpec())),
        shapes_of(batch, NamedSharding(mesh, PartitionSpec(AXIS))),
    )


def mesh_of(target: Target) -> Mesh:
    return Mesh(np.array(target.devices), (AXIS,))


def empty_rows(config: Config, rows: int) -> Batch:
    """A batch of padding."""
    source = np.zeros((rows, config.data.source_length), np.int32)
    target = np.zeros((rows, config.data.target_length), np.int32)
    return Batch(
        source, source, source, target, target, target, target, np.arange(rows, dtype=np.int32)
    )

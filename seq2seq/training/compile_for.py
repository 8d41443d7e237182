"""train.py --compile_for: the programs of training for devices that need not be present."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from jax.stages import Traced

from seq2seq.compilation.report import (
    Report,
    compiled_report,
    first_that_fits,
    largest_that_fits,
    report_lines,
    shapes_of,
)
from seq2seq.compilation.targets import Target, target_of
from seq2seq.config.model_parallel import check_model_parallel, larger_values
from seq2seq.config.tree import Config, has_config, load_config
from seq2seq.data.batching.packing import Batch
from seq2seq.model.kinds import make_model
from seq2seq.model.mesh import by_copy, mesh_of, shardings
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import make_eval_step, sharded_step, split_rows
from seq2seq.training.parameters import parameter_shapes
from seq2seq.training.step import make_train_step, state_shapes


def print_report(config: Config, run: Path, name: str) -> None:
    """Print what the programs of a training need on the target with this name, line by line. The
    sizes of the vocabulary are those of the run in the directory `run`, if there is one."""
    for line in training_lines(with_sizes_of_run(config, run), target_of(name)):
        print(line, flush=True)


def training_lines(config: Config, target: Target) -> Iterator[str]:
    """The lines of the report on training and evaluation, each as soon as it is known."""
    config = with_vocabulary_sizes(config)
    devices, accumulate = len(target.devices), config.training.accumulate
    model_parallel = config.training.model_parallel
    check_model_parallel(
        "training.model_parallel", model_parallel, config.model, target.devices_of_host
    )
    copies = devices // model_parallel
    owner = "device" if model_parallel == 1 else "copy of the model"
    rows = -(-config.rows_at_a_time // copies)
    lengths = f"{config.data.source_length} + {config.data.target_length}"
    shared = f", {model_parallel} for each copy of the model" if model_parallel > 1 else ""
    yield (
        f"training step for {target.name}, {devices} devices{shared}: {rows} rows of {lengths} "
        f"tokens in each of {accumulate} micro-batches of a {owner}"
    )

    def report_of(rows: int) -> Report | None:
        return compiled_report(step_program(config, rows, target))

    report = report_of(rows)
    yield from report_lines(report, target)
    target_tokens = copies * accumulate * config.data.target_length  # for each row
    if report is not None:
        rate = rows * target_tokens / report.binding(target)[1]
        yield f"  at most {rate:,.0f} target tokens/s, padding included"
    yield f"evaluation of the loss: {rows} rows of a {owner}"
    yield from report_lines(compiled_report(evaluation_program(config, rows, target)), target)
    yield "the largest batch of the training step:"
    largest = largest_that_fits(report_of, rows, report, target)
    if largest:
        tokens = largest * target_tokens
        yield f"  {largest} rows of a {owner} fit: training.tokens_per_batch={tokens}"
    else:
        yield too_large(config, target)


def too_large(config: Config, target: Target) -> str:
    """The line on a training step that does not fit with one row: the smallest model_parallel with
    which it does."""
    training = config.training

    def report_of(model_parallel: int) -> Report | None:
        divided = replace(config, training=replace(training, model_parallel=model_parallel))
        return compiled_report(step_program(divided, 1, target))

    larger = larger_values(training.model_parallel, [config.model], target.devices_of_host)
    if model_parallel := first_that_fits(report_of, larger, target):
        return (
            f"  not even one row fits; one row fits with training.model_parallel={model_parallel}"
        )
    return "  not even one row fits: lower data.source_length and data.target_length"


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
    """The training step on `rows` rows of a micro-batch for each copy of the model."""
    model = make_model(config.model)
    optimizer = make_optimizer(config.training, config.model.d_model, config.model.weights_dtype)
    step = make_train_step(model, optimizer, config.training)
    state = state_shapes(model, optimizer, config.training)
    copies = len(target.devices) // config.training.model_parallel
    counts = copies, config.training.accumulate
    batch = split_rows(empty_rows(config, rows * int(np.prod(counts))), *counts)
    mesh = mesh_of(target.devices, config.training.model_parallel)
    return sharded_step(step, mesh, donate_argnums=0).trace(
        shapes_of(state, shardings(state, mesh)), shapes_of(batch, by_copy(mesh))
    )


def evaluation_program(config: Config, rows: int, target: Target) -> Traced:
    """The evaluation of the loss on `rows` rows for each copy of the model."""
    model = make_model(config.model)
    step = make_eval_step(model, config.training)
    copies = len(target.devices) // config.training.model_parallel
    batch = split_rows(empty_rows(config, rows * copies), copies)
    mesh = mesh_of(target.devices, config.training.model_parallel)
    params = parameter_shapes(config.model)
    return sharded_step(step, mesh).trace(
        shapes_of(params, shardings(params, mesh)), shapes_of(batch, by_copy(mesh))
    )


def empty_rows(config: Config, rows: int) -> Batch:
    """A batch of padding."""
    source = np.zeros((rows, config.data.source_length), np.int32)
    target = np.zeros((rows, config.data.target_length), np.int32)
    return Batch(
        source, source, source, target, target, target, target, np.arange(rows, dtype=np.int32)
    )

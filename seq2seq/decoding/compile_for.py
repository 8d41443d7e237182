"""decode.py --compile_for: the searches of a job for devices that need not be present."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.stages import Traced

from seq2seq.compilation.report import (
    Report,
    compiled_report,
    exchange_text,
    first_that_fits,
    kernel_lines,
    largest_that_fits,
    memory_line,
    shapes_of,
)
from seq2seq.compilation.targets import Target
from seq2seq.config.model_parallel import check_model_parallel, larger_values
from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.export import export_program
from seq2seq.decoding.engine.programs import on_copies
from seq2seq.decoding.engine.sizes import Machine, sizes_of
from seq2seq.decoding.translator import Translator
from seq2seq.model.inference import inference_variables
from seq2seq.model.mesh import AXIS, by_copy, mesh_of, shardings
from seq2seq.model.platforms import choices_of


def search_lines(translator: Translator, target: Target) -> Iterator[str]:
    """The lines of the report on the program of each length bucket, the longest one first.

    The sizes of the engine become those that it would have on the target. Each copy of the models
    works alone.
    """
    engine, options = translator.engine, translator.decoding
    model_parallel = options.model_parallel
    for model in engine.models:
        check_model_parallel(
            "--model_parallel", model_parallel, model.config, target.devices_of_host
        )
    owner = (
        "one device" if model_parallel == 1 else f"a copy of the model on {model_parallel} devices"
    )
    set_sizes(engine, options, target)
    beams = options.samples or options.beam_size
    for bucket in reversed(engine.buckets):
        lanes = engine.sizes.lanes(bucket)
        yield (
            f"search for {target.name}, {owner}: {bucket} source tokens, {lanes} sentences at "
            f"once × {beams} hypotheses, a queue of {engine.sizes.queue * lanes}"
        )
        report = compiled_report(search_program(engine, engine.params(), bucket, target))
        yield memory_line(report, target)
        if report is None or not report.fits(target):
            yield fitting_batch_size(translator, bucket, report, target)
        elif report.step:
            seconds = report.binding(target)[1]
            exchanged = f", {exchange_text(report)}" if model_parallel > 1 else ""
            yield (
                f"  a step: {report.step / 1e9:.3g} GB accessed{exchanged}, at least "
                f"{1e3 * seconds:.3g} ms: at most {lanes / seconds / bucket:,.0f} sentences/s of "
                f"{bucket} output tokens"
            )
            yield from kernel_lines(report)


def fitting_batch_size(
    translator: Translator, bucket: int, report: Report | None, target: Target
) -> str:
    """The line that names the largest batch size whose search of a bucket fits."""
    engine, options = translator.engine, translator.decoding
    batch_size = engine.sizes.batch_size

    def report_of(batch_size: int) -> Report | None:
        set_sizes(engine, replace(options, batch_size=batch_size), target)
        return compiled_report(search_program(engine, engine.params(), bucket, target))

    largest = largest_that_fits(report_of, batch_size, report, target)
    set_sizes(engine, options, target)
    if largest:
        return f"  largest batch that fits: --batch_size={largest}"
    return too_large(translator, bucket, target)


def too_large(translator: Translator, bucket: int, target: Target) -> str:
    """The line on a search that does not fit with one sentence: the smallest --model_parallel with
    which it does."""
    engine = translator.engine
    models = [model.config for model in engine.models]

    def report_of(model_parallel: int) -> Report | None:
        options = replace(translator.decoding, batch_size=1, model_parallel=model_parallel)
        divided = Engine(models, options, engine.options, engine.forced)
        set_sizes(divided, options, target)
        return compiled_report(search_program(divided, engine.params(), bucket, target))

    larger = larger_values(engine.model_parallel, models, target.devices_of_host)
    if fitting := first_that_fits(report_of, larger, target):
        return f"  not even one sentence fits; one fits with --model_parallel={fitting}"
    return "  not even one sentence fits: lower --beam_size or --max_extra_length"


def set_sizes(engine: Engine, options: DecodingConfig, target: Target) -> None:
    """Give an engine the sizes that it would have on the target."""
    models, memory = [model.config for model in engine.models], target.hardware.memory
    machine = Machine(target.platform, memory, options.model_parallel)
    engine.sizes = sizes_of(models, options, machine)


def search_program(engine: Engine, params: list[Any], bucket: int, target: Target) -> Traced:
    """The search of one length bucket on one device, or on all copies of models that several
    devices share. `params` are arrays or their shapes."""
    # The compiler of a TPU refuses groups that are a part of a topology, but not single devices.
    devices = target.devices[:1] if engine.model_parallel == 1 else target.devices
    mesh = mesh_of(devices, engine.model_parallel)
    copies = mesh.shape[AXIS]
    program, sentences = export_program(engine, bucket)
    bias_in_table = choices_of(target.platform).bias_in_table

    def variables(params: list[Any]) -> list[Any]:
        return [
            inference_variables(model.config, tree, bias_in_table)
            for model, tree in zip(engine.models, params, strict=True)
        ]

    shapes = jax.eval_shape(variables, params)
    source = np.zeros((copies, sentences, bucket), np.int32)
    numbers = lengths = np.zeros((copies, sentences), np.int32)
    return on_copies(program, (None, 0, 0, 0), mesh).trace(
        shapes_of(shapes, shardings(shapes, mesh)),
        *shapes_of((source, lengths, numbers), by_copy(mesh)),
    )

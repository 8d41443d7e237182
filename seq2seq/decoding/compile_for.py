"""decode.py --compile_for: the searches of a job for devices that need not be present."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.stages import Traced

from seq2seq.compilation.report import (
    Report,
    compiled_report,
    kernel_lines,
    largest_that_fits,
    memory_line,
    shapes_of,
)
from seq2seq.compilation.targets import Target
from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.export import export_program
from seq2seq.decoding.engine.sizes import Machine, sizes_of
from seq2seq.decoding.translator import Translator
from seq2seq.model.inference import inference_variables
from seq2seq.model.platforms import choices_of


def search_lines(translator: Translator, target: Target) -> Iterator[str]:
    """The lines of the report on the program of each length bucket, the longest one first.

    The sizes of the engine become those that it would have on the target. Each device works alone.
    """
    engine, options = translator.engine, translator.decoding
    set_sizes(engine, options, target)
    beams = options.samples or options.beam_size
    for bucket in reversed(engine.buckets):
        lanes = engine.sizes.lanes(bucket)
        yield (
            f"search for {target.name}, one device: {bucket} source tokens, {lanes} sentences at "
            f"once × {beams} hypotheses, a queue of {engine.sizes.queue * lanes}"
        )
        report = compiled_report(search_program(engine, engine.params(), bucket, target))
        yield memory_line(report, target)
        if report is None or not report.fits(target):
            yield fitting_batch_size(translator, bucket, report, target)
        elif report.step:
            seconds = report.step / target.hardware.bandwidth
            yield (
                f"  a step: {report.step / 1e9:.3g} GB accessed, at least {1e3 * seconds:.3g} ms: "
                f"at most {lanes / seconds / bucket:,.0f} sentences/s of {bucket} output tokens"
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
    return "  not even one sentence fits: lower --beam_size or --max_extra_length"


def set_sizes(engine: Engine, options: DecodingConfig, target: Target) -> None:
    """Give an engine the sizes that it would have on the target."""
    models, memory = [model.config for model in engine.models], target.hardware.memory
    engine.sizes = sizes_of(models, options, Machine(target.platform, memory))


def search_program(engine: Engine, params: list[Any], bucket: int, target: Target) -> Traced:
    """The search of one length bucket on one device. `params` are arrays or their shapes."""
    sharding = SingleDeviceSharding(target.devices[0])
    program, sentences = export_program(engine, bucket)
    bias_in_table = choices_of(target.platform).bias_in_table

    def variables(params: list[Any]) -> list[Any]:
        return [
            inference_variables(model.config, tree, bias_in_table)
            for model, tree in zip(engine.models, params, strict=True)
        ]

    source = np.zeros((sentences, bucket), np.int32)
    numbers = lengths = np.zeros(sentences, np.int32)
    arguments = jax.eval_shape(variables, params), source, lengths, numbers
    return jax.jit(program).trace(*shapes_of(arguments, sharding))

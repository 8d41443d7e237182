"""Benchmark: programs of training and decoding, compiled for accelerators that are not present.

    python benchmarks/compiled_programs.py --targets=v5e:1 --sizes=base
        [--programs=training,greedy,beam4] [--dtypes=mixed,bfloat16] [--length=128]
        [--model_parallel=4] [--optimizer=adafactor] [--layers=2,4]
Needs the extra [compile-tpu] (v4, v5e, v5p, v6e) or [compile-gpu] (a100, h100). Prints a row of a
Markdown table for each program as soon as it is compiled (benchmarks/compiled_programs.md). Sizes
are those of benchmarks/accelerator.py: small, base, big (training) and opus (decoding), and t5-3b,
flan-t5-xxl and nllb-3.3b, which are trained with model.remat. With --layers two models of so many
layers are compiled, and the row of the size follows from their differences.
"""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
from absl import flags
from jax.stages import Traced

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.sizes import FULL, LARGE, TrainingSize
from seq2seq.cli.command import run_command
from seq2seq.compilation.report import Report, compiled_report, kernel_lines
from seq2seq.compilation.targets import Target, target_of
from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig, TrainingConfig
from seq2seq.decoding.compile_for import search_program, set_sizes
from seq2seq.decoding.engine.engine import Engine
from seq2seq.training.compile_for import step_program
from seq2seq.training.parameters import parameter_shapes

BEAMS = {"greedy": 1, "beam4": 4}
BUCKET = 32  # source tokens
# Rows of a copy of the model. The loss of NLLB is computed in blocks, for its vocabulary.
TRAINING = FULL.training | {
    name: TrainingSize(replace(model, remat=True), 128, 32, 32) for name, model in LARGE.items()
}
DECODING = FULL.decoding | LARGE
LOSS_BLOCKS = {"nllb-3.3b": 32}
HEADER = (
    "program", "target", "model_parallel", "of a copy", "memory, GB", "temporary, GB", "TFLOP",
    "accessed, GB", "all-reduce, MB", "all-gather, MB", "least ms", "bound by", "of the peak",
    "per second and device", "compiled, s", "kernels", "conditionals, loops",
)  # fmt: skip


def training(size: str, layers: int, dtype: str, target: Target) -> tuple[Traced, str, float]:
    """(program, description of the work, target tokens of a copy of the model). With rows of
    another --length than that of the size (0) a copy has as many tokens."""
    f, chosen = flags.FLAGS, TRAINING[size]
    tokens, length = chosen.first_rows * chosen.length, f.length or chosen.length
    options = TrainingConfig(
        optimizer=f.optimizer,
        model_parallel=f.model_parallel,
        loss_block=LOSS_BLOCKS.get(size, 0),
    )
    model = replace(chosen.model, num_layers=layers, dtype=dtype)
    config = Config(model, DataConfig(source_length=length, target_length=length), options)
    program = step_program(config, tokens // length, target)
    return program, f"{tokens // length} × {length} tokens", tokens


def decoding(
    size: str, layers: int, dtype: str, beams: int, target: Target
) -> tuple[Traced, str, int]:
    """(program of the bucket of 32 tokens, description of the work, sentences at once). They are as
    many as those of the size."""
    model = replace(DECODING[size], dtype=dtype)
    options = DecodingConfig(beam_size=beams, model_parallel=flags.FLAGS.model_parallel)
    engine = Engine([model], options)
    set_sizes(engine, options, target)
    sizes, model = engine.sizes, replace(model, num_layers=layers)
    engine = Engine([model], options)
    engine.sizes = sizes
    program = search_program(engine, [parameter_shapes(model)], BUCKET, target)
    return program, f"{sizes.lanes(BUCKET)} sentences × {beams}", sizes.lanes(BUCKET)


def extrapolated(low: Report, high: Report, position: float) -> Report:
    """The report at a position on the line through two reports at 0 and 1."""

    def at(a: float, b: float) -> int:
        return round(a + position * (b - a))

    names = [name for name in Report._fields if isinstance(getattr(low, name), int | float)]
    numbers = {name: at(getattr(low, name), getattr(high, name)) for name in names}
    kinds = {*low.exchanged, *high.exchanged}
    exchanged = Counter({kind: at(low.exchanged[kind], high.exchanged[kind]) for kind in kinds})
    report = high._replace(**numbers, exchanged=exchanged)
    return report._replace(seconds=low.seconds + high.seconds)


def cells(report: Report | None, target: Target, work: float, steps: int) -> list[str]:
    """The cells of a row from the memory on. `work` is done in `steps` steps of a search, or (0) in
    one run of the program."""
    if report is None:
        return ["does not fit"] + [""] * (len(HEADER) - 5)
    (bound, seconds), accessed = report.binding(target), report.step or report.accessed
    share = f"{100 * report.bounds(target)['products'] / seconds:.0f} %"
    if steps:  # encoding is not counted
        bound, share = f"{bound} of a step", ""
    rate = work / (seconds * max(1, steps) * flags.FLAGS.model_parallel)
    fits = "" if report.fits(target) else ": does not fit"
    return [
        f"{report.memory / 1e9:.2f}{fits}", f"{report.temporary / 1e9:.2f}",
        f"{report.flops / 1e12:.3f}", f"{accessed / 1e9:.3f}", f"{report.reduced / 1e6:.0f}",
        f"{report.gathered / 1e6:.0f}", f"{1e3 * seconds:.2f}", bound, share, f"{rate:,.0f}",
        f"{report.seconds:.0f}", f"{report.kernels:,}", "{}, {}".format(*report.decisions),
    ]  # fmt: skip


def print_row(size: str, kind: str, dtype: str, target: Target) -> None:
    """Compile a program and print its row."""
    f, whole = flags.FLAGS, (TRAINING if kind == "training" else DECODING)[size]
    model = whole.model if isinstance(whole, TrainingSize) else whole

    def program(layers: int) -> tuple[Traced, str, float]:
        if kind == "training":
            return training(size, layers, dtype, target)
        return decoding(size, layers, dtype, BEAMS[kind], target)

    programs = [program(layers) for layers in map(int, f.layers or [model.num_layers])]
    (_, work, amount), reports = programs[0], [compiled_report(traced) for traced, *_ in programs]
    report, *others = reports
    if report and others and others[0]:
        first, second = map(int, f.layers)
        position = (model.num_layers - first) / (second - first)
        report = extrapolated(report, others[0], position)
    name = f"{kind} {size} {dtype}" + (f" {f.optimizer}" if kind == "training" else "")
    row = [name, target.name, str(f.model_parallel), work]
    row += cells(report, target, amount, 0 if kind == "training" else BUCKET)
    print(f"| {' | '.join(row)} |", flush=True)
    if report and f.largest:
        print(*kernel_lines(report), sep="\n", flush=True)


def main() -> None:
    f = flags.FLAGS
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    for name in f.targets:
        target = target_of(name)
        for size in f.sizes:
            for kind in f.programs:
                if size in (TRAINING if kind == "training" else DECODING):
                    for dtype in f.dtypes:
                        print_row(size, kind, dtype, target)


def define_flags() -> None:
    flags.DEFINE_list("targets", ["v5e:1"], "Hardware, as --compile_for of train.py.")
    flags.DEFINE_list("sizes", ["small", "base", "big", "opus"], "Sizes of models.")
    flags.DEFINE_list("programs", ["training", "greedy", "beam4"], "Kinds of programs.")
    flags.DEFINE_integer("length", 0, "Tokens of a row in training; 0: that of the size.")
    flags.DEFINE_string("optimizer", "adam", "Optimizer of training.")
    flags.DEFINE_integer("model_parallel", 1, "Devices that share one copy of the model.")
    flags.DEFINE_list("layers", [], "Two numbers of layers from which to extrapolate.")
    flags.DEFINE_bool("largest", False, "List the ten largest operations of each program.")
    flags.DEFINE_list("dtypes", ["mixed", "bfloat16"], "Values of model.dtype.")


if __name__ == "__main__":
    run_command(define_flags, main)

"""Benchmark: programs of training and decoding, compiled for accelerators that are not present.

    python benchmarks/compiled_programs.py --targets=v5e:1 --sizes=base
        [--programs=training,greedy,beam4] [--dtypes=mixed,bfloat16] [--length=128]
Needs the extra [compile-tpu] (v4, v5e, v5p, v6e) or [compile-gpu] (a100, h100). Prints a row of a
Markdown table for each program as soon as it is compiled (benchmarks/compiled_programs.md). Sizes
are those of benchmarks/accelerator.py: small, base, big (training) and opus (decoding).
"""

import sys
from dataclasses import replace
from pathlib import Path

import jax
from absl import flags
from jax.stages import Traced

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.parts.sizes import FULL
from seq2seq.cli.command import run_command
from seq2seq.compilation.report import Report, compiled_report, kernel_lines
from seq2seq.compilation.targets import Target, target_of
from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, DecodingConfig, TrainingConfig
from seq2seq.decoding.compile_for import search_program, set_sizes
from seq2seq.decoding.engine.engine import Engine
from seq2seq.model.config import ModelConfig
from seq2seq.training.compile_for import step_program
from seq2seq.training.parameters import parameter_shapes

BEAMS = {"greedy": 1, "beam4": 4}
BUCKET = 32  # source tokens
HEADER = (
    "program", "target", "per device", "memory, GB", "temporary, GB", "TFLOP", "accessed, GB",
    "all-reduce, MB", "least ms", "bound by", "of the peak", "per second and device", "compiled, s",
    "kernels", "conditionals, loops",
)  # fmt: skip


def training(size: str, dtype: str, target: Target, length: int) -> tuple[Traced, str, float]:
    """(program, description of the work, target tokens of a device). With rows of another `length`
    than that of the size (0) a device has as many tokens."""
    chosen = FULL.training[size]
    tokens, length = chosen.first_rows * chosen.length, length or chosen.length
    data = DataConfig(source_length=length, target_length=length)
    config = Config(replace(chosen.model, dtype=dtype), data, TrainingConfig())
    program = step_program(config, tokens // length, target)
    return program, f"{tokens // length} × {length} tokens", tokens


def decoding(size: str, dtype: str, beams: int, target: Target) -> tuple[Traced, str, int]:
    """(program of the bucket of 32 tokens, description of the work, sentences at once)."""
    model, options = FULL.decoding[size], DecodingConfig(beam_size=beams)
    config: ModelConfig = replace(model, dtype=dtype)
    engine = Engine([config], options)
    set_sizes(engine, options, target)
    program = search_program(engine, [parameter_shapes(config)], BUCKET, target)
    lanes = engine.sizes.lanes(BUCKET)
    return program, f"{lanes} sentences × {beams}", lanes


def cells(report: Report | None, target: Target, work: float, steps: int) -> list[str]:
    """The cells of a row from the memory on. `work` is done in `steps` steps of a search, or (0) in
    one run of the program."""
    if report is None:
        return ["does not fit"] + [""] * (len(HEADER) - 4)
    if steps:  # what a step reads decides; encoding is not counted
        seconds = report.step / target.hardware.bandwidth
        accessed, bound, share = report.step, "memory bandwidth of a step", ""
    else:
        (bound, seconds), accessed = report.binding(target), report.accessed
        share = f"{100 * report.bounds(target)['products'] / seconds:.0f} %"
    rate = work / (seconds * max(1, steps))
    return [
        f"{report.memory / 1e9:.2f}", f"{report.temporary / 1e9:.2f}", f"{report.flops / 1e12:.3f}",
        f"{accessed / 1e9:.3f}", f"{report.reduced / 1e6:.0f}", f"{1e3 * seconds:.2f}", bound,
        share, f"{rate:,.0f}", f"{report.seconds:.0f}", f"{report.kernels:,}",
        "{}, {}".format(*report.decisions),
    ]  # fmt: skip


def main() -> None:
    f = flags.FLAGS
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    for name in f.targets:
        target = target_of(name)
        for size in f.sizes:
            for kind in f.programs:
                if size not in (FULL.training if kind == "training" else FULL.decoding):
                    continue
                for dtype in f.dtypes:
                    if kind == "training":
                        program, work, amount = training(size, dtype, target, f.length)
                    else:
                        program, work, amount = decoding(size, dtype, BEAMS[kind], target)
                    report = compiled_report(program)
                    steps = 0 if kind == "training" else BUCKET
                    row = [f"{kind} {size} {dtype}", name, work]
                    row += cells(report, target, amount, steps)
                    print(f"| {' | '.join(row)} |", flush=True)
                    if report and f.largest:
                        print(*kernel_lines(report), sep="\n", flush=True)


def define_flags() -> None:
    flags.DEFINE_list("targets", ["v5e:1"], "Hardware, as --compile_for of train.py.")
    flags.DEFINE_list("sizes", ["small", "base", "big", "opus"], "Sizes of models.")
    flags.DEFINE_list("programs", ["training", "greedy", "beam4"], "Kinds of programs.")
    flags.DEFINE_integer("length", 0, "Tokens of a row in training; 0: that of the size.")
    flags.DEFINE_bool("largest", False, "List the ten largest operations of each program.")
    flags.DEFINE_list("dtypes", ["mixed", "bfloat16"], "Values of model.dtype.")


if __name__ == "__main__":
    run_command(define_flags, main)

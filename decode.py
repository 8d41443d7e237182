"""Decode: a file or stdin in, one line out for each line in, in order; the command line.

`Translator` (decoding/translator.py) is the same in Python:
Translator.load("runs/NAME").translate(lines).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path

from absl import flags

from data.scores import bleu, chrf, tokenized_bleu
from decoding.calls import Pace
from decoding.formats import FORMATS, Item
from decoding.inputs import Input, check_input, read_lines
from decoding.jobs import Chunks, fingerprint, own, shard_lines, shard_of
from decoding.progress import Progress
from decoding.streaming import in_order
from decoding.translator import Translator
from decoding.work import MODES, Work
from runtime import processes
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.files import check_outputs, is_replaceable, locked_output, write_lines
from runtime.path_flags import define_path
from runtime.paths import expand_path
from runtime.signals import StopFlag, Stopped
from storage.config import DecodingConfig

__all__ = ["Translator"]  # where users look for it

CALL = 15.0  # seconds that a compiled call may last in a job whose results are saved


def check_flags(f: flags.FlagValues) -> None:
    """What can be refused before anything is loaded. Raises UserError."""
    if not f.workdir:
        raise UserError(CHECKPOINT, "give --workdir=RUN, the directory that train.py wrote")
    for path in (f.input, *filter(None, (f.reference, f.target))):
        check_input(path)
    if f.input == "-" and "-" in (f.reference, f.target):
        raise UserError(DATA, "two files cannot both be stdin; name one")
    if f.output != "-":
        check_outputs([f.output], f.overwrite)
    if f.mode == "translate" and f.target:
        raise UserError(CONFIGURATION, "--target belongs to --mode=score and --mode=align")
    if f.mode != "translate" and not f.target and f.format not in ("tsv", "jsonl"):
        raise UserError(
            CONFIGURATION,
            f"--mode={f.mode} needs --target=FILE, or --format=tsv or jsonl with both sides",
        )
    if f.mode != "translate" and (f.format == "moses" or f.reference):
        raise UserError(
            CONFIGURATION, f"--mode={f.mode} has neither --format=moses nor --reference"
        )
    if f.shard:
        shard_of(f.shard)
        if not input_of(f).rereadable or f.reference:
            raise UserError(CONFIGURATION, "--shard needs an --input file, and no --reference")
    if (f.distributed or f.coordinator) and not in_chunks(f):
        raise UserError(
            CONFIGURATION,
            "several processes need an --input and an --output file "
            "that all of them see, and no --reference",
        )


def in_chunks(f: flags.FlagValues) -> bool:
    """Whether finished results survive a kill: the input is in files, which can be read twice, the
    output is a file, which can appear by rename, and nothing has to be held until the end."""
    return (
        input_of(f).rereadable
        and f.output != "-"
        and is_replaceable(expand_path(f.output))
        and not f.reference
    )


def input_of(f: flags.FlagValues) -> Input:
    return Input(f.input, f.target, f.format, f.mode != "translate")


def options_of(f: flags.FlagValues) -> dict[str, int | float | str]:
    """The fields of config.decoding that were given as flags."""
    names = [field.name for field in fields(DecodingConfig)]
    return {name: f[name].value for name in names if f[name].value is not None}


def check_options(f: flags.FlagValues, decoding: DecodingConfig) -> None:
    """UserError(CONFIGURATION) for flags that do not fit together with the run's options."""
    if f.mode == "translate" and f.format in ("text", "tsv") and decoding.hypotheses > 1:
        raise UserError(CONFIGURATION, "several translations a line need --format=moses or jsonl")
    unused = [
        f"--{name}"
        for name in ("temperature", "top_k", "top_p", "seed")
        if f[name].value is not None
    ]
    if unused and not decoding.samples:
        raise UserError(
            CONFIGURATION,
            f"{', '.join(unused)} has no effect on a beam search; add "
            "--samples=N to draw samples, or remove it",
        )


def main() -> None:
    f = flags.FLAGS
    check_flags(f)
    StopFlag()
    try:
        decode(f)
    except Stopped as stopped:
        sys.stdout.flush()
        print(f"error: {stopped}", file=sys.stderr, flush=True)
        processes.stop_all_processes(128 + stopped.signal, str(stopped))
        os._exit(128 + stopped.signal)  # a usual exit would wait for the calls that were begun


def decode(f: flags.FlagValues) -> None:
    runs = [Path(run).expanduser() for run in f.workdir.split(",")]
    references = list(read_lines(f.reference)) if f.reference else None
    interactive = f.input == "-" and sys.stdin.isatty()
    source, lines = input_of(f), None
    if source.rereadable:
        lines = range(source.count())
        lines = shard_lines(len(lines), *shard_of(f.shard)) if f.shard else lines
    first = lines.start if lines else 0
    processes.connect(f)
    with locked_output(f.output) if f.output != "-" and processes.is_first() else nullcontext():
        prepare_jax(f.compilation_cache, 1 if interactive else 0)
        options = options_of(f) | ({"batch_size": 1} if interactive else {})
        translator = Translator.load(runs, f.checkpoint, **options)
        check_options(f, translator.decoding)
        if f.mode == "translate" and not interactive:
            print(translator.engine.table(), file=sys.stderr)
        mine = sum(map(own, lines)) if lines else 0
        live = sys.stderr.isatty() and not (f.output == "-" and sys.stdout.isatty())
        progress = Progress(mine, not interactive, live)
        work = Work(translator, f.mode, f.format, f.input, progress, references is not None)
        if in_chunks(f):
            translator.engine.pace = Pace(CALL)
            chunks = begin(f.output, fingerprint(translator, runs, f.checkpoint, f.mode, f.format))
            chunks.run(partial(source.items, lines), work, progress.found)
        else:
            parts = prompted(source.items()) if interactive else [(first, source.items(lines))]
            texts = (text for number, part in parts for text in in_order(work(part), number))
            if f.output == "-":
                for text in texts:
                    print(text, flush=True)
            else:
                write_lines(f.output, texts)
        work.report()
    if references is not None:
        texts = [work.texts[number] for number in sorted(work.texts)]
        print_scores(texts, references, sys.stderr if f.output == "-" else sys.stdout)


def begin(output: str, job: str) -> Chunks:
    """The chunks of the job with this fingerprint, which is that of all processes."""
    processes.check_agreement({"the job (run, options, versions, device)": job})
    with processes.first_process_first("the chunks that are there"):
        return Chunks(output, job)


def prompted(lines: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, list[tuple[int, Item]]]]:
    """The numbered lines of a terminal as parts of one line, each after a prompt."""
    print("one sentence a line; Ctrl-D ends", file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            print(file=sys.stderr)
            return
        yield line[0], [line]


def print_scores(texts: list[str], references: list[str], file) -> None:
    if len(texts) != len(references):
        raise UserError(
            DATA,
            f"the input has {len(texts)} lines, --reference has "
            f"{len(references)}; the translations are written, but not scored",
        )
    for metric in (bleu, tokenized_bleu, chrf) if texts else ():
        print(metric(texts, references), file=file)


def define_flags() -> None:
    define_path(
        "workdir",
        None,
        "The run directory that train.py wrote; several with commas between are an ensemble.",
    )
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step.")
    define_path("input", "-", "One sentence a line, .gz or not; - is stdin.")
    define_path("output", "-", "What comes out, line by line; - is stdout.")
    flags.DEFINE_enum("format", "text", FORMATS, "What a line is: see decoding/formats.py.")
    flags.DEFINE_enum(
        "mode",
        "translate",
        MODES,
        "translate, score given translations, or align their tokens with those of the source.",
    )
    define_path("target", "", "The translations to score or align, beside --input.")
    define_path("reference", "", "Prints BLEU and chrF against this file.")
    flags.DEFINE_string("shard", "", "PART/PARTS, 2/8: translate this part of the input only.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing output file.")
    define_options()
    processes.define_flags()


def define_options() -> None:
    """A flag for every field of config.decoding; `options_of` reads them."""
    define = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    for field in fields(DecodingConfig):
        define[field.type](
            field.name,
            None,
            f"Instead of the run's config.decoding.{field.name}: {field.metadata['help']}",
        )


if __name__ == "__main__":
    run_command(define_flags, main)

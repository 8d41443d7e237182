"""Decode a file or stdin: one output line for each input line, in order; the command line.

In Python, `Translator.load("runs/NAME").translate(lines)` (decoding/translator.py) does the same.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

from absl import flags

from data.scores import METRICS
from decoding.calls import Pace
from decoding.ensembles import members_of
from decoding.format_flags import (
    check_format_flags,
    check_nbest_format,
    chosen_formats,
    define_format_flags,
    is_interactive,
)
from decoding.formats import Item
from decoding.inputs import Input, check_input, check_no_input_is_replaced, read_lines
from decoding.interactive import Session, alignment_text
from decoding.jobs import Chunks, is_local, job_fingerprint, shard_lines, shard_of
from decoding.progress import DecodingProgress, note
from decoding.references import DEFAULT_METRICS, read_references
from decoding.streaming import in_order
from decoding.translator import Translator
from decoding.work import MODES, Work
from runtime import connection, processes
from runtime.command import run_command
from runtime.devices import prepare_jax
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.files import check_outputs, is_replaceable, locked_output, write_lines
from runtime.path_flags import define_path
from runtime.paths import expand_path
from runtime.precision import precision_hint
from runtime.signals import StopFlag, Stopped
from storage.config import DecodingConfig

__all__ = ["Translator"]  # for `from decode import Translator`

CALL_SECONDS = 15.0  # duration of a compiled call in a job that saves its results
MIXED_SPEEDUP = "1.4 to 1.5"  # of the search on a CPU with AVX512-BF16: benchmarks/decode_speed.md


def check_decode_flags(f: flags.FlagValues) -> None:
    """UserError for flags that are invalid for any run; nothing is loaded yet."""
    if not f.workdir:
        raise UserError(CHECKPOINT, "--workdir=RUN is required: the directory that train.py wrote")
    files = (f.input, f.reference, f.baseline, f.target)
    for path in (f.input, *filter(None, files[1:])):
        check_input(path)
    if files.count("-") > 1:
        raise UserError(DATA, "only one input can be stdin; give the name of the other file")
    if f.output != "-":
        check_no_input_is_replaced(f.output, files)
        check_outputs([f.output], f.overwrite)
    if f.target_pieces and f.reference:
        raise UserError(
            CONFIGURATION,
            "--target_pieces is not supported with --reference: expected text to score, got "
            "pieces; remove one of them",
        )
    if f.mode == "translate":
        if f.target:
            raise UserError(
                CONFIGURATION,
                "--target is not supported with --mode=translate; give --mode=score or align",
            )
    elif f.reference:
        raise UserError(
            CONFIGURATION, f"--reference is not supported with --mode={f.mode}; remove one of them"
        )
    check_format_flags(f)
    if f.shard:
        shard_of(f.shard)
        if not input_of(f).rereadable or f.reference:
            raise UserError(CONFIGURATION, "--shard needs an --input file and no --reference")
    if (f.distributed or f.coordinator) and not resumable(f):
        raise UserError(
            CONFIGURATION,
            "several processes need an --input file and an --output file "
            "that all of them can access, and no --reference",
        )


def resumable(f: flags.FlagValues) -> bool:
    """Whether the job saves its results, to resume after a kill: the input consists of files, which
    can be read twice, the output is a file, which a rename can create, and no translations are kept
    in memory for --reference."""
    return (
        input_of(f).rereadable
        and f.output != "-"
        and is_replaceable(expand_path(f.output))
        and not f.reference
    )


def input_of(f: flags.FlagValues) -> Input:
    return Input(f.input, f.target, chosen_formats(f).input, f.mode != "translate")


def options_of(f: flags.FlagValues) -> dict[str, Any]:
    """The fields of config.decoding that are set by flags."""
    names = [field.name for field in fields(DecodingConfig)]
    return {name: f[name].value for name in names if f[name].value is not None}


def check_flags_with_options(f: flags.FlagValues, decoding: DecodingConfig) -> None:
    """UserError(CONFIGURATION) for flags that are invalid with the options of the run."""
    check_nbest_format(f, decoding.hypotheses)
    unused = [
        f"--{name}"
        for name in ("temperature", "top_k", "top_p", "seed")
        if f[name].value is not None
    ]
    if unused and not decoding.samples:
        raise UserError(
            CONFIGURATION,
            f"{', '.join(unused)} has no effect on a beam search; add "
            "--samples=N to draw samples, or remove the flag",
        )


def main() -> None:
    f = flags.FLAGS
    check_decode_flags(f)
    StopFlag()
    try:
        decode(f)
    except Stopped as stopped:
        sys.stdout.flush()
        print(f"error: {stopped}", file=sys.stderr, flush=True)
        connection.stop_all_processes(128 + stopped.signal, str(stopped))
        os._exit(128 + stopped.signal)  # a normal exit would wait for the calls in flight


def decode(f: flags.FlagValues) -> None:
    """Run the job of the command line. The input is checked before any device is used."""
    runs = f.workdir.split(",")
    references = read_references(f.reference, f.metric, f.baseline)
    interactive = is_interactive(f)
    source, lines = input_of(f), None
    if source.rereadable:
        lines = range(source.count())
        if references is not None:
            references.check_parallel(len(lines), "give one reference for each input line")
        lines = shard_lines(len(lines), *shard_of(f.shard)) if f.shard else lines
    connection.connect(f)
    with locked_output(f.output) if f.output != "-" and processes.is_first() else nullcontext():
        prepare_jax(f.compilation_cache, 1, f.deterministic)
        options = options_of(f) | ({"batch_size": 1} if interactive else {})
        pieces = {"source_pieces": f.source_pieces, "target_pieces": f.target_pieces}
        translator = Translator.load(runs, f.checkpoint, weights=f.weights, **pieces, **options)
        check_flags_with_options(f, translator.decoding)
        if f.mode == "align" and not translator.can_align:
            raise UserError(
                CONFIGURATION,
                "--mode=align is not supported by model.kind=rnn, which has no attention: expected "
                "transformer or rnn_attention; use --mode=score",
            )
        if f.mode == "translate" and not interactive:
            print(translator.engine.description(), file=sys.stderr)
            dtype = translator.engine.models[0].config.dtype
            if hint := precision_hint(dtype, "--dtype=mixed", MIXED_SPEEDUP):
                print(hint, file=sys.stderr)
            translator.engine.log = note
        chunk = translator.engine.sizes.chunk
        local_lines = sum(is_local(line, chunk) for line in lines or ())
        live = sys.stderr.isatty() and not (f.output == "-" and sys.stdout.isatty())
        progress = DecodingProgress(local_lines, not interactive, live)
        formats, keep_texts = chosen_formats(f), references is not None
        work = Work(translator, f.mode, formats, f.input, progress, keep_texts, f.annotate)
        if resumable(f):
            translator.engine.pace = Pace(CALL_SECONDS)
            job = job_fingerprint(translator, members_of(runs, f.checkpoint), work.facts)
            chunks = open_chunks(f.output, job, chunk)
            chunks.run(partial(source.items, lines), work, progress.add_reused)
        elif interactive:
            can_align = f.mode == "translate" and translator.can_align
            align = partial(alignment_text, translator) if can_align else None
            session = Session(align)
            items = source.items(texts=session.sentences(read_lines(f.input)))
            write_output(f.output, outputs_of(work, session.parts(items)))
        else:
            first = lines.start if lines else 0
            write_output(f.output, outputs_of(work, [(first, source.items(lines))]))
        work.report()
    if references is not None:
        texts = [work.texts[number] for number in sorted(work.texts)]
        for result in references.results(texts):
            print(result, file=sys.stderr if f.output == "-" else sys.stdout)


def open_chunks(output: str, fingerprint: str, chunk: int) -> Chunks:
    """The saved results of the job with this fingerprint, which must be equal in all processes, as
    must be the lines of a chunk."""
    facts = {"the job (run, options, versions, device)": fingerprint}
    processes.check_agreement(facts | {"the lines of a chunk (devices × batch size)": str(chunk)})
    with processes.first_process_first("the saved results"):
        return Chunks(output, fingerprint, chunk)


def outputs_of(
    work: Work, parts: Iterable[tuple[int, Iterable[tuple[int, Item]]]]
) -> Iterator[str]:
    """The output of each line, in order. A part is the number of its first line and its lines."""
    for first, lines in parts:
        yield from in_order(work(lines), first)


def write_output(output: str, texts: Iterator[str]) -> None:
    """Write a line for each text, to stdout ("-") as soon as it is computed."""
    if output != "-":
        write_lines(output, texts)
        return
    for text in texts:
        print(text, flush=True)


def define_flags() -> None:
    define_path(
        "workdir",
        None,
        "The run directory that train.py wrote; several, separated by commas, form an ensemble.",
    )
    flags.DEFINE_string(
        "checkpoint",
        "best",
        "best | latest | average | a step | a named average; several, separated by commas, form an "
        "ensemble.",
    )
    flags.DEFINE_string("weights", None, "Weights of the models of an ensemble, such as 0.7,0.3.")
    define_path("input", "-", "Input file, one sentence per line, .gz or not; - is stdin.")
    define_path("output", "-", "Output file, .gz or not; - is stdout.")
    define_format_flags()
    flags.DEFINE_enum(
        "mode",
        "translate",
        MODES,
        "translate; score: score given translations; align: align their tokens with the source.",
    )
    define_path("target", "", "File with the translations to score or align, parallel to --input.")
    define_path("reference", "", "File with reference translations: print scores.")
    metrics = f"Scores to print: {', '.join(METRICS)}; by default {DEFAULT_METRICS}."
    flags.DEFINE_string("metric", None, metrics)
    define_path("baseline", "", "File with translations of another system, to compare scores with.")
    flags.DEFINE_bool(
        "source_pieces",
        False,
        "The input lines are pieces of the vocabulary, separated by spaces, instead of text.",
    )
    flags.DEFINE_bool(
        "target_pieces",
        False,
        "Translations, given targets and prefixes are pieces of the vocabulary, separated by "
        "spaces, instead of text.",
    )
    flags.DEFINE_string("shard", "", "PART/PARTS, for example 2/8: only this part of the input.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing output file.")
    flags.DEFINE_bool(
        "deterministic",
        False,
        "Identical bits on a GPU too, slower; a CPU is always deterministic.",
    )
    define_options()
    connection.define_flags()


def define_options() -> None:
    """Define a flag for every field of config.decoding; `options_of` reads them."""
    define = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    for field in fields(DecodingConfig):
        define[field.type](
            field.name, None, f"Overrides config.decoding.{field.name}: {field.metadata['help']}"
        )


if __name__ == "__main__":
    run_command(define_flags, main)

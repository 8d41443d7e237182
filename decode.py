"""Decode a file or stdin: flags → job → checks → translator → one output line for each input line.

In Python, `seq2seq.Translator.load("runs/NAME").translate(lines)` does the same.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial

from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.command import exit_at_once, run_command, write_error
from seq2seq.cli.interruption import ended_by_signals
from seq2seq.compilation.targets import target_of
from seq2seq.decoding.command.flags import define_flags
from seq2seq.decoding.command.interactive import Session, alignment_text
from seq2seq.decoding.command.job import Job
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.command.references import References, read_references
from seq2seq.decoding.command.resumable_output import (
    is_local,
    job_fingerprint,
    open_resumable_output,
)
from seq2seq.decoding.compile_for import search_lines
from seq2seq.decoding.streaming import in_order
from seq2seq.decoding.translator import Translator
from seq2seq.files.lines import text_lines
from seq2seq.files.output_files import write_lines
from seq2seq.runtime.control import Control, no_poll
from seq2seq.runtime.devices import cpu_devices_for, prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.precision import precision_hint
from seq2seq.runtime.signals import StopFlag
from seq2seq.runtime.streams import note, write_stderr, write_stdout

# Flags that are keywords of Translator.load.
LOADING = (
    "weights", "source_pieces", "target_pieces", "source_language", "target_language",
    "source_prefix", "local_dir",
)  # fmt: skip
CALL_SECONDS = 15.0  # duration of a compiled call in a job that saves its results


def main() -> None:
    job = Job(flags.FLAGS)
    if job.flags.compile_for:
        return compile_job(job)
    job.check()
    advice = "; run the same command to resume" if job.resumable else ""
    with ended_by_signals(write_error, advice, exit_at_once) as stop:
        decode(job, stop)


def decode(job: Job, stop: StopFlag) -> None:
    """Run a job. Its input is checked before any device is used."""
    f = job.flags
    references = read_references(f.reference, f.metric, f.baseline)
    lines = job.lines(references)
    connection.connect(f)
    with job.output_lock() as check_lock:
        devices = cpu_devices_for(f.model_parallel)
        prepare_jax(f.compilation_cache, devices, f.deterministic, decoding_only=True)
        translator = load_translator(job, stop.poll)
        job.check_with_run(translator)
        if f.mode == "translate" and not job.interactive:
            describe(translator)
        output_lines = OutputLines(
            translator,
            f.mode,
            job.formats,
            f.input,
            progress_of(job, lines, translator.engine.sizes.chunk),
            keep_texts=references is not None,
            annotate=f.annotate,
        )
        if job.resumable:
            write_resumably(job, lines, translator, output_lines, check_lock, stop)
        elif job.interactive:
            write_output(job, interactive_answers(job, translator, output_lines))
        else:
            first = lines.start if lines else 0
            write_output(job, in_order(output_lines(job.input.items(lines)), first))
        output_lines.report()
    if references is not None:
        print_scores(job, references, output_lines)


def compile_job(job: Job) -> None:
    """Print what the programs of a job need on a target that need not be present."""
    f = job.flags
    if f.mode != "translate":
        raise UserError(
            CONFIGURATION,
            f"--compile_for compiles the programs of a search, got --mode={f.mode}; remove one",
        )
    target = target_of(f.compile_for)
    prepare_jax("off", 1, decoding_only=True)
    for line in search_lines(load_translator(job, no_poll), target):
        print(line, flush=True)


def load_translator(job: Job, poll: Callable[[], None]) -> Translator:
    """The translator of the job's runs and options. Raises UserError if they cannot be used."""
    control = Control(
        poll,
        log=no_log if job.interactive else note,
        call_seconds=CALL_SECONDS if job.resumable else None,
    )
    f = job.flags
    settings = {name: getattr(f, name) for name in LOADING}
    runs = (f.workdir or "").split(",")
    return Translator.load(runs, f.checkpoint, control=control, **settings, **job.options)


def describe(translator: Translator) -> None:
    """Write the devices and the shapes of the programs to stderr, and a hint if one applies."""
    note(translator.engine.description())
    if hint := precision_hint(translator.engine.models[0].config.dtype, "decoding"):
        note(hint)


def progress_of(job: Job, lines: range | None, chunk: int) -> DecodingProgress:
    """The progress of this process, which computes its chunks of `chunk` lines."""
    total = sum(is_local(line, chunk) for line in lines or ())
    live = sys.stderr.isatty() and not (job.flags.output == "-" and sys.stdout.isatty())
    return DecodingProgress(total, not job.interactive, live)


def write_resumably(
    job: Job,
    lines: range | None,
    translator: Translator,
    output_lines: OutputLines,
    check_lock: Callable[[], None],
    stop: StopFlag,
) -> None:
    """Compute the results that an earlier run of the job has not saved, and write the output."""
    settings = [*output_lines.settings, *translator.affixes_of_line.languages]
    settings.append(translator.source_prefix)
    fingerprint = job_fingerprint(translator, translator.members, settings)
    chunk, f = translator.engine.sizes.chunk, job.flags
    output = open_resumable_output(f.output, fingerprint, chunk, f.overwrite, check_lock)
    if saved := output.count_saved():
        note(f"{saved:,} lines are saved by an earlier run: unchanged ones are not computed again")
    items, reused = partial(job.input.items, lines), output_lines.progress.add_reused
    # A signal does not end a job whose output is complete.
    output.run(items, output_lines, reused, published=stop.defer)


def interactive_answers(
    job: Job, translator: Translator, output_lines: OutputLines
) -> Iterable[str]:
    """The output of each sentence of a session, before the next one is read."""
    can_align = job.flags.mode == "translate" and translator.can_align
    session = Session(partial(alignment_text, translator) if can_align else None)
    sentences = session.sentences(text_lines(job.flags.input, note))
    return session.answers(job.input.items(texts=sentences), output_lines)


def write_output(job: Job, texts: Iterable[str]) -> None:
    """Write a line for each text, to stdout ("-") as soon as it is computed."""
    if job.flags.output != "-":
        write_lines(job.flags.output, texts, job.flags.overwrite)
        return
    for text in texts:
        print(text, flush=True)


def print_scores(job: Job, references: References, output_lines: OutputLines) -> None:
    """Print the scores of the translations, to stderr if those are printed to stdout."""
    texts = [output_lines.texts[number] for number in sorted(output_lines.texts)]
    write = write_stderr if job.flags.output == "-" else write_stdout
    for result in references.results(texts):
        write(f"{result}\n")


def run() -> None:
    """The command line."""
    run_command(define_flags, main, leave=exit_at_once)


if __name__ == "__main__":
    run()

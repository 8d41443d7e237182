"""Decode a file or stdin: flags → job → checks → translator → one output line for each input line.

In Python, `seq2seq.Translator.load("runs/NAME").translate(lines)` does the same.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial

from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.command import exit_at_once, exit_with_error, run_command
from seq2seq.compilation.targets import target_of
from seq2seq.decoding.command.flags import define_flags, job_of
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
from seq2seq.decoding.engine.calls import Control, no_poll
from seq2seq.decoding.streaming import in_order
from seq2seq.decoding.translator import Translator
from seq2seq.files.lines import text_lines
from seq2seq.files.output_files import write_lines
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.precision import precision_hint
from seq2seq.runtime.signals import StopFlag, Stopped, handle_signals
from seq2seq.runtime.streams import note, write_stderr, write_stdout

CALL_SECONDS = 15.0  # duration of a compiled call in a job that saves its results


def main() -> None:
    f = flags.FLAGS
    job = job_of(f)
    if f.compile_for:
        return compile_job(job, f.compile_for)
    job.check()
    stop = handle_signals()  # from now on a signal raises Stopped
    try:
        decode(job, f, stop)
    except Stopped as stopped:
        advice = "; run the same command to resume" if job.resumable else ""
        exit_with_error(128 + stopped.signal, f"{stopped}{advice}", leave=exit_at_once)
    finally:
        stop.defer()  # a signal during the exit raises nothing


def decode(job: Job, f: flags.FlagValues, stop: StopFlag) -> None:
    """Run a job. Its input is checked before any device is used."""
    references = read_references(job.reference, job.metric, job.baseline)
    lines = job.lines(references)
    connection.connect(f)
    with job.output_lock() as check_lock:
        prepare_jax(f.compilation_cache, 1, f.deterministic, decoding_only=True)
        translator = load_translator(job, stop.poll)
        job.check_with_run(translator)
        if job.mode == "translate" and not job.interactive:
            describe(translator)
        output_lines = OutputLines(
            translator,
            job.mode,
            job.formats,
            job.input.path,
            progress_of(job, lines, translator.engine.sizes.chunk),
            keep_texts=references is not None,
            annotate=job.annotate,
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


def compile_job(job: Job, name: str) -> None:
    """Print what the programs of a job need on a target that need not be present."""
    if job.mode != "translate":
        raise UserError(
            CONFIGURATION,
            f"--compile_for compiles the programs of a search, got --mode={job.mode}; remove one",
        )
    target = target_of(name)
    prepare_jax("off", 1, decoding_only=True)
    for line in search_lines(load_translator(job, no_poll), target):
        print(line, flush=True)


def load_translator(job: Job, poll: Callable[[], None]) -> Translator:
    """The translator of the job's runs and options. Raises UserError if they cannot be used."""
    return Translator.load(
        job.runs,
        job.checkpoint,
        weights=job.weights,
        source_pieces=job.source_pieces,
        target_pieces=job.target_pieces,
        source_language=job.source_language,
        target_language=job.target_language,
        source_prefix=job.source_prefix,
        local_dir=job.local_dir,
        control=Control(
            poll,
            log=no_log if job.interactive else note,
            call_seconds=CALL_SECONDS if job.resumable else None,
        ),
        **job.options,
    )


def describe(translator: Translator) -> None:
    """Write the devices and the shapes of the programs to stderr, and a hint if one applies."""
    note(translator.engine.description())
    if hint := precision_hint(translator.engine.models[0].config.dtype, "decoding"):
        note(hint)


def progress_of(job: Job, lines: range | None, chunk: int) -> DecodingProgress:
    """The progress of this process, which computes its chunks of `chunk` lines."""
    total = sum(is_local(line, chunk) for line in lines or ())
    live = sys.stderr.isatty() and not (job.output == "-" and sys.stdout.isatty())
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
    chunk = translator.engine.sizes.chunk
    output = open_resumable_output(job.output, fingerprint, chunk, job.overwrite, check_lock)
    if saved := output.count_saved():
        note(f"{saved:,} lines are saved by an earlier run: unchanged ones are not computed again")
    items, reused = partial(job.input.items, lines), output_lines.progress.add_reused
    # A signal does not end a job whose output is complete.
    output.run(items, output_lines, reused, published=stop.defer)


def interactive_answers(
    job: Job, translator: Translator, output_lines: OutputLines
) -> Iterable[str]:
    """The output of each sentence of a session, before the next one is read."""
    can_align = job.mode == "translate" and translator.can_align
    session = Session(partial(alignment_text, translator) if can_align else None)
    sentences = session.sentences(text_lines(job.input.path, note))
    return session.answers(job.input.items(texts=sentences), output_lines)


def write_output(job: Job, texts: Iterable[str]) -> None:
    """Write a line for each text, to stdout ("-") as soon as it is computed."""
    if job.output != "-":
        write_lines(job.output, texts, job.overwrite)
        return
    for text in texts:
        print(text, flush=True)


def print_scores(job: Job, references: References, output_lines: OutputLines) -> None:
    """Print the scores of the translations, to stderr if those are printed to stdout."""
    texts = [output_lines.texts[number] for number in sorted(output_lines.texts)]
    write = write_stderr if job.output == "-" else write_stdout
    for result in references.results(texts):
        write(f"{result}\n")


def run() -> None:
    """The command line."""
    run_command(define_flags, main, leave=exit_at_once)


if __name__ == "__main__":
    run()

"""Decode: a file or stdin in, one line out for each line in, in order; the command line.

`Translator` (decoding/translator.py) is the same in Python:
Translator.load("runs/NAME").translate(lines).
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import chain, islice, zip_longest
from pathlib import Path

from absl import flags

from data.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from data.files import check_outputs, replaceable, write_lines
from data.scores import bleu, chrf, tokenized_bleu
from data.text_files import LONGEST, TOO_LONG, expanded, file_lines, raw_lines
from decoding.formats import FORMATS, Item, parsed
from decoding.jobs import Chunks, fingerprint, shard_lines, shard_of
from decoding.translator import Translator
from decoding.work import MODES, Work
from training import hosts
from training.checkpoint import find_params
from training.command import prepare_jax, run_command
from training.config import DecodingConfig

__all__ = ["Translator"]  # where users look for it


def read_lines(path: str) -> Iterator[str]:
    """Lines of a file (.gz or not) or stdin ("-"), split at \\n only; bad UTF-8 is replaced."""
    for number, line in enumerate(file_lines(path), start=1):
        if len(line) > LONGEST:
            print(f"{path}:{number}: {TOO_LONG}, cut off there", file=sys.stderr)
            line = line[:LONGEST].decode("utf-8", errors="ignore").encode("utf-8")
        text = line.decode("utf-8", errors="replace")
        if "\ufffd" in text and text.encode("utf-8") != line:
            print(f"{path}:{number}: not UTF-8, bytes replaced", file=sys.stderr)
        yield text


def check_input(path: str) -> None:
    """UserError(DATA) unless `path` can be read: a file, a pipe, or "-" for stdin."""
    full = expanded(path)
    if path != "-" and (not path or not os.path.exists(full) or os.path.isdir(full)):
        raise UserError(DATA, f"there is no file {os.path.abspath(full) if path else repr(path)}")
    if path != "-" and not os.access(full, os.R_OK):
        raise UserError(DATA, f"{path} cannot be read; check its permissions")


def read_items(f: flags.FlagValues) -> Iterator[Item]:
    """The lines of --input (and of --target beside it) as items of --format."""
    lines, own = enumerate(read_lines(f.input), start=1), f.mode != "translate" and not f.target
    items = (parsed(f.format, line, f"{f.input}:{number}", own) for number, line in lines)
    return paired(items, read_lines(f.target), f.input, f.target) if f.target else items


def paired(items: Iterator[Item], targets: Iterator[str], *names: str) -> Iterator[Item]:
    """Items with the lines of another file as their targets. UserError(DATA) if one has more."""
    number = 0
    for item, target in zip_longest(items, targets):
        if item is None or target is None:
            raise UserError(DATA, f"{names[item is not None]} ends after line {number}, "
                            f"{names[item is None]} does not; they must be parallel")
        number += 1
        yield item._replace(target=target)


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
        raise UserError(CONFIGURATION, f"--mode={f.mode} needs --target=FILE, or --format=tsv or "
                        "jsonl with both sides")
    if f.mode != "translate" and (f.format == "moses" or f.reference):
        raise UserError(CONFIGURATION, f"--mode={f.mode} has neither --format=moses nor "
                        "--reference")
    if f.shard:
        shard_of(f.shard)
        if not os.path.isfile(expanded(f.input)) or f.reference:
            raise UserError(CONFIGURATION, "--shard needs an --input file, and no --reference")
    if (f.distributed or f.coordinator) and not in_chunks(f):
        raise UserError(CONFIGURATION, "several processes need an --input and an --output file "
                        "that all of them see, and no --reference")


def in_chunks(f: flags.FlagValues) -> bool:
    """Whether the job is done in chunks that survive a kill: from files that can be read twice to
    one that can appear by rename, and nothing has to be held until the end."""
    files = all(os.path.isfile(expanded(path)) for path in (f.input, f.target) if path)
    return files and f.output != "-" and replaceable(expanded(f.output)) and not f.reference


def options_of(f: flags.FlagValues) -> dict[str, int | float | str]:
    """The fields of config.decoding that were given as flags."""
    names = [field.name for field in fields(DecodingConfig)]
    return {name: f[name].value for name in names if f[name].value is not None}


def main() -> None:
    f = flags.FLAGS
    check_flags(f)
    runs = [Path(run).expanduser() for run in f.workdir.split(",")]
    references = list(read_lines(f.reference)) if f.reference else None
    interactive = f.input == "-" and sys.stdin.isatty()
    options = options_of(f) | ({"batch_size": 1} if interactive else {})
    hosts.connect(f)
    prepare_jax(f.compilation_cache, 1 if interactive else 0)
    translator = Translator.load(runs, f.checkpoint, **options)
    several = translator.decoding.hypotheses > 1
    if f.mode == "translate" and f.format in ("text", "tsv") and several:
        raise UserError(CONFIGURATION, "several translations a line need --format=moses or jsonl")
    if f.mode == "translate" and not interactive:
        print(translator.engine.table(), file=sys.stderr)
    items, total, start = read_items(f), 0, 0
    if os.path.isfile(expanded(f.input)):
        total = sum(1 for _ in raw_lines(f.input)) if os.path.getsize(expanded(f.input)) else 0
        if f.shard:
            part = shard_lines(total, *shard_of(f.shard))
            items, total, start = islice(items, part.start, part.stop), len(part), part.start
    work = Work(translator, f.mode, f.format, f.input, start, total, interactive,
                references is not None)
    if in_chunks(f):
        facts = {"decoding": asdict(translator.decoding), "mode": f.mode, "format": f.format,
                 "shard": f.shard, "paths": [f.input, f.target]}
        models = [str(path) for run in runs for path in (
            find_params(run, f.checkpoint), run / "config.json")]
        files = [path for path in (f.input, f.target) if path]
        work.skipped = begin(f.output, fingerprint(facts, *files, *models)).run(items, work)
    else:
        asked = ([item] for item in prompted(items)) if interactive else [items]
        lines = chain.from_iterable(work(first, some) for first, some in enumerate(asked))
        if f.output == "-":
            for line in lines:
                print(line, flush=interactive)
        else:
            write_lines(f.output, lines)
    work.report()
    if references is not None:
        print_scores(work.texts, references, sys.stderr if f.output == "-" else sys.stdout)


def begin(output: str, job: str) -> Chunks:
    """The chunks of the job with this fingerprint, which is that of all processes."""
    hosts.agree({"the job (files, run, options)": job})
    with hosts.after_the_first("the chunks that are there"):
        return Chunks(output, job)


def prompted(items: Iterator[Item]) -> Iterator[Item]:
    """The items of a terminal, asked for one by one."""
    print("one sentence a line; Ctrl-D ends", file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        item = next(items, None)
        if item is None:
            print(file=sys.stderr)
            return
        yield item


def print_scores(texts: list[str], references: list[str], file) -> None:
    if len(texts) != len(references):
        raise UserError(DATA, f"the input has {len(texts)} lines, --reference has "
                        f"{len(references)}; the translations are written, but not scored")
    for metric in (bleu, tokenized_bleu, chrf) if texts else ():
        print(metric(texts, references), file=file)


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "The run directory that train.py wrote; several with "
                        "commas between are an ensemble.")
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step.")
    flags.DEFINE_string("input", "-", "One sentence a line, .gz or not; - is stdin.")
    flags.DEFINE_string("output", "-", "What comes out, line by line; - is stdout.")
    flags.DEFINE_enum("format", "text", FORMATS, "What a line is: see decoding/formats.py.")
    flags.DEFINE_enum("mode", "translate", MODES, "translate, score given translations, or align "
                      "their tokens with those of the source.")
    flags.DEFINE_string("target", "", "The translations to score or align, beside --input.")
    flags.DEFINE_string("reference", "", "Prints BLEU and chrF against this file.")
    flags.DEFINE_string("shard", "", "PART/PARTS, 2/8: translate this part of the input only.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing output file.")
    define_options()
    hosts.define_flags()


def define_options() -> None:
    """A flag for every field of config.decoding; `options_of` reads them."""
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string,
              bool: flags.DEFINE_bool}
    for field in fields(DecodingConfig):
        define[field.type](field.name, None, f"Instead of the run's config.decoding.{field.name}: "
                           f"{field.metadata['help']}")


if __name__ == "__main__":
    run_command(define_flags, main)

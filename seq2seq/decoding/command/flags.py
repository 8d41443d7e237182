"""The flags of decode.py, and the job that they describe."""

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.path_flags import define_local_dir, define_path
from seq2seq.compilation.targets import define_compile_for
from seq2seq.config.tree import DecodingConfig
from seq2seq.data.metrics import METRIC_NAMES
from seq2seq.decoding.command.formats import FORMATS, Formats, formats_of
from seq2seq.decoding.command.inputs import Input
from seq2seq.decoding.command.interactive import Terminal
from seq2seq.decoding.command.job import Job
from seq2seq.decoding.command.output_lines import MODES
from seq2seq.decoding.command.references import DEFAULT_METRICS


def job_of(f: flags.FlagValues) -> Job:
    """The job of the flags. UserError(CONFIGURATION) for an input format that cannot be read."""
    formats, interactive = chosen_formats(f), is_interactive(f)
    return Job(
        runs=tuple((f.workdir or "").split(",")),
        local_dir=f.local_dir,
        checkpoint=f.checkpoint,
        weights=f.weights,
        options=options_of(f) | ({"batch_size": 1} if interactive else {}),
        source_pieces=f.source_pieces,
        target_pieces=f.target_pieces,
        mode=f.mode,
        input=Input(f.input, f.target, formats.input, f.mode != "translate", f.prefix),
        source_language=f.source_language,
        target_language=f.target_language,
        source_prefix=f.source_prefix,
        output=f.output,
        overwrite=f.overwrite,
        formats=formats,
        output_flag=(
            f"--output_format={f.output_format}" if f.output_format else f"--format={f.format}"
        ),
        annotate=f.annotate,
        reference=f.reference,
        metric=f.metric,
        baseline=f.baseline,
        shard=f.shard,
        interactive=interactive,
        several_processes=bool(f.distributed or f.coordinator),
    )


def is_interactive(f: flags.FlagValues) -> bool:
    """Whether sentences are read from a terminal."""
    return f.input == "-" and sys.stdin.isatty() and not f.compile_for


def chosen_formats(f: flags.FlagValues) -> Formats:
    """The formats of the flags. UserError(CONFIGURATION) for an input format that cannot be read.
    An interactive session shows n-best lists as text."""
    formats = formats_of(f.format, f.input_format, f.output_format)
    if is_interactive(f) and f.output == "-" and formats.output is FORMATS["text"]:
        return formats._replace(output=Terminal())
    return formats


def options_of(f: flags.FlagValues) -> dict[str, Any]:
    """The fields of config.decoding that are set by flags."""
    names = [field.name for field in fields(DecodingConfig)]
    return {name: f[name].value for name in names if f[name].value is not None}


def define_flags() -> None:
    """Define the flags of decode.py."""
    define_path(
        "workdir",
        None,
        "A run directory that train.py wrote, or a directory of transformers (docs/MODELS.md); a "
        "path or a URL such as gs://bucket/run; several, separated by commas, form an ensemble.",
        remote=True,
    )
    define_local_dir()
    flags.DEFINE_string(
        "checkpoint",
        "best",
        "best | latest | average | a step | a named average; several, separated by commas, form an "
        "ensemble.",
    )
    flags.DEFINE_string("weights", None, "Weights of the models of an ensemble, such as 0.7,0.3.")
    define_path(
        "input", "-", "Input file, one sentence per line, .gz or not; - is stdin.", remote=True
    )
    define_path("output", "-", "Output file, .gz or not; - is stdout.", remote=True)
    flags.DEFINE_enum(
        "format",
        "text",
        FORMATS,
        "Format of the input and output; see seq2seq/decoding/command/formats.py.",
    )
    flags.DEFINE_enum("input_format", None, FORMATS, "Format of the input, if it differs.")
    flags.DEFINE_enum("output_format", None, FORMATS, "Format of the output, if it differs.")
    flags.DEFINE_bool(
        "annotate", False, "Add token log-probabilities and the alignment to each translation."
    )
    flags.DEFINE_enum(
        "mode",
        "translate",
        MODES,
        "translate; score: score given translations; align: align their tokens with the source.",
    )
    define_path(
        "target",
        "",
        "File with the translations to score or align, parallel to --input.",
        remote=True,
    )
    flags.DEFINE_string(
        "prefix", "", "Text with which each translation begins, unless its line has a prefix."
    )
    flags.DEFINE_string(
        "source_language",
        "",
        "Language of the sources, a code of a multilingual model such as eng_Latn, unless a line "
        "names its own.",
    )
    flags.DEFINE_string("target_language", "", "Language of the translations, likewise.")
    flags.DEFINE_string(
        "source_prefix",
        "",
        "Text before each source, such as 'summarize: ', unless its line has a source prefix.",
    )
    define_path("reference", "", "File with reference translations: print scores.", remote=True)
    metrics = f"Scores to print: {METRIC_NAMES}; by default {DEFAULT_METRICS}."
    flags.DEFINE_string("metric", None, metrics)
    define_path(
        "baseline",
        "",
        "File with translations of another system, to compare scores with.",
        remote=True,
    )
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
    define_compile_for()
    connection.define_flags()


def define_options() -> None:
    """Define a flag for every field of config.decoding; `options_of` reads them."""
    define: dict[type, Callable[..., Any]] = {
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
        bool: flags.DEFINE_bool,
    }
    types = get_type_hints(DecodingConfig)
    for field in fields(DecodingConfig):
        help_text = f"Overrides config.decoding.{field.name}: {field.metadata['help']}"
        define[types[field.name]](field.name, None, help_text)

"""The flags of decode.py."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.path_flags import define_local_dir, define_model, define_path
from seq2seq.compilation.targets import define_compile_for
from seq2seq.config.tree import DecodingConfig
from seq2seq.data.metrics import METRIC_NAMES
from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.output_lines import MODES
from seq2seq.decoding.command.references import DEFAULT_METRICS


def options_of(f: flags.FlagValues) -> dict[str, Any]:
    """The fields of config.decoding that are set by flags."""
    names = [field.name for field in fields(DecodingConfig)]
    return {name: f[name].value for name in names if f[name].value is not None}


def define_flags() -> None:
    """Define the flags of decode.py."""
    define_model(
        "workdir",
        None,
        "A run directory that train.py wrote, or a directory of transformers (docs/MODELS.md): a "
        "path, a URL such as gs://bucket/run, or hf://OWNER/NAME[@REVISION] of the Hugging Face "
        "Hub; several, separated by commas, form an ensemble.",
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
        "input",
        "-",
        "Input file, one sentence per line, compressed or not; - is stdin.",
        remote=True,
    )
    define_path(
        "output",
        "-",
        "Output file, compressed if its name ends in .gz, .xz, .bz2 or .zst; - is stdout.",
        remote=True,
    )
    flags.DEFINE_string(
        "format",
        "text",
        f"Format of the input and the output, or INPUT:OUTPUT: {', '.join(FORMATS)}; see "
        "seq2seq/decoding/command/formats.py.",
    )
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
    define_path(
        "reference",
        "",
        "File with reference translations, or several, separated by commas: print scores.",
        remote=True,
    )
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

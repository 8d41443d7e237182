"""The flags of decode.py that select formats and annotations, and their checks."""

import sys

from absl import flags

from decoding.formats import FORMATS, Formats, formats_of
from decoding.interactive import Terminal
from runtime.errors import CONFIGURATION, UserError


def define_format_flags() -> None:
    flags.DEFINE_enum(
        "format", "text", FORMATS, "Format of the input and output; see decoding/formats.py."
    )
    flags.DEFINE_enum("input_format", None, FORMATS, "Format of the input, if it differs.")
    flags.DEFINE_enum("output_format", None, FORMATS, "Format of the output, if it differs.")
    flags.DEFINE_bool(
        "annotate", False, "Add token log-probabilities and the alignment to each translation."
    )


def is_interactive(f: flags.FlagValues) -> bool:
    """Whether sentences are read from a terminal."""
    return f.input == "-" and sys.stdin.isatty()


def chosen_formats(f: flags.FlagValues) -> Formats:
    """The formats of the flags. UserError(CONFIGURATION) for an input format that cannot be read.
    An interactive session shows n-best lists as text."""
    formats = formats_of(f.format, f.input_format, f.output_format)
    if is_interactive(f) and f.output == "-" and formats.output is FORMATS["text"]:
        return formats._replace(output=Terminal())
    return formats


def output_flag(f: flags.FlagValues) -> str:
    """The flag that sets the output format, with its value."""
    return f"--output_format={f.output_format}" if f.output_format else f"--format={f.format}"


def check_format_flags(f: flags.FlagValues) -> None:
    """UserError(CONFIGURATION) for formats that the mode or --annotate does not support."""
    formats = chosen_formats(f)
    if f.mode == "translate":
        if f.annotate and not formats.output.has_fields:
            raise UserError(
                CONFIGURATION,
                f"--annotate is not supported with {output_flag(f)}; give "
                f"--output_format={names_with('has_fields')}",
            )
        return
    if f.annotate:
        raise UserError(
            CONFIGURATION,
            f"--annotate is not supported with --mode={f.mode}; remove it, or --mode",
        )
    if not formats.output.can_score:
        raise UserError(
            CONFIGURATION,
            f"{output_flag(f)} is not supported with --mode={f.mode}; give "
            f"--output_format={names_with('can_score')}",
        )
    if not f.target and not formats.input.has_target:
        raise UserError(
            CONFIGURATION,
            f"--mode={f.mode} needs translations; give --target=FILE, or an input that holds both "
            f"sides and --input_format={names_with('has_target')}",
        )


def check_nbest_format(f: flags.FlagValues, hypotheses: int) -> None:
    """UserError(CONFIGURATION) if the output format cannot hold several hypotheses of a line."""
    if f.mode == "translate" and hypotheses > 1 and not chosen_formats(f).output.has_nbest:
        raise UserError(
            CONFIGURATION,
            f"{output_flag(f)} does not support several translations of a line; give "
            f"--output_format={names_with('has_nbest')}",
        )


def names_with(property_name: str) -> str:
    """The formats with a property, as an alternative."""
    return " or ".join(name for name, one in FORMATS.items() if getattr(one, property_name))

"""The options that a caller gives: their names, and in which modes each of them has an effect.

The options are the fields of config.decoding, and flags of decode.py that depend on the mode. The
table serves decode.py, scripts/export.py and Translator.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from seq2seq.config.tree import DecodingConfig
from seq2seq.model.options import did_you_mean
from seq2seq.runtime.errors import CONFIGURATION, UserError

BEAM, SAMPLING, EXPORT = "a beam search", "sampling (--samples=N)", "an exported file"
SCORE, ALIGN = "--mode=score", "--mode=align"
SEARCHES = BEAM, SAMPLING, EXPORT

EFFECTS: dict[str, tuple[str, ...]] = {
    # The fields of config.decoding.
    "beam_size": (BEAM, EXPORT),
    "nbest": (BEAM, EXPORT),
    "horizon": (BEAM, EXPORT),
    "stop": (BEAM, EXPORT),
    "alpha": (*SEARCHES, SCORE),
    "power_penalty": (*SEARCHES, SCORE),
    "max_extra_length": SEARCHES,
    "max_length": SEARCHES,
    "max_length_ratio": SEARCHES,
    "min_length": SEARCHES,
    "min_length_ratio": SEARCHES,
    "repetition_penalty": (*SEARCHES, SCORE),
    "no_repeat_ngram": SEARCHES,
    "suppress": (*SEARCHES, SCORE),
    "suppress_first": SEARCHES,
    "forced_prefix": (*SEARCHES, SCORE, ALIGN),
    "forced_end": (*SEARCHES, SCORE),
    "renormalize": (*SEARCHES, SCORE),
    "samples": SEARCHES,  # 0: one of the other two
    "temperature": (SAMPLING,),
    "top_k": (SAMPLING,),
    "top_p": (SAMPLING,),
    "seed": (SAMPLING,),
    "clean_source": (*SEARCHES, SCORE, ALIGN),
    "batch_size": (*SEARCHES, SCORE, ALIGN),
    "dtype": (*SEARCHES, SCORE, ALIGN),
    # Flags of decode.py.
    "annotate": (BEAM, SAMPLING),
    "reference": (BEAM, SAMPLING),
    "metric": (BEAM, SAMPLING),
    "baseline": (BEAM, SAMPLING),
    "prefix": (BEAM, SAMPLING),
    "target": (SCORE, ALIGN),
}

FLAGS = EFFECTS.keys() - {field.name for field in fields(DecodingConfig)}


def search_mode(decoding: DecodingConfig) -> str:
    """The mode of a translation with these options."""
    return SAMPLING if decoding.samples else BEAM


def check_effect(options: Iterable[str], mode: str) -> None:
    """UserError(CONFIGURATION) if one of the options, which a user has given, has no effect."""
    unused = [name for name in options if mode not in EFFECTS[name]]
    if unused:
        names = ", ".join(f"--{name}" for name in unused)
        modes = " and ".join(dict.fromkeys(mode for name in unused for mode in EFFECTS[name]))
        raise UserError(
            CONFIGURATION,
            f"{names} has no effect on {mode}: expected options of {mode}, got options of "
            f"{modes}; remove them, or change the mode",
        )


def changed_options(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """The options with other values. UserError(CONFIGURATION) for an invalid value, and for one
    without effect on the search."""
    try:
        options = replace(decoding, **changes)
        options.validate()
    except (TypeError, ValueError) as error:
        raise UserError(CONFIGURATION, str(error)) from None
    check_effect(changes, search_mode(options))
    return options


def check_option_names(options: dict[str, Any]) -> None:
    """TypeError, with the most similar names, if an option does not exist."""
    names = [field.name for field in fields(DecodingConfig)]
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names) or f"options: {', '.join(names)}"
            raise TypeError(f"unknown option {name}; {hint}")

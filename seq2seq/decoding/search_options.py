"""The options that a caller gives: one table of what each of them means to a search.

The options are the fields of config.decoding, and flags of decode.py that depend on the mode. The
table serves decode.py, scripts/export.py and Translator.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.characters import find_piece
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.options import did_you_mean
from seq2seq.model.search.arguments import Mask, Place, Rules, SearchOptions
from seq2seq.model.search.rules import (
    forbid_sequences_mask,
    no_repeat_ngram_mask,
    suppress_first_mask,
)
from seq2seq.runtime.errors import CONFIGURATION, UserError

BEAM, SAMPLING, EXPORT = "a beam search", "sampling (--samples=N)", "an exported file"
SCORE, ALIGN = "--mode=score", "--mode=align"
SEARCHES = BEAM, SAMPLING, EXPORT
NUMBERS = "alpha", "temperature", "top_p", "repetition_penalty"
FindPiece = Callable[[str], int]


def pieces(text: str, find: FindPiece) -> tuple[int, ...]:
    """The ids of pieces that are separated by spaces."""
    return tuple(map(find, text.split()))


def sequences(text: str, find: FindPiece) -> tuple[tuple[int, ...], ...]:
    """The ids of sequences of pieces that are separated by " | "."""
    parts = (pieces(part, find) for part in f" {text} ".split(" | "))
    return tuple(filter(None, parts))


class OptionMeaning(NamedTuple):
    """What an option means."""

    modes: tuple[str, ...]  # in which it has an effect
    ids: Callable[[str, FindPiece], Hashable] | None = None  # its text as token ids
    mask: Callable[[Place, Any], Any] | None = None  # of a rule that restricts a search
    allows_end: bool = False  # whether the end token may be one of the pieces


OPTIONS: dict[str, OptionMeaning] = {
    # The fields of config.decoding.
    "beam_size": OptionMeaning((BEAM, EXPORT)),
    "nbest": OptionMeaning((BEAM, EXPORT)),
    "horizon": OptionMeaning((BEAM, EXPORT)),
    "stop": OptionMeaning((BEAM, EXPORT)),
    "alpha": OptionMeaning((*SEARCHES, SCORE)),
    "power_penalty": OptionMeaning((*SEARCHES, SCORE)),
    "max_extra_length": OptionMeaning(SEARCHES),
    "max_length": OptionMeaning(SEARCHES),
    "max_length_ratio": OptionMeaning(SEARCHES),
    "min_length": OptionMeaning(SEARCHES),
    "min_length_ratio": OptionMeaning(SEARCHES),
    "repetition_penalty": OptionMeaning((*SEARCHES, SCORE)),
    "no_repeat_ngram": OptionMeaning(SEARCHES, mask=no_repeat_ngram_mask),
    "suppress": OptionMeaning((*SEARCHES, SCORE), ids=pieces),
    "suppress_first": OptionMeaning(
        SEARCHES, ids=pieces, mask=suppress_first_mask, allows_end=True
    ),
    "forbid_sequences": OptionMeaning(SEARCHES, ids=sequences, mask=forbid_sequences_mask),
    "forced_prefix": OptionMeaning((*SEARCHES, SCORE, ALIGN), ids=pieces),
    "forced_end": OptionMeaning((*SEARCHES, SCORE)),
    "renormalize": OptionMeaning((*SEARCHES, SCORE)),
    "samples": OptionMeaning(SEARCHES),  # 0: one of the other two
    "temperature": OptionMeaning((SAMPLING,)),
    "top_k": OptionMeaning((SAMPLING,)),
    "top_p": OptionMeaning((SAMPLING,)),
    "seed": OptionMeaning((SAMPLING,)),
    "mbr": OptionMeaning(SEARCHES),  # empty for an exported file
    "clean_source": OptionMeaning((*SEARCHES, SCORE, ALIGN)),
    "batch_size": OptionMeaning((*SEARCHES, SCORE, ALIGN)),
    "dtype": OptionMeaning((*SEARCHES, SCORE, ALIGN)),
    "model_parallel": OptionMeaning((BEAM, SAMPLING, SCORE, ALIGN)),
    # Flags of decode.py.
    "annotate": OptionMeaning((BEAM, SAMPLING)),
    "reference": OptionMeaning((BEAM, SAMPLING)),
    "metric": OptionMeaning((BEAM, SAMPLING)),
    "baseline": OptionMeaning((BEAM, SAMPLING)),
    "prefix": OptionMeaning((BEAM, SAMPLING)),
    "target": OptionMeaning((SCORE, ALIGN)),
}

FIELDS = {field.name for field in fields(DecodingConfig)}
FLAGS = [name for name in OPTIONS if name not in FIELDS]


def option_ids(decoding: DecodingConfig, tokenizer: Tokenizer, end_id: int) -> dict[str, Any]:
    """The token ids of the options that are texts. UserError(CONFIGURATION) for an unknown piece,
    and for the end token unless the option allows it."""

    def ids_of(name: str, row: OptionMeaning) -> Hashable:
        def find(piece: str) -> int:
            id_ = find_piece(tokenizer, piece)
            if id_ is None or (id_ == end_id and not row.allows_end):
                raise UserError(
                    CONFIGURATION,
                    f"decoding.{name}: expected pieces of the target vocabulary (listed in "
                    f"RUN/vocab) other than the end token, got {piece!r}; remove it",
                )
            return id_

        assert row.ids is not None
        return row.ids(getattr(decoding, name), find)

    return {name: ids_of(name, row) for name, row in OPTIONS.items() if row.ids}


def search_options(
    decoding: DecodingConfig,
    end_id: int,
    ids: Mapping[str, Any],
    weights: np.ndarray | None = None,
    rules: Rules | None = None,
) -> SearchOptions:
    """What a compiled program takes of these options. `ids` are those of `option_ids`; an option
    that is a text and has no ids is off. `weights` are those of an ensemble, `rules` a caller's
    own. The engine sets `max_length` for each length bucket.

    The fields of SearchOptions that are options have the same names. Integers that a caller has
    given for numbers become floats.
    """
    values = {
        field.name: ids.get(field.name, ())
        if OPTIONS[field.name].ids
        else getattr(decoding, field.name)
        for field in fields(decoding)
    }
    values |= {name: float(values[name]) for name in NUMBERS}
    masks = tuple(
        Mask(row.mask, values[name]) for name, row in OPTIONS.items() if row.mask and values[name]
    )
    shared = {name: values[name] for name in SearchOptions._fields if name in values}
    other = dict(max_length=0, end_id=end_id, masks=masks, weights=weights, rules=rules)
    return SearchOptions(**(shared | other))


def check_rules(rules: Any) -> None:
    """TypeError unless `rules` is None or can be a part of the key of a compiled program."""
    if rules is not None and not (callable(rules) and isinstance(rules, Hashable)):
        raise TypeError(
            "rules must be a hashable function of (logits, normalizer, history, t, sentences), got "
            f"{type(rules).__name__}"
        )


def search_mode(decoding: DecodingConfig) -> str:
    """The mode of a translation with these options."""
    return SAMPLING if decoding.samples else BEAM


def check_effect(options: Iterable[str], mode: str) -> None:
    """UserError(CONFIGURATION) if one of the options, which a user has given, has no effect."""
    unused = [name for name in options if mode not in OPTIONS[name].modes]
    if unused:
        names = ", ".join(f"--{name}" for name in unused)
        modes = " and ".join(dict.fromkeys(mode for name in unused for mode in OPTIONS[name].modes))
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

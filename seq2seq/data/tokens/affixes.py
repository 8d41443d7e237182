"""The token ids around the texts of a pair: special tokens and codes of languages (DataConfig)."""

from typing import NamedTuple

from seq2seq.config.data_config import LANGUAGES, DataConfig
from seq2seq.data.tokenizers.characters import find_piece
from seq2seq.data.tokenizers.languages import language_id
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.runtime.errors import CONFIGURATION, UserError


class Affixes(NamedTuple):
    """Ids around the texts of a pair; all are empty by default.

    A source is `source_begin`, its text, the end token, `source_end`; the labels of a target are
    `target_begin`, its text, the end token; the decoder begins with `start`.
    """

    source_begin: tuple[int, ...] = ()
    source_end: tuple[int, ...] = ()
    target_begin: tuple[int, ...] = ()
    start: int | None = None  # None: the start token of the model

    @property
    def source_tokens(self) -> int:
        """The tokens of a source besides its text and the end token."""
        return len(self.source_begin) + len(self.source_end)


def affixes_of(
    config: DataConfig,
    tokenizers: tuple[Tokenizer, Tokenizer],
    option: str = "data.{}",
    error_code: int = CONFIGURATION,
) -> Affixes:
    """The ids of config.source_begin, source_end, target_begin and target_start.

    `option.format(name)` is what a user sets a language with, for messages. UserError(error_code)
    for a language that is missing or unknown, UserError(CONFIGURATION) for an unknown piece.
    """

    def ids(name: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        return tuple(
            _id(config, name, piece, tokenizer, option, error_code)
            for piece in getattr(config, name).split()
        )

    source, target = tokenizers
    start = ids("target_start", target)
    return Affixes(
        ids("source_begin", source),
        ids("source_end", source),
        ids("target_begin", target),
        start[0] if start else None,
    )


def _id(
    config: DataConfig, name: str, piece: str, tokenizer: Tokenizer, option: str, error_code: int
) -> int:
    """The id of a piece, or of the language that stands for it."""
    text = name.partition("_")[0]  # source or target
    if piece in (f"{{{side}}}" for side in LANGUAGES):
        field = f"{piece[1:-1]}_language"
        code, shown = getattr(config, field), option.format(field)
        if not code:
            advice = f"it, or --{field}" if option.startswith("line") else shown
            raise UserError(
                error_code,
                f"{shown} is missing: expected the code of a language, which each {text} of this "
                f"model has (data.{name}); set {advice}",
            )
        if not tokenizer.languages and (token := tokenizer.id_of(code)) is not None:
            return token
        return language_id(tokenizer.languages, code, shown, error_code)
    token = find_piece(tokenizer, piece)
    if token is None:
        raise UserError(
            CONFIGURATION,
            f"data.{name}: {piece!r} is unknown: expected pieces of the {text} "
            "vocabulary, or {source} and {target}; change it",
        )
    return token

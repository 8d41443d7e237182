"""The languages of a job and of its lines, and the token ids that they add to a text."""

from dataclasses import replace

from seq2seq.config.data_config import LANGUAGES, TEMPLATES, DataConfig
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokens.affixes import Affixes, affixes_of
from seq2seq.decoding.results import Item
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def with_languages(config: DataConfig, source: str, target: str) -> DataConfig:
    """The config with other languages; empty: its own. UserError(CONFIGURATION) for a language
    that the model has no use for."""
    for side, code in zip(LANGUAGES, (source, target), strict=True):
        if code and side not in config.languages_used():
            raise UserError(
                CONFIGURATION,
                f"--{side}_language has no effect: expected a model whose texts have the code of "
                f"their {side} language, got one without (config.data); remove "
                f"--{side}_language={code}",
            )
    return _replaced(config, source, target)


def _replaced(config: DataConfig, source: str, target: str) -> DataConfig:
    """The config with other languages; empty: its own."""
    return replace(
        config,
        source_language=source or config.source_language,
        target_language=target or config.target_language,
    )


class LineAffixes:
    """The token ids around the text of each line: with the languages that it names, else with those
    of the job."""

    def __init__(self, config: DataConfig, tokenizers: tuple[Tokenizer, Tokenizer]):
        """UserError(CONFIGURATION) if the start token needs a language that is missing or
        unknown."""
        self.config, self._tokenizers = config, tokenizers
        self._used = config.languages_used()
        self._is_empty = not any(getattr(config, name) for name in TEMPLATES)
        self._affixes: dict[tuple[str, str], Affixes] = {}
        only_start = replace(config, source_begin="", source_end="", target_begin="")
        self.start = affixes_of(only_start, tokenizers, "--{}").start

    @property
    def languages(self) -> list[str]:
        """The languages of the job that its texts have: source and target."""
        return [getattr(self.config, f"{side}_language") for side in self._used]

    def of_job(self) -> Affixes:
        """Those of a line that names no language. UserError(CONFIGURATION) for a language that is
        missing or unknown."""
        return affixes_of(self.config, self._tokenizers, "--{}")

    def __call__(self, number: int, item: Item) -> Affixes:
        """Those of line `number`, from 0. UserError(DATA) for a language that is missing or
        unknown, and for a start token that is not the job's."""
        if self._is_empty:
            return Affixes()
        key = item.source_language, item.target_language
        if key not in self._affixes:
            self._affixes[key] = self._of_languages(number, *key)
        return self._affixes[key]

    def _of_languages(self, number: int, source: str, target: str) -> Affixes:
        config = _replaced(self.config, source, target)
        affixes = affixes_of(config, self._tokenizers, f"line {number + 1}: {{}}", DATA)
        if affixes.start != self.start:
            raise UserError(
                DATA,
                f"line {number + 1}: target_language={config.target_language!r} is another one "
                f"than that of the job: expected {self.config.target_language!r}, because the "
                "start token of this model depends on it (data.target_start); translate each "
                "target language in a job of its own",
            )
        return affixes

"""Translator: lines → token ids → the engine → text, in the order of the lines.

Translator.load("runs/NAME").translate(lines) gives what the command gives.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from data.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from data.tokenizer import Tokenizer
from decoding.engine import Engine, Job
from decoding.formats import Hypothesis, Item
from model.config import ModelConfig
from training.checkpoint import check_run, finite, load_params
from training.config import DecodingConfig

OPTION_SETS = 16  # kept by `with_options`, with what their engines found out about memory
WINDOW = 64  # batches of lines that are sorted by length together; bounds memory


class Translation(NamedTuple):
    """One line's translations, best first (samples: as drawn).

    `tokens` is the length of its source with the end token, `kept` what was translated.
    """

    hypotheses: list[Hypothesis]
    tokens: int
    kept: int

    @property
    def text(self) -> str:
        return self.hypotheses[0].text


@dataclass
class Window:
    """Lines that are sorted by length together, what is known of them, and how many are left."""

    job: Job
    results: list[Translation]
    left: int


class Translator:
    """Models of one vocabulary, tokenizers and options; all local devices share each batch."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
    ):
        self._models, self.decoding = models, decoding
        self.source_tokenizer, self.target_tokenizer = tokenizers
        self.engine = Engine(models, decoding, self._suppressed())
        self._options = lru_cache(OPTION_SETS)(self._other)

    @classmethod
    def load(
        cls, run: str | Path | Sequence[str | Path], checkpoint: str | int = "best",
        **decoding: int | float | str,
    ) -> "Translator":
        """From a run directory, or from several of one vocabulary (an ensemble).

        `decoding` overrides fields of the (first) run's config.decoding. Raises
        UserError(CHECKPOINT) where there is no run, no checkpoint, or a vocabulary that does not
        fit, UserError(CONFIGURATION) for impossible options, TypeError for a field that there is
        not.
        """
        runs = [run] if isinstance(run, str | Path) else list(run)
        runs = [Path(one).expanduser() for one in runs]
        found = [check_run(one, str(checkpoint)) for one in runs]
        config, tokenizers = found[0]
        for path, (other, _) in zip(runs, found, strict=True):
            if other.data.vocab_sha256 != config.data.vocab_sha256:
                raise UserError(CHECKPOINT, f"{path} has another vocabulary than {runs[0]}; an "
                                "ensemble needs one (train the others with init_from, or on the "
                                "same data)")
        config.decoding = replace(config.decoding, **decoding)
        config.validate()
        translator = cls([other.model for other, _ in found], tokenizers, config.decoding)
        translator.use(*(finite(load_params(path, str(checkpoint)), path) for path in runs))
        return translator

    def use(self, *params: Any) -> None:
        """Translate with these parameters from now on; nothing is compiled again for that."""
        self.engine.use(*params)

    def _suppressed(self) -> tuple[int, ...]:
        """The ids of config.decoding.suppress. UserError(CONFIGURATION) for one that is none."""
        ids = []
        for piece in self.decoding.suppress.split():
            found = self.target_tokenizer.id_of(piece)
            if found is None or found == self._models[0].end_id:
                raise UserError(CONFIGURATION, f"decoding.suppress: {piece!r} is no piece of the "
                                "target vocabulary that could be left out (RUN/vocab lists them)")
            ids.append(found)
        return tuple(ids)

    def translate(self, lines: Iterable[str], **decoding: int | float | str) -> list:
        """The translation of each line, in order; a blank line gives a blank line.

        `decoding` overrides options for this call. With several hypotheses a line gives a list.
        """
        translator = self.with_options(**decoding) if decoding else self
        found = translator.stream(lines)
        if translator.decoding.hypotheses == 1:
            return [one.text for one in found]
        return [[hypothesis.text for hypothesis in one.hypotheses] for one in found]

    def with_options(self, **decoding: int | float | str) -> "Translator":
        """The same models with other options. TypeError for an option that there is not."""
        options = replace(self.decoding, **decoding)
        try:
            options.validate()
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None
        if options == self.decoding:
            return self
        translator = self._options(options)
        translator.engine.variables = self.engine.variables
        return translator

    def _other(self, options: DecodingConfig) -> "Translator":
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return Translator(self._models, tokenizers, options)

    def stream(self, items: Iterable[str | Item], first: int = 0) -> Iterator[Translation]:
        """Translations in the order of the lines, in memory that their number does not change.

        `first` is the number of the first line: samples depend on a line's number and the seed.
        """
        items = (Item(item, item) if isinstance(item, str) else item for item in items)
        begun = deque()

        def jobs() -> Iterator[Job]:
            """The windows, each read and tokenised while the one before it is searched."""
            with ThreadPoolExecutor(1) as reader:
                number = first
                ahead = reader.submit(self._read, items, number)
                while (window := ahead.result()).results:
                    number += len(window.results)
                    ahead = reader.submit(self._read, items, number)
                    begun.append(window)
                    yield window.job

        for i, found in self.engine.search(jobs()):
            while not begun[0].left:
                yield from begun.popleft().results
            window = begun[0]
            texts = [Hypothesis(self.target_tokenizer.decode(ids), score) for ids, score in found]
            kept = len(window.job.sources[i]) + 1
            window.results[i] = Translation(texts, window.results[i].tokens, kept)
            window.left -= 1
        for window in begun:
            yield from window.results

    def _read(self, items: Iterator[Item], first: int) -> Window:
        """The next window; an empty one at the end."""
        size = WINDOW * self.decoding.batch_size * jax.local_device_count()
        items = list(itertools.islice(items, size))
        encoded = self.source_tokenizer.encode_many([item.text.strip() for item in items])
        kept = [ids[: self.engine.buckets[-1] - 1] for ids in encoded]
        prefixes = {i: self.target_tokenizer.encode(item.prefix)
                    for i, item in enumerate(items) if item.prefix and kept[i]}
        for i, ids in prefixes.items():
            if len(ids) > (most := self.engine.longest_prefix(len(kept[i]) + 1)):
                raise UserError(DATA, f"line {first + i + 1}: its prefix has {len(ids)} tokens, at "
                                f"most {most} can be (--max_extra_length and --max_length)")
        blank = [Hypothesis("", 0.0)]
        results = [Translation(blank, len(ids) + bool(ids), 0) for ids in encoded]
        return Window(Job(kept, prefixes, first), results, sum(map(bool, encoded)))

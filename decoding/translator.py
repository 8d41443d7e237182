"""Translator: lines → token ids → the engine → text, in the order of the lines.

Translator.load("runs/NAME").translate(lines) gives what the command gives.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from data.tokenizer import Tokenizer
from decoding.calls import Job
from decoding.engine import Engine
from decoding.formats import Hypothesis, Item
from decoding.streaming import IDLE, in_order, windows
from interop.models import check_run, load_params
from model.config import ModelConfig
from runtime.devices import prepare_jax_by_default
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from runtime.prefetch import Prefetched
from storage.checkpoint import require_finite
from storage.config import DecodingConfig

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
        cls,
        run: str | Path | Sequence[str | Path],
        checkpoint: str | int = "best",
        **decoding: int | float | str,
    ) -> "Translator":
        """From a run directory, or from several of one vocabulary (an ensemble).

        `decoding` overrides fields of the (first) run's config.decoding. Raises
        UserError(CHECKPOINT) where there is no run, no checkpoint, or a vocabulary that does not
        fit, UserError(CONFIGURATION) for impossible options, TypeError for an unknown option. Sets
        up the devices (runtime.devices.prepare_jax) unless a backend is initialised already.
        """
        check_options(decoding)
        prepare_jax_by_default()
        runs = [run] if isinstance(run, str | Path) else list(run)
        runs = [Path(one).expanduser() for one in runs]
        found = [check_run(one, str(checkpoint)) for one in runs]
        config, tokenizers = found[0]
        for path, (other, _) in zip(runs, found, strict=True):
            if other.data.vocab_sha256 != config.data.vocab_sha256:
                raise UserError(
                    CHECKPOINT,
                    f"{path} has another vocabulary than {runs[0]}; an "
                    "ensemble needs one (train the others with init_from, or on the "
                    "same data)",
                )
        config.decoding = replace(config.decoding, **decoding)
        config.validate()
        translator = cls([other.model for other, _ in found], tokenizers, config.decoding)
        translator.use(*(require_finite(load_params(path, str(checkpoint)), path) for path in runs))
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
                raise UserError(
                    CONFIGURATION,
                    f"decoding.suppress: {piece!r} is no piece of the "
                    "target vocabulary that could be left out (RUN/vocab lists them)",
                )
            ids.append(found)
        return tuple(ids)

    def translate(self, lines: Iterable[str], **decoding: int | float | str) -> list:
        """The translation of each line, in order; a blank line gives a blank line.

        `decoding` overrides options for this call. With several hypotheses a line gives a list.
        TypeError for an unknown option, and for lines that are not strings.
        """
        translator = self.with_options(**decoding) if decoding else self
        found = translator.stream(lines)
        if translator.decoding.hypotheses == 1:
            return [one.text for one in found]
        return [[hypothesis.text for hypothesis in one.hypotheses] for one in found]

    def with_options(self, **decoding: int | float | str) -> "Translator":
        """The same models with other options. TypeError for an unknown option."""
        check_options(decoding)
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

        Each comes as soon as it and those before it are computed, also while `items` blocks.
        `first` is the number of the first line: samples depend on a line's number and the seed.
        """
        if isinstance(items, str):
            raise TypeError(
                f"lines must be an iterable of strings, got the string {items[:20]!r}; pass [text]"
            )
        return self._stream(items, first)

    def _stream(self, items, first):
        with closing(self.results(enumerate(items, first))) as groups:
            yield from in_order(groups, first)

    def results(self, lines: Iterable[tuple[int, str | Item]]) -> Iterator[dict[int, Translation]]:
        """The translations of (number, line) pairs as the compiled calls find them, in any order;
        {} while the input pauses. To close it does not wait for the input."""
        size = WINDOW * self.decoding.batch_size * jax.local_device_count()
        read = Prefetched(map(checked, lines), size)
        jobs = Prefetched(map(self._tokenized, windows(read, size)), 1)
        begun, ready, failed = {}, {}, []  # tokens of lines in a job, translations, input errors

        def available() -> Iterator[Job | None]:
            """The next job as soon as it is read; None where there is other work meanwhile."""
            while True:
                if not jobs.ready(0 if begun or ready else IDLE):
                    yield None
                    continue
                try:
                    job, tokens = next(jobs)
                except StopIteration:
                    return
                except Exception as error:  # noqa: BLE001 – raised below, after what came before it
                    failed.append(error)
                    return
                for number, ids, count in zip(job.numbers, job.sources, tokens, strict=True):
                    if ids:
                        begun[number] = count
                    else:
                        ready[number] = Translation([Hypothesis("", 0.0)], count, 0)
                yield job

        try:
            for call in self.engine.search(available()):
                for job, index, found in call:
                    number = job.numbers[index]
                    ready[number] = Translation(
                        self._hypotheses(found), begun.pop(number), len(job.sources[index]) + 1
                    )
                yield dict(ready)
                ready.clear()
            yield ready
        finally:
            read.close()
            jobs.close()
        if failed:
            raise failed[0]

    def _hypotheses(self, found):
        return [
            Hypothesis(self.target_tokenizer.decode(ids), score, log_prob, len(ids) + 1)
            for ids, score, log_prob in found
        ]

    def _tokenized(self, window: list[tuple[int, Item]]) -> tuple[Job, list[int]]:
        """The job of some lines, and how many tokens each line has before it is truncated."""
        numbers, items = zip(*window, strict=True)
        encoded = self.source_tokenizer.encode_many([item.text.strip() for item in items])
        kept = [ids[: self.engine.buckets[-1] - 1] for ids in encoded]
        prefixes = {
            i: self.target_tokenizer.encode(item.prefix)
            for i, item in enumerate(items)
            if item.prefix and kept[i]
        }
        for i, ids in prefixes.items():
            if len(ids) > (most := self.engine.longest_prefix(len(kept[i]) + 1)):
                raise UserError(
                    DATA,
                    f"line {numbers[i] + 1}: its prefix has {len(ids)} tokens, "
                    f"expected at most {most}; shorten it, or raise "
                    "--max_extra_length or --max_length",
                )
        return Job(kept, prefixes, numbers), [len(ids) + bool(ids) for ids in encoded]


def checked(line: tuple[int, str | Item]) -> tuple[int, Item]:
    """A numbered line as an item. TypeError unless it is a string or an item."""
    number, item = line
    if isinstance(item, str):
        item = Item(item, item)
    if not isinstance(item, Item):
        raise TypeError(f"lines[{number}] must be a string, got {type(item).__name__} ({item!r})")
    return number, item


def check_options(given: dict[str, Any]) -> None:
    """TypeError that names the nearest option for one that does not exist."""
    names = [field.name for field in fields(DecodingConfig)]
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"options: {', '.join(names)}"
            raise TypeError(f"unknown option {name}; {hint}")

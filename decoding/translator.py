"""Translator: lines → token ids → engine → text, in the order of the lines.

Translator.load("runs/NAME").translate(lines) returns what decode.py writes.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from data.pieces import tokenizers_for_pieces
from data.tokenizer import Tokenizer
from decoding.attention import Attention, attention_of
from decoding.calls import Job
from decoding.engine import Engine
from decoding.ensembles import members_of, normalized_weights, open_ensemble
from decoding.forcing import TeacherForcing
from decoding.formats import Hypothesis, Item
from decoding.job_source import JobSource, Translation, as_item
from decoding.programs import check_rules
from decoding.streaming import in_order, windows
from model.config import ModelConfig
from model.constraints import Rules
from runtime.devices import prepare_jax_by_default
from runtime.errors import CONFIGURATION, DATA, UserError
from runtime.prefetch import Prefetched
from storage.config import DecodingConfig

OPTION_SETS = 16  # translators kept by `with_options`, with their engines' batch sizes


class Translator:
    """Models of one vocabulary, tokenizers and options; all local devices share each batch."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
        weights: tuple[float, ...] | None = None,
        rules: Rules | None = None,
    ):
        """`weights` are those of an ensemble and sum to one; None: equal weights. `rules` are a
        caller's own, which are applied before those of `decoding`."""
        self._models, self.decoding, self.weights, self.rules = models, decoding, weights, rules
        self.source_tokenizer, self.target_tokenizer = tokenizers
        self.engine = Engine(models, decoding, self._suppress_ids(), weights, rules)
        self.forcing = TeacherForcing(self.engine, decoding, tokenizers)
        self._translator_for = lru_cache(OPTION_SETS)(self._new_translator)

    @classmethod
    def load(
        cls,
        run: str | Path | Sequence[str | Path],
        checkpoint: str | int | Sequence[str | int] = "best",
        *,
        weights: str | Sequence[float] | None = None,
        rules: Rules | None = None,
        source_pieces: bool = False,
        target_pieces: bool = False,
        **decoding: Any,
    ) -> "Translator":
        """Load a run directory, or an ensemble with one vocabulary (`members_of`).

        `weights` are those of its models, by default equal. `rules` are a caller's own search
        rules (docs/DECODING.md). With `source_pieces` the lines, with `target_pieces` translations,
        prefixes and given targets are pieces of the vocabulary, separated by spaces, instead of
        text. `decoding` overrides fields of the (first) run's config.decoding. Raises
        UserError(CHECKPOINT) if a run or checkpoint is missing or vocabularies differ,
        UserError(CONFIGURATION) for invalid options, TypeError for an unknown option. Configures
        JAX (runtime.devices.prepare_jax) unless a backend is initialised already.
        """
        check_option_names(decoding)
        check_rules(rules)
        prepare_jax_by_default()
        members = members_of(run, checkpoint)
        shares = None if weights is None else normalized_weights(weights, len(members))
        configs, tokenizers = open_ensemble(members)
        config = configs[0]
        config.decoding = replace(config.decoding, **decoding)
        config.validate()
        tokenizers = tokenizers_for_pieces(tokenizers, config.special, source_pieces, target_pieces)
        models = [one.model for one in configs]
        translator = cls(models, tokenizers, config.decoding, shares, rules)
        translator.use(*(member.load() for member in members))
        return translator

    def use(self, *params: Any) -> None:
        """Set the parameters of each model. Nothing is compiled again."""
        self.engine.use(*params)

    def _suppress_ids(self) -> tuple[int, ...]:
        """The ids of config.decoding.suppress. UserError(CONFIGURATION) for an unknown piece."""
        ids = []
        for piece in self.decoding.suppress.split():
            id_ = self.target_tokenizer.id_of(piece)
            if id_ is None or id_ == self._models[0].end_id:
                raise UserError(
                    CONFIGURATION,
                    f"decoding.suppress: {piece!r} cannot be suppressed: expected pieces of the "
                    "target vocabulary (listed in RUN/vocab) other than the end token",
                )
            ids.append(id_)
        return tuple(ids)

    def translate(self, lines: Iterable[str], rules: Rules | None = None, **decoding: Any) -> list:
        """The translation of each line, in order; that of a blank line is blank.

        `rules` and `decoding` override rules and options for this call. If it asks for several
        hypotheses, a line has a list of translations. TypeError for an unknown option or a line
        that is not a string.
        """
        translator = self.with_options(rules, **decoding)
        translations = translator.stream(lines)
        if translator.decoding.hypotheses == 1:
            return [translation.text for translation in translations]
        return [[one.text for one in translation.hypotheses] for translation in translations]

    def with_options(self, rules: Rules | None = None, **decoding: Any) -> "Translator":
        """A translator with the same models and other options. TypeError for an unknown option,
        UserError(CONFIGURATION) for dtype=float32 if the weights were loaded for another dtype.

        `rules` replace those of this translator; None: keep them.
        """
        check_option_names(decoding)
        check_rules(rules)
        rules = self.rules if rules is None else rules
        options = replace(self.decoding, **decoding)
        try:
            options.validate()
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None
        if options == self.decoding and rules == self.rules:
            return self
        translator = self._translator_for(options, rules)
        try:
            translator.engine.share(self.engine)
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None
        return translator

    def _new_translator(self, options: DecodingConfig, rules: Rules | None) -> "Translator":
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return Translator(self._models, tokenizers, options, self.weights, rules)

    def stream(
        self, items: Iterable[str | Item], first: int = 0, annotate: bool = False
    ) -> Iterator[Translation]:
        """The translations in the order of the lines, in constant memory.

        Each is yielded as soon as it and those before it are computed, also while `items` blocks.
        `first` is the number of the first line: samples depend on the line number and the seed.
        `annotate`: one more pass sets `scored` of each hypothesis, except those of blank lines.
        """
        if isinstance(items, str):
            raise TypeError(
                f"lines must be an iterable of strings, got the string {items[:20]!r}; pass [text]"
            )
        return self._stream(items, first, annotate)

    def _stream(self, items, first, annotate):
        with closing(self.results(enumerate(items, first), annotate)) as groups:
            yield from in_order(groups, first)

    @property
    def can_align(self) -> bool:
        """Whether all models have cross-attention."""
        return all(model.kind != "rnn" for model in self._models)

    def attention(self, source: str, target: str | None = None, model: int = 0) -> Attention:
        """The attention weights of every layer and head for a source and its translation: the one
        that a search finds, with its token ids, or the text `target`.

        `model` is the number of a model of an ensemble, from 0. Both sides are truncated to the
        models' max_length. TypeError for texts that are not strings; ValueError for `model`;
        UserError(CONFIGURATION) for an RNN without attention.
        """
        if not 0 <= model < len(self._models):
            raise ValueError(f"model must be from 0 to {len(self._models) - 1}, got {model}")
        if self._models[model].kind == "rnn":
            raise UserError(
                CONFIGURATION,
                "attention weights: expected model.kind=transformer or rnn_attention, got rnn, "
                "which has no attention; use another run",
            )
        for name, text in (("source", source), ("target", target)):
            if not isinstance(text, str) and (text is not None or name == "source"):
                raise TypeError(f"{name} must be a string, got {type(text).__name__} ({text!r})")
        ids = self.source_tokenizer.encode(source.strip())
        if target is None:
            (found,) = self.stream([source])
            target_ids = found.hypotheses[0].ids
        else:
            target_ids = self.target_tokenizer.encode(target.strip())
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return attention_of(self.engine, model, self.forcing.pair(ids, target_ids), tokenizers)

    def results(
        self, lines: Iterable[tuple[int, str | Item]], annotate: bool = False
    ) -> Iterator[dict[int, Translation]]:
        """The translations of (number, line) pairs by number, in the order of the compiled calls;
        {} while the input pauses. Closing the generator does not wait for the input."""
        size = self.engine.sizes.window
        items = Prefetched(map(as_item, lines), size)
        jobs = Prefetched(map(self._tokenized, windows(items, size)), 1)
        source = JobSource(jobs)
        try:
            for results in self.engine.search(source):
                source.in_flight -= len(results)
                translations = source.take_blank()
                found = [self._decoded(hypotheses) for *_, hypotheses in results]
                if annotate:
                    sources = [job.sources[line] for job, line, _ in results]
                    found = self.forcing.annotated(sources, found)
                for (job, line, _), hypotheses in zip(results, found, strict=True):
                    kept = len(job.sources[line]) + 1
                    translations[job.numbers[line]] = Translation(
                        hypotheses, job.token_counts[line], kept
                    )
                yield translations
            yield source.take_blank()
        finally:
            items.close()
            jobs.close()
        if source.error is not None:
            raise source.error

    def _decoded(self, hypotheses):
        return [
            Hypothesis(self.target_tokenizer.decode(ids), score, log_prob, len(ids) + 1, ids)
            for ids, score, log_prob in hypotheses
        ]

    def _tokenized(self, window: list[tuple[int, Item]]) -> Job:
        """The job of a window of numbered lines; sources are truncated to the models' max_length.
        UserError(DATA) for a prefix that leaves no room for the end token."""
        numbers, items = zip(*window, strict=True)
        encoded = self.source_tokenizer.encode_many([item.text.strip() for item in items])
        kept = [ids[: self.engine.buckets[-1] - 1] for ids in encoded]
        prefixes = {
            i: self.target_tokenizer.encode(item.prefix)
            for i, item in enumerate(items)
            if item.prefix and kept[i]
        }
        for i, ids in prefixes.items():
            if len(ids) > (limit := self.engine.max_prefix_length(len(kept[i]) + 1)):
                raise UserError(
                    DATA,
                    f"line {numbers[i] + 1}: its prefix has {len(ids)} tokens, "
                    f"expected at most {limit}; shorten it, or raise "
                    "--max_extra_length or --max_length",
                )
        return Job(kept, prefixes, numbers, [len(ids) + bool(ids) for ids in encoded])


def check_option_names(given: dict[str, Any]) -> None:
    """TypeError, with the most similar name, if an option does not exist."""
    names = [field.name for field in fields(DecodingConfig)]
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"options: {', '.join(names)}"
            raise TypeError(f"unknown option {name}; {hint}")

"""Translator: lines → token ids → engine → text, in the order of the lines.

Translator.load("runs/NAME").translate(lines) returns what decode.py writes.
"""

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import DecodingConfig
from seq2seq.data.metrics import METRICS
from seq2seq.data.tokenizers.characters import characters_of
from seq2seq.data.tokenizers.piece_tokenizer import PieceTokenizer, tokenizers_for_pieces
from seq2seq.data.tokenizers.tokenizer import Tokenizer, ids_without_piece
from seq2seq.decoding.engine.attention_weights import Attention, attention_of
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.teacher_forcing import TeacherForcing
from seq2seq.decoding.ensembles import Member, members_of, normalized_weights, open_ensemble
from seq2seq.decoding.languages import LineAffixes, with_languages
from seq2seq.decoding.mbr import mbr_hypothesis
from seq2seq.decoding.results import (
    Hypothesis,
    Item,
    Translation,
    as_item,
    as_pair,
    check_text,
    source_text,
    stripped,
)
from seq2seq.decoding.search_options import (
    changed_options,
    check_option_names,
    check_rules,
    option_ids,
    search_options,
)
from seq2seq.decoding.stated_settings import stated_settings
from seq2seq.decoding.streaming import WindowFeed, in_order, in_order_with_room, weight, windows
from seq2seq.decoding.token_ids import check_affixes, encoded_sources
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.rules import Rules
from seq2seq.pretrained.models import read_current
from seq2seq.runtime.control import Control
from seq2seq.runtime.device_check import check_accelerators
from seq2seq.runtime.devices import check_not_forked, prepare_jax_by_default
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.prefetch import Prefetched

OPTION_SETS = 16  # translators kept by `with_options`, with their engines' batch sizes


class Translator:
    """Models of one vocabulary, tokenizers and options; all local devices share each batch."""

    members: tuple[Member, ...] = ()  # the runs and checkpoints that `load` has read

    def __init__(
        self,
        models: Sequence[ModelConfig],
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
        weights: tuple[float, ...] | None = None,
        rules: Rules | None = None,
        control: Control = Control(),  # noqa: B008 – immutable
        data: DataConfig = DataConfig(),  # noqa: B008 – not changed
        source_prefix: str = "",
    ):
        """`weights` are those of an ensemble and sum to one; None: equal weights. `rules` are a
        caller's own, which are applied before those of `decoding`. `control` is that of the
        engine's compiled calls. `data` has the pieces and languages around texts; `source_prefix`
        is the text before each source that has none of its own."""
        check_text("source_prefix", source_prefix)
        self.source_prefix = source_prefix
        self.source_tokenizer, self.target_tokenizer = tokenizers
        self.affixes_of_line = LineAffixes(data, tokenizers)
        if (start := self.affixes_of_line.start) is not None:
            models = [replace(model, start_id=start) for model in models]
        self._models, self.decoding, self.weights, self.rules = models, decoding, weights, rules
        self._control = control
        if decoding.mbr:
            METRICS[decoding.mbr].check()  # the package of its tokenizer may be missing
        end_id, vocab = models[0].end_id, models[0].target_vocab_size
        ids = option_ids(decoding, self.target_tokenizer, end_id)
        ids["suppress"] += tuple(ids_without_piece(self.target_tokenizer, vocab))
        shares = None if weights is None else np.array(weights, np.float32)
        options = search_options(decoding, end_id, ids, shares, rules)
        self.engine = Engine(models, decoding, options, ids["forced_prefix"], control)
        check_affixes(self.engine, data)
        self.forcing = TeacherForcing(self.engine, decoding, tokenizers, self.affixes_of_line)
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
        control: Control = Control(),  # noqa: B008 – immutable
        source_language: str = "",
        target_language: str = "",
        source_prefix: str = "",
        local_dir: str = "",
        **decoding: Any,
    ) -> "Translator":
        """Load a run directory, or an ensemble with one vocabulary (`members_of`). A URL such as
        gs://bucket/run is downloaded to `local_dir`; empty: the user's cache directory. A model of
        the Hugging Face Hub, hf://OWNER/NAME[@REVISION], is fetched to the cache of the Hub.

        `weights` are those of its models, by default equal. `rules` are a caller's own search rules
        (docs/DECODING.md). With `source_pieces` the lines, with `target_pieces` translations,
        prefixes and given targets are pieces of the vocabulary, separated by spaces, instead of
        text. `control` is that of the engine's compiled calls. The languages are codes of a
        multilingual model; empty: those of the (first) run's config.data. `source_prefix` is a text
        before each source, such as "summarize: ". `decoding` overrides fields of config.decoding.
        Raises UserError(CHECKPOINT) if a run or checkpoint is missing or vocabularies differ,
        UserError(CONFIGURATION) for invalid options, TypeError for an unknown option. Configures
        JAX (seq2seq.runtime.devices.prepare_jax) unless a backend is initialised already.
        """
        check_option_names(decoding)
        check_rules(rules)
        prepare_jax_by_default(decoding.get("model_parallel", 1))

        def of_members(members: list[Member]) -> "Translator":
            shares = None if weights is None else normalized_weights(weights, len(members))
            configs, tokenizers = open_ensemble(members)
            config = configs[0]
            options = changed_options(config.decoding, decoding)
            pieces = source_pieces, target_pieces
            sides: Any = tokenizers_for_pieces(tokenizers, config.special, *pieces)
            models = [member_config.model for member_config in configs]
            data = with_languages(config.data, source_language, target_language)
            translator = cls(models, sides, options, shares, rules, control, data, source_prefix)
            translator.members = tuple(members)
            placers = translator.engine.placers()
            params = [m.load(placer) for m, placer in zip(members, placers, strict=True)]
            check_accelerators()
            translator.use(*params)
            stated = members[0].directory, config, options, data, source_prefix
            for line in stated_settings(*stated):
                control.log(line)
            return translator

        return read_current(lambda: members_of(run, checkpoint, local_dir), of_members)

    def use(self, *params: Any) -> None:
        """Set the parameters of each model. Nothing is compiled again."""
        self.engine.use(*params)

    def translate(self, lines: Iterable[str], rules: Rules | None = None, **decoding: Any) -> list:
        """The translation of each line, in order; that of a blank line is blank.

        `rules` and `decoding` override rules and options for this call. If it asks for several
        hypotheses, a line has a list of translations. TypeError for an unknown option or a line
        that is not a string, ValueError for a line with a lone surrogate.
        """
        translator = self.with_options(rules, **decoding)
        check_no_string(lines)
        translations = translator.stream(list(lines))  # read here, not in a thread
        if translator.decoding.hypotheses == 1:
            return [translation.text for translation in translations]
        return [
            [hypothesis.text for hypothesis in translation.hypotheses]
            for translation in translations
        ]

    def with_options(self, rules: Rules | None = None, **decoding: Any) -> "Translator":
        """A translator with the same models and other options. TypeError for an unknown option,
        UserError(CONFIGURATION) for dtype=float32 if the weights were loaded for another dtype.

        `rules` replace those of this translator; None: keep them.
        """
        check_option_names(decoding)
        check_rules(rules)
        rules = self.rules if rules is None else rules
        options = changed_options(self.decoding, decoding)
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
        data = self.affixes_of_line.config
        return Translator(
            self._models,
            tokenizers,
            options,
            self.weights,
            rules,
            self._control,
            data,
            self.source_prefix,
        )

    def stream(
        self,
        items: Iterable[str | Item],
        first: int = 0,
        annotate: bool = False,
        ahead: int | None = None,
    ) -> Iterator[Translation]:
        """The translations in the order of the lines, in constant memory.

        Each is yielded as soon as it and those before it are computed, also while `items` blocks.
        So another thread iterates over `items`. It reads at most `ahead` items more than
        translations are yielded (None: as many as keep the devices busy, some thousand).
        `first` is the number of the first line, at least 0: samples depend on the seed and the line
        number modulo 2^32. `annotate`: one more pass sets `scored` of each hypothesis, except those
        of blank lines. TypeError if `items` is a string; ValueError if `ahead` is not positive or
        `first` is negative.
        """
        check_no_string(items)
        if not isinstance(first, int) or first < 0:
            raise ValueError(f"first must be an integer of at least 0, got {first!r}")
        if ahead is None:
            ahead = sys.maxsize
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, got {ahead}")
        window = max(1, ahead // 2)  # while one is translated, the next one is read
        compute = partial(self.numbered_translations, annotate=annotate, window=window)
        return in_order_with_room(compute, items, first, ahead)

    @property
    def can_align(self) -> bool:
        """Whether all models have cross-attention."""
        return all(model.attends for model in self._models)

    def attention(self, source: str, target: str | None = None, model: int = 0) -> Attention:
        """The attention weights of every layer and head for a source and its translation: the one
        that a search finds, with its token ids, or the text `target`.

        `model` is the number of a model of an ensemble, from 0. Both sides are truncated to the
        longest bucket. TypeError for texts that are not strings; ValueError for `model` and
        for a text with a lone surrogate; UserError(CONFIGURATION) for an RNN without attention.
        """
        if not 0 <= model < len(self._models):
            raise ValueError(f"model must be from 0 to {len(self._models) - 1}, got {model}")
        if not self._models[model].attends:
            raise UserError(
                CONFIGURATION,
                "attention weights: expected model.kind=transformer or rnn_attention, got rnn, "
                "which has no attention; use another run",
            )
        for name, text in (("source", source), ("target", target)):
            if text is not None or name == "source":
                check_text(name, text)
        item = self._prepared(Item(source, source, target=target or ""))
        tokenizers = self.source_tokenizer, self.target_tokenizer
        texts = source_text(item, tokenizers[0]), stripped(item.target or "", tokenizers[1])
        ids = [side.encode(text) for side, text in zip(tokenizers, texts, strict=True)]
        pair = self.forcing.pairs.of_texts(0, item, *ids)
        if target is None:
            (translation,) = self.stream([item])
            end = self._models[model].end_id
            pair = pair._replace(target=[*translation.hypotheses[0].ids, end])
        return attention_of(self.engine, model, pair, tokenizers)

    def numbered_translations(
        self,
        lines: Iterable[tuple[int, str | Item]],
        annotate: bool = False,
        window: int = sys.maxsize,
    ) -> Generator[dict[int, Translation], None, None]:
        """The translations of (number, line) pairs by number, in the order of the compiled calls;
        {} while the input pauses. Closing the generator does not wait for the input. `window` is
        the most lines of a window."""
        check_not_forked()
        size = min(window, self.engine.sizes.window)
        numbered = ((number, self._prepared(item)) for number, item in map(as_item, lines))
        items = Prefetched(numbered, size, weight)
        tokenizers = self.source_tokenizer, self.target_tokenizer
        to_sources = partial(encoded_sources, self.engine, tokenizers, self.affixes_of_line)
        encoded = Prefetched(map(to_sources, windows(items, size, weight)), 1)
        feed = WindowFeed(encoded)
        try:
            for results in self.engine.search(feed):
                feed.in_flight -= len(results)
                translations = feed.take_blank()
                sources = [source for source, _ in results]
                nbest_lists = [self._with_texts(hypotheses) for _, hypotheses in results]
                if utility := self.decoding.mbr:
                    nbest_lists = [[mbr_hypothesis(nbest, utility)] for nbest in nbest_lists]
                if annotate:
                    nbest_lists = self.forcing.annotated(sources, nbest_lists)
                for source, nbest in zip(sources, nbest_lists, strict=True):
                    tokens = source.length + source.cut
                    translations[source.number] = Translation(
                        nbest, tokens, source.length, source.unknown, source.replaced
                    )
                yield translations
            yield feed.take_blank()
        finally:
            items.close()
            encoded.close()
        if feed.error is not None:
            raise feed.error

    def _prepared(self, item: Item) -> Item:
        """The item with the source prefix of the job unless it has its own, its texts in the normal
        form of the run, and its source clean. Pieces stay as they are."""
        if item.source_prefix is None:
            item = item._replace(source_prefix=self.source_prefix)
        form = self.affixes_of_line.config.normal_form
        if not isinstance(self.source_tokenizer, PieceTokenizer):
            item = item._replace(text=form(item.text), source_prefix=form(item.source_prefix or ""))
            if self.decoding.clean_source:
                text, replaced = characters_of(self.source_tokenizer).clean(item.text)
                item = item._replace(text=text, replaced=replaced)
        if not isinstance(self.target_tokenizer, PieceTokenizer):
            texts = item.prefix, item.target
            prefix, target = (None if text is None else form(text) for text in texts)
            item = item._replace(prefix=prefix, target=target)
        return item

    def _with_texts(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        decode = self.target_tokenizer.decode
        return [hypothesis._replace(text=decode(hypothesis.ids)) for hypothesis in hypotheses]

    def score(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Translation]:
        """The score of each pair (source, target), in order: a translation whose only hypothesis is
        the target. A score is NaN if the models' logits are not finite.

        One teacher-forced pass computes it; it equals the score that a search gives the target. The
        hypothesis of a pair with two blank sides is blank and has no `scored`. Another thread
        iterates over `pairs`. TypeError for a pair that is not two strings, ValueError for a text
        with a lone surrogate.
        """
        items = (
            Item(source, "", target=target) for source, target in map(as_pair, enumerate(pairs))
        )
        with closing(self.numbered_scores(enumerate(items))) as groups:
            yield from in_order(groups)

    def numbered_scores(
        self, lines: Iterable[tuple[int, Item]]
    ) -> Generator[dict[int, Translation], None, None]:
        """`score` of numbered items and their targets, by number, as the compiled calls end."""
        check_not_forked()
        size = self.engine.sizes.window
        numbered = ((number, self._prepared(item)) for number, item in lines)
        with closing(Prefetched(numbered, size, weight)) as items:
            for window in windows(items, size, weight):
                for group in self.forcing.translations(window):
                    yield {window[index][0]: result for index, result in group.items()}


def check_no_string(lines: object) -> None:
    """TypeError for a string in place of an iterable of strings."""
    if isinstance(lines, str):
        raise TypeError(
            f"lines must be an iterable of strings, got the string {lines[:20]!r}; pass [text]"
        )

"""Results of a directory of transformers for some texts, compared with those of transformers.

A check returns whether it passed and what it found. It raises Unavailable where transformers is
not installed or fails.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer, ids_without_piece
from seq2seq.decoding.results import Hypothesis, Item
from seq2seq.decoding.search_options import option_ids
from seq2seq.decoding.token_ids import encoded_sources
from seq2seq.decoding.translator import Translator
from seq2seq.model.kinds import make_model

TOLERANCE = 1e-4  # of logits, as a share of the largest one; of scores
LONGEST = 128  # tokens of a hypothesis if the directory has no limit
Outcome = tuple[bool, str]  # whether a check passed, and what it found


class Unavailable(Exception):
    """transformers cannot compute what a result is compared with."""


@contextmanager
def of_transformers() -> Iterator[None]:
    """An error of transformers as Unavailable: it is no verdict on the directory."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 – any
        raise Unavailable(f"transformers raises {type(error).__name__}: {error}") from error


def with_any_languages(data: DataConfig, tokenizer: Tokenizer) -> DataConfig:
    """The config with languages where the model needs them: from English into another one."""
    codes = sorted(tokenizer.languages, key=lambda code: f"{code}_"[:3] not in ("en_", "eng"))
    source, target = data.source_language, data.target_language
    if codes and "source" in data.languages_used():
        source = source or codes[0]
    if codes and "target" in data.languages_used():
        target = target or codes[-1]
    return replace(data, source_language=source, target_language=target)


class Comparison:
    """Results for some texts, here and in transformers. Its methods raise Unavailable."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        tokenizers: tuple[Tokenizer, Tokenizer],
        params: Any,
        texts: list[str],
    ):
        self._directory, self._texts, self._params = directory, texts, params
        self._data = with_any_languages(config.data, tokenizers[0])
        limit = config.decoding.max_length or LONGEST
        self._decoding = replace(config.decoding, max_length=limit, max_extra_length=limit)
        self._model = replace(config.model, dtype="float32")
        self._translator = Translator([self._model], tokenizers, self._decoding, data=self._data)
        self._translator.use(params)
        self._target, affixes = tokenizers[1], self._translator.affixes_of_line
        items = [(number, Item(text, text)) for number, text in enumerate(texts)]
        self._sources = encoded_sources(self._translator.engine, tokenizers, affixes, items)
        start = self._translator.engine.models[0].config.start_id
        self._begin = [start, *self._sources[0].forced]  # of all outputs
        end = self._model.end_id
        self._inputs = [[*source.ids, end, *source.after] for source in self._sources]

    @cached_property
    def _reference(self) -> Any:
        """The model of transformers, in float32."""
        for name in ("transformers", "torch"):
            if find_spec(name) is None:
                raise Unavailable(f"{name} is not installed")
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        with of_transformers():
            return transformers.AutoModelForSeq2SeqLM.from_pretrained(
                self._directory, dtype="float32", use_safetensors=True, local_files_only=True
            ).eval()

    def token_ids(self) -> Outcome:
        """Whether the ids of the sources, with the tokens around them, are the same."""
        if find_spec("transformers") is None:
            raise Unavailable("transformers is not installed")
        from transformers import AutoTokenizer

        tag = ""
        if self._data.source_begin == "{target}":  # of MADLAD, a text in transformers
            (token,) = self._translator.affixes_of_line.of_job().source_begin
            tag = self._target.piece(token) + " "
        with of_transformers():
            tokenizer = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
            if self._data.source_language:
                tokenizer.src_lang = self._data.source_language
            theirs = [tokenizer(tag + text).input_ids for text in self._texts]
        whole = [
            (ids, other)
            for source, ids, other in zip(self._sources, self._inputs, theirs, strict=True)
            if not source.cut
        ]
        different = [f"; here {ids}, there {other}" for ids, other in whole if ids != other]
        result = f"{len(whole) - len(different)} of {len(whole)} sources equal"
        return not different, result + "".join(different[:1])

    def logits(self) -> Outcome:
        """The largest difference of the logits for the texts as sources and as targets."""
        network = self._reference
        import jax
        import torch

        longest, begin = self._translator.engine.buckets[-1], self._begin
        targets = [[*begin, *self._target.encode(text)][:longest] for text in self._texts]
        (source, mask), (target, target_mask) = map(self._padded, (self._inputs, targets))
        with of_transformers(), torch.no_grad():
            theirs = network(
                input_ids=torch.tensor(source), attention_mask=torch.tensor(mask),
                decoder_input_ids=torch.tensor(target),
            ).logits.numpy()  # fmt: skip
        apply = jax.jit(make_model(self._model).apply)
        variables = {"params": self._params}
        ours = np.asarray(apply(variables, source, target, mask, target_mask))
        used = target_mask > 0
        difference, largest = np.abs(ours - theirs)[used].max(), np.abs(theirs[used]).max()
        result = f"largest difference {difference:.1e} of logits up to {largest:.1f}"
        return bool(difference <= TOLERANCE * largest), result

    def hypotheses(self) -> Outcome:
        """Whether each best hypothesis is the same, or has no lower score here."""
        network = self._reference
        ours = [line.hypotheses[0] for line in self._translator.stream(self._texts, annotate=True)]
        theirs = [[Hypothesis("", 0.0, 0.0, 0, ids)] for ids in self._generated(network)]
        scored = self._translator.forcing.annotated(self._sources, theirs)
        equal = better = 0
        for hypothesis, (other,) in zip(ours, scored, strict=True):
            if list(hypothesis.ids) == list(other.ids):
                equal += 1
            elif (
                hypothesis.scored
                and other.scored
                and hypothesis.scored.score >= other.scored.score - TOLERANCE
            ):
                better += 1
        result = f"{equal} of {len(ours)} equal, {better} others with at least the same score here"
        return equal + better == len(ours), result

    def _generated(self, network: Any) -> list[list[int]]:
        """The ids that transformers generates with the settings of the directory, without the
        start and end tokens."""
        import torch

        decoding, end, forced = self._decoding, self._model.end_id, self._begin[1:]
        suppress = (
            *option_ids(decoding, self._target, end)["suppress"],
            *ids_without_piece(self._target, self._model.target_vocab_size),
        )

        def end_at_limit(ids: Any, scores: Any) -> Any:
            """Without forced_eos_token_id an output is truncated at its limit."""
            if ids.shape[1] < decoding.max_length:
                return scores
            only_end = torch.full_like(scores, -torch.inf)
            only_end[:, end] = 0 if decoding.forced_end else scores[:, end]
            return only_end

        source, mask = self._padded(self._inputs)
        with of_transformers(), torch.no_grad():
            rows = network.generate(
                input_ids=torch.tensor(source), attention_mask=torch.tensor(mask),
                decoder_start_token_id=self._begin[0], max_new_tokens=decoding.max_length,
                forced_bos_token_id=forced[0] if forced else None,
                bad_words_ids=[[token] for token in suppress] or None,
                logits_processor=[end_at_limit], num_return_sequences=1,
                return_dict_in_generate=False,
            ).tolist()  # fmt: skip
        rows = [row[1:] for row in rows]  # the start token may be the end token
        return [row[: row.index(end)] if end in row else row for row in rows]

    def _padded(self, ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """[texts, longest] ids, and 1 where they are no padding."""
        shape = len(ids), max(map(len, ids))
        padded, mask = np.full(shape, self._model.pad_id), np.zeros(shape, np.int64)
        for number, values in enumerate(ids):
            padded[number, : len(values)], mask[number, : len(values)] = values, 1
        return padded, mask

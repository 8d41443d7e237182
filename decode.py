"""Translate: lines → tokens → length bucket → encode and search in one graph → lines, in order.

`Translator` is the same in Python: Translator.load("runs/NAME").translate(lines).
"""

import itertools
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from data.errors import CHECKPOINT, DATA, UserError
from data.files import check_outputs, write_lines
from data.scores import bleu, chrf, tokenized_bleu
from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.transformer import Transformer
from model.translate import translate
from training.checkpoint import check_run, everywhere, load_params
from training.command import prepare_jax, run_command
from training.config import DecodingConfig

WINDOW = 64  # batches of lines that are sorted by length together; bounds memory
IN_FLIGHT = 2  # batches the devices have in hand while the host prepares and reads others


class Translation(NamedTuple):
    """One line's translation. `tokens` is the length of its source, `kept` what was translated."""

    text: str
    score: float
    tokens: int
    kept: int


class Translator:
    """A model, its tokenizers and its decoding options; all local devices share each batch."""

    def __init__(
        self,
        model: ModelConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
    ):
        self.decoding = decoding
        self.source_tokenizer, self.target_tokenizer = tokenizers
        self._model = Transformer(model)
        room = model.max_length - decoding.max_extra_length
        # One compiled shape for each: short sentences need not wait for a long one's padding.
        self.buckets = [s for s in (16, 32, 64, 128, 256, 512, 1024, 2048) if s < room] + [room]
        self._search = cache(self._compile)

    @classmethod
    def load(
        cls, run: str | Path, checkpoint: str | int = "best", **decoding: int | float
    ) -> "Translator":
        """From a run directory; `decoding` overrides fields of the run's config.decoding.

        Raises UserError(CHECKPOINT) where there is no run, no checkpoint, or a vocabulary that does
        not fit it, and TypeError for a field that there is not.
        """
        run = Path(run).expanduser()
        config, tokenizers = check_run(run, str(checkpoint))
        config.decoding = replace(config.decoding, **decoding)
        config.validate()
        translator = cls(config.model, tokenizers, config.decoding)
        translator.use(load_params(run, str(checkpoint)))
        return translator

    def use(self, params: Any) -> None:
        """Translate with these parameters from now on; nothing is compiled again for that."""
        self._variables = {"params": jax.device_put(params, everywhere())}

    def _compile(self, bucket: int):
        options = self.decoding
        search = partial(
            translate,
            self._model,
            beam_size=options.beam_size,
            max_length=bucket + options.max_extra_length,
            alpha=options.alpha,
        )
        return jax.pmap(search, in_axes=(None, 0, 0, 0))

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The translation of each line, in order; a blank line gives a blank line."""
        return [translation.text for translation in self.stream(lines)]

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Translations in the order of the lines, in memory that their number does not change."""
        lines = iter(lines)
        rows = self.decoding.batch_size * jax.local_device_count()
        while window := list(itertools.islice(lines, rows * WINDOW)):
            yield from self._translate_window(window, rows)

    def _translate_window(self, lines: Sequence[str], rows: int) -> list[Translation]:
        encoded = self.source_tokenizer.encode_many([line.strip() for line in lines])
        kept = [ids[: self.buckets[-1] - 1] for ids in encoded]
        results = [Translation("", 0.0, len(ids) + bool(ids), 0) for ids in encoded]
        waiting = deque()
        for bucket, members in self._batches(kept, rows):
            waiting.append((members, self._start(bucket, [kept[i] for i in members], rows)))
            if len(waiting) > IN_FLIGHT:
                self._finish(*waiting.popleft(), results, kept)
        while waiting:
            self._finish(*waiting.popleft(), results, kept)
        return results

    def _batches(self, kept: list[list[int]], rows: int) -> Iterator[tuple[int, list[int]]]:
        """(bucket, line numbers): sorted by length within the bucket of each line's own length."""
        order = sorted((len(ids) + 1, i) for i, ids in enumerate(kept) if ids)
        low = 0
        for bucket in self.buckets:
            members = [i for length, i in order if low < length <= bucket]
            low = bucket
            for at in range(0, len(members), rows):
                yield bucket, members[at : at + rows]

    def _start(self, bucket: int, sentences: list[list[int]], rows: int):
        """Hand a batch to the devices; rows without a sentence have length 0 and end at once."""
        end = self._model.config.end_id
        source = np.full((rows, bucket), self._model.config.pad_id, np.int32)
        lengths = np.zeros(rows, np.int32)
        for row, ids in enumerate(sentences):
            lengths[row] = len(ids) + 1
            source[row, : lengths[row]] = [*ids, end]
        limits = lengths + self.decoding.max_extra_length
        devices = jax.local_device_count()
        split = (x.reshape(devices, -1, *x.shape[1:]) for x in (source, lengths, limits))
        return self._search(bucket)(self._variables, *split)

    def _finish(self, members, hypotheses, results, kept):
        """Wait for a batch and write its texts to the places of their lines."""
        tokens, lengths, scores, _ = jax.device_get(hypotheses)
        tokens, lengths, scores = (
            x.reshape(-1, *x.shape[2:])[:, 0] for x in (tokens, lengths, scores)
        )
        for row, i in enumerate(members):
            text = self.target_tokenizer.decode(tokens[row, : lengths[row] - 1].tolist())
            results[i] = Translation(
                text, float(scores[row]), results[i].tokens, len(kept[i]) + 1
            )


def read_lines(path: str) -> Iterator[str]:
    """Lines of a file or stdin ("-"), split at \\n only; bytes that are not UTF-8 are replaced."""
    with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            text = line.decode("utf-8", errors="replace")
            if "\ufffd" in text and text.encode("utf-8") != line:
                print(f"{path}:{number}: not UTF-8, bytes replaced", file=sys.stderr)
            yield text.removeprefix("\ufeff") if number == 1 else text


def check_input(path: str) -> None:
    """UserError(DATA) unless `path` can be read: a file, a pipe, or "-" for stdin."""
    if path != "-" and (not os.path.exists(path) or os.path.isdir(path)):
        raise UserError(DATA, f"there is no file {os.path.abspath(path)}")


def decode_lines(translator: Translator, source: str) -> Iterator[str]:
    """Translations of a file's lines; what was cut off is named on stderr, the end counts."""
    lines = truncated = blank = 0
    for result in translator.stream(read_lines(source)):
        lines += 1
        if result.kept < result.tokens:
            truncated += 1
            print(f"{source}:{lines}: {result.tokens} tokens > {result.kept}, truncated",
                  file=sys.stderr)
        blank += result.tokens == 0
        yield result.text
    print(f"{lines} lines, {blank} blank, {truncated} truncated", file=sys.stderr)


def print_scores(texts: list[str], references: list[str], file) -> None:
    if len(texts) != len(references):
        raise UserError(DATA, f"the input has {len(texts)} lines, --reference has "
                        f"{len(references)}; the translations are written, but not scored")
    for metric in (bleu, tokenized_bleu, chrf) if texts else ():
        print(metric(texts, references), file=file)


def main() -> None:
    f = flags.FLAGS
    check_input(f.input)
    if f.output != "-":
        check_outputs([f.output], f.overwrite)
    references = None
    if f.reference:
        check_input(f.reference)
        if f.reference == f.input == "-":
            raise UserError(DATA, "--reference and --input cannot both be stdin; name a file")
        references = list(read_lines(f.reference))
    if not f.workdir:
        raise UserError(CHECKPOINT, "give --workdir=RUN, the directory that train.py wrote")
    run = Path(f.workdir).expanduser()
    options = ("beam_size", "alpha", "max_extra_length", "batch_size")
    given = {name: f[name].value for name in options if f[name].value is not None}
    check_run(run, f.checkpoint)
    prepare_jax(f.compilation_cache)
    translations = decode_lines(Translator.load(run, f.checkpoint, **given), f.input)
    texts = []  # kept for the scores only: a file of any size passes through

    def passed() -> Iterator[str]:
        for text in translations:
            if references is not None:
                texts.append(text)
            yield text

    if f.output == "-":
        for text in passed():
            print(text)
    else:
        write_lines(f.output, passed())
    if references is not None:
        print_scores(texts, references, sys.stderr if f.output == "-" else sys.stdout)


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "The run directory that train.py wrote.")
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step.")
    flags.DEFINE_string("input", "-", "Text, one sentence a line; - is stdin.")
    flags.DEFINE_string("output", "-", "Translations, line by line; - is stdout.")
    flags.DEFINE_string("reference", "", "Prints BLEU and chrF against this file.")
    flags.DEFINE_integer("beam_size", None, "Hypotheses kept; 1 is greedy search.", 1)
    flags.DEFINE_float("alpha", None, "Length penalty ((5 + length) / 6)^alpha.", 0.0)
    flags.DEFINE_integer("max_extra_length", None, "Output tokens beyond the source's length.", 0)
    flags.DEFINE_integer("batch_size", None, "Sentences in a batch, for each device.", 1)
    flags.DEFINE_bool("overwrite", False, "Replace an existing output file.")


if __name__ == "__main__":
    run_command(define_flags, main)

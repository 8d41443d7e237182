"""Evaluation on held-out pairs: scores, samples and final results.

The trainer evaluates the parameters every training.eval_every steps and at the last step, then the
average of the last checkpoints.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from shlex import quote
from typing import Any, Protocol

import jax
import numpy as np

from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import fixed_batches
from seq2seq.data.batching.packing import Batch, row_layout
from seq2seq.data.corpora.corpus import Corpus
from seq2seq.data.corpora.held_out import qualified
from seq2seq.data.metrics import (
    BLEU,
    Metric,
    Score,
    chrf,
    exact,
    tokenized_bleu,
    tokenizer_hint,
)
from seq2seq.data.tokens.pairs import Pairs
from seq2seq.runtime import processes
from seq2seq.runtime.streams import write_stored
from seq2seq.storage.best_checkpoint import BestCheckpoint, read_best
from seq2seq.storage.run import Run
from seq2seq.training.inputs import Data
from seq2seq.training.loss import LossSums
from seq2seq.training.parallel import split_rows

WRITTEN_SAMPLES = 20  # of each evaluation, in samples/
PRINTED_SAMPLES = 5  # at the end of training
BLEU_IS_0 = (
    "warning: BLEU is 0 although chrF is not, so the loss selects the best checkpoint: BLEU needs "
    "matching sequences of tokens, and texts of four tokens or more; in a new run, set "
    "training.bleu_tokenizer to that of the target language, or training.best_metric=chrf"
)


class Translated(Protocol):
    """The translation of a sentence."""

    @property
    def text(self) -> str: ...


class EvaluationTranslator(Protocol):
    """Translates sentences during training; seq2seq.Translator is one."""

    def use(self, params: Any) -> None:
        """Set the parameters."""

    def stream(self, items: list[str], first: int) -> Iterable[Translated]:
        """One translation per sentence; `first` is the index of the first."""


class Evaluator:
    """Evaluates parameters on the validation data, records the scores and updates `best`.

    `held_out` is the validation data by name. Each set is evaluated; the first one decides which
    checkpoint is the best. Without validation data an evaluation does nothing. `eval_step` is that
    of `parallel_eval_step`: (params, batch [copies, B, …]) → LossSums.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        held_out: dict[str, tuple[Corpus, Pairs]],
        eval_step: Callable[[Any, Batch], LossSums],
        translator: EvaluationTranslator,
    ):
        self._config, self._run, self._held_out = config, run, held_out
        self._eval_step, self._translator = eval_step, translator
        self.bleu = BLEU[config.training.bleu_tokenizer]
        self.best = BestCheckpoint(config.training.best_metric)
        references = [text for corpus, _ in held_out.values() for text in corpus.target]
        if hint := tokenizer_hint([self.bleu], references):
            run.log(f"{hint}; in a new run, set training.bleu_tokenizer or training.best_metric")

    def evaluate(self, checkpoint: int | str, step: int, params: Any) -> None:
        """Compute and record the scores of `params`, which are those of `checkpoint`, at `step`."""
        if self._held_out:
            self._translator.use(params)
            scores = {name: self._scores(checkpoint, name, params) for name in self._held_out}
            self._record(checkpoint, step, scores)
            deciding, metric = next(iter(scores.values())), self._config.training.best_metric
            self.best.update(checkpoint, deciding[f"valid_{metric}"], deciding["valid_loss"])
            if metric == "bleu" and not deciding["valid_bleu"] and deciding["valid_chrf"]:
                self._run.log(BLEU_IS_0)
        self.best.evaluated_step = step

    def _scores(self, checkpoint: int | str, name: str, params: Any) -> dict[str, float]:
        """The metrics of one validation set; logs them and writes samples of its translations."""
        corpus, pairs = self._held_out[name]
        metrics = held_out_loss(self._eval_step, params, pairs, self._config)
        sources, references = self._sentences(corpus)
        texts = translate_in_parallel(self._translator, sources)
        bleu = self.bleu(texts, references)
        metrics["valid_bleu"] = bleu.value
        metrics["valid_chrf"] = chrf(texts, references).value
        metrics["valid_exact_match"] = exact(texts, references).value
        line = ", ".join(
            f"{metric.removeprefix('valid_')} {value:.4g}" for metric, value in metrics.items()
        )
        on_set = f" on {name}" if name else ""
        self._run.log(f"validation of {checkpoint}{on_set}: {line} (BLEU: {bleu.signature})")
        file = f"{checkpoint}-{name}" if name else checkpoint
        self._run.write_samples(file, samples(sources, texts, references, WRITTEN_SAMPLES))
        return metrics

    def _sentences(self, corpus: Corpus) -> tuple[list[str], list[str]]:
        """The sources and references to translate: training.eval_sentences of them, 0 means all.

        The first ones of a single corpus; evenly spaced ones of a mixture.
        """
        total = len(corpus.source)
        count = min(self._config.training.eval_sentences or total, total)
        indices: Sequence[int] = range(count)
        if len(corpus.origins) > 1:
            indices = np.linspace(0, total - 1, count).astype(int).tolist()
        return [corpus.source[i] for i in indices], [corpus.target[i] for i in indices]

    def _record(
        self, checkpoint: int | str, step: int, scores: dict[str, dict[str, float]]
    ) -> None:
        """Record the metrics of each validation set: valid_bleu, or NAME/valid_bleu.

        For the average the prefix "valid" becomes "average".
        """
        prefix = "valid" if checkpoint == step else str(checkpoint)
        entry = {}
        for name, metrics in scores.items():
            for metric, value in metrics.items():
                key = metric.replace("valid", prefix)
                entry[f"{name}/{key}" if name else key] = value
        self._run.record(step, entry)


def translate_in_parallel(translator: EvaluationTranslator, sources: list[str]) -> list[str]:
    """All translations, in every process; each process translates its share."""
    index, count, total = processes.index(), processes.count(), len(sources)
    start, end = total * index // count, total * (index + 1) // count
    texts = [translation.text for translation in translator.stream(sources[start:end], start)]
    return list(chain.from_iterable(processes.all_gather("the exchange of translations", texts)))


def held_out_loss(
    eval_step: Callable[[Any, Batch], LossSums], params: Any, pairs: Pairs, config: Config
) -> dict[str, float]:
    """Loss (smoothed) and nll per target token in nats, perplexity, and next-token accuracy.

    A batch has as many rows as one micro-batch of training, so it fits in memory.
    """
    total = np.zeros(4)  # the fields of LossSums
    layout = row_layout(config.data, config.special)
    copies = jax.device_count() // config.training.model_parallel
    for batch in fixed_batches(pairs, config.rows_at_a_time, layout):
        # [copies of this process, B, …]
        rows = processes.local_part(split_rows(batch, copies))
        total += np.array(jax.device_get(eval_step(params, rows)))
    loss, nll, correct, tokens = total.tolist()
    return {
        "valid_loss": loss / tokens,
        "valid_nll": nll / tokens,
        "valid_perplexity": math.exp(min(nll / tokens, 700.0)),
        "valid_accuracy": correct / tokens,
    }


def samples(sources: list[str], texts: list[str], references: list[str], count: int) -> list[str]:
    """`count` examples, evenly spaced over the list, four lines each."""
    chosen = np.linspace(0, len(sources) - 1, min(count, len(sources))).astype(int)
    return [
        line
        for i in chosen
        for line in (
            f"source    {sources[i]}",
            f"reference {references[i]}",
            f"model     {texts[i]}",
            "",
        )
    ]


def print_results(run: Run, data: Data, translator: EvaluationTranslator, bleu: Metric) -> None:
    """Write scores.json with the scores on the held-out data; print them and samples, and log the
    command for translation."""
    checkpoint = read_best(run.path).get("checkpoint", "latest")
    sets, lines = {}, list[str]()
    for name, corpus in data.test.items():
        texts = translate_in_parallel(translator, corpus.source)
        if processes.is_first():
            if name:
                lines.append(f"{name}:")  # the set of the samples that follow
            lines += samples(corpus.source, texts, corpus.target, PRINTED_SAMPLES)
            sets[name], printed = scores_of(corpus, texts, bleu)
            title = qualified("held-out", name)
            lines += [f"{title} {score}" for score in printed]
            lines[-1] += f" (checkpoint: {checkpoint})"
    run.write_scores({"checkpoint": checkpoint, "sets": sets})
    if processes.is_first():
        write_stored("".join(f"{line}\n" for line in lines))
    run.log(f"translate with: python decode.py --workdir={quote(run.name)} --input=FILE")


def scores_of(corpus: Corpus, texts: list[str], bleu: Metric) -> tuple[dict[str, Any], list[str]]:
    """The entry in scores.json for the translations `texts` of a corpus, and its scores in lines of
    text."""
    references = corpus.target
    scores = [metric(texts, references) for metric in (bleu, tokenized_bleu, chrf)]
    matches = exact(texts, references).value
    lines = [*map(str, scores), f"exact match {matches:.1f} % of {len(texts):,} sentences"]
    scores.append(Score("exact match", matches, f"{len(texts):,} sentences, in percent"))
    return {"sentences": len(texts), "scores": [score._asdict() for score in scores]}, lines

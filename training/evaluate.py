"""Evaluation on held-out pairs: loss, perplexity, BLEU, exact match, and samples."""

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Protocol

import jax
import numpy as np

from data.batches import fixed_batches
from data.corpus import Corpus
from data.pairs import Pairs
from data.scores import bleu, exact_match
from runtime import processes
from storage.config import Config
from storage.run import Run
from training.best import BestCheckpoint
from training.loss import LossSums
from training.step import split_rows

SAMPLES = 20


class EvaluationTranslator(Protocol):
    """Translates sentences during training; decoding.translator.Translator is one."""

    def use(self, params: Any) -> None:
        """Set the parameters."""

    def stream(self, items: list[str], first: int) -> Iterable[Any]:
        """One object with an attribute `text` per sentence; `first` is the index of the first."""


class Evaluator:
    """Evaluates parameters on the validation data, records the scores and updates `best`.

    `held_out` is the validation data; without it an evaluation does nothing. `eval_step` is
    (params, batch [devices, B, …]) → LossSums.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        held_out: tuple[Corpus, Pairs] | None,
        eval_step: Callable[[Any, Any], LossSums],
        translator: EvaluationTranslator,
    ):
        self._config, self._run, self._held_out = config, run, held_out
        self._eval_step, self._translator = eval_step, translator
        self.best = BestCheckpoint(config.training.best_metric)

    @property
    def patience_exhausted(self) -> bool:
        """Whether the last training.patience evaluations brought no improvement."""
        return 0 < self._config.training.patience <= self.best.without_improvement

    def evaluate(self, checkpoint: int | str, step: int, params: Any) -> None:
        """Compute and record the scores of `params`, which are those of `checkpoint`, at `step`."""
        if self._held_out is not None:
            corpus, pairs = self._held_out
            metrics = held_out_loss(self._eval_step, params, pairs, self._config)
            sources, references = self._sentences(corpus)
            self._translator.use(params)
            texts = translate_in_parallel(self._translator, sources)
            metrics["valid_bleu"] = bleu(texts, references).value
            metrics["valid_exact_match"] = exact_match(texts, references)
            self._record(checkpoint, step, metrics)
            self._run.write_samples(checkpoint, samples(sources, texts, references, SAMPLES))
            self.best.update(checkpoint, metrics[f"valid_{self._config.training.best_metric}"])
        self.best.evaluated_step = step

    def _sentences(self, corpus: Corpus) -> tuple[list[str], list[str]]:
        """The sources and references to translate: training.eval_sentences of them, 0 means all.

        The first ones of a single corpus; evenly spaced ones of a mixture.
        """
        total = len(corpus.source)
        count = min(self._config.training.eval_sentences or total, total)
        if len(corpus.origins) == 1:
            chosen = range(count)
        else:
            chosen = np.linspace(0, total - 1, count).astype(int)
        return [corpus.source[i] for i in chosen], [corpus.target[i] for i in chosen]

    def _record(self, checkpoint: int | str, step: int, metrics: dict[str, float]) -> None:
        """Record and log the metrics; for the average the prefix "valid" becomes "average"."""
        prefix = "valid" if checkpoint == step else str(checkpoint)
        named = {name.replace("valid", prefix): value for name, value in metrics.items()}
        self._run.record(step, named)
        scores = ", ".join(f"{name[6:]} {value:.4g}" for name, value in metrics.items())
        self._run.log(f"validation of {checkpoint}: {scores}")


def translate_in_parallel(translator: EvaluationTranslator, sources: list[str]) -> list[str]:
    """All translations, in every process; each process translates its share."""
    index, count, total = processes.index(), processes.count(), len(sources)
    start, end = total * index // count, total * (index + 1) // count
    own = [translation.text for translation in translator.stream(sources[start:end], start)]
    return list(chain.from_iterable(processes.all_gather("the exchange of translations", own)))


def held_out_loss(
    eval_step: Callable[[Any, Any], LossSums], params: Any, pairs: Pairs, config: Config
) -> dict[str, float]:
    """Loss (smoothed) and nll per target token in nats, perplexity, and next-token accuracy.

    A batch has as many rows as one micro-batch of training, so it fits in memory.
    """
    data, devices = config.data, jax.device_count()
    total = np.zeros(4)
    shape = config.rows_at_a_time, data.source_length, data.target_length
    for batch in fixed_batches(pairs, *shape, config.special):
        rows = processes.local_part(split_rows(batch, devices))
        total += np.array(jax.device_get(eval_step(params, rows)))
    loss, nll, correct, tokens = total.tolist()
    return {
        "valid_loss": loss / tokens,
        "valid_nll": nll / tokens,
        "valid_perplexity": math.exp(min(nll / tokens, 700.0)),
        "valid_accuracy": correct / tokens,
    }


def samples(sources: list[str], texts: list[str], references: list[str], count: int) -> list[str]:
    """`count` examples at equal distances in the list, four lines each."""
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

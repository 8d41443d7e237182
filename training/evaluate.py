"""Evaluation on held-out pairs: loss and perplexity, BLEU, exact match, samples; which was best."""

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Protocol

import jax
import numpy as np

from data.batches import fixed_batches
from data.pairs import Pairs
from data.scores import bleu, exact_match
from data.text_files import Corpus
from runtime import processes
from storage.config import Config
from storage.run import Run
from training.loss import LossSums
from training.step import split_rows

SAMPLES = 20


class Translator(Protocol):
    """Translates with parameters that change; what `stream` gives has a `text`."""

    def use(self, params: Any) -> None: ...

    def stream(self, items: list[str], first: int) -> Iterable[Any]: ...


class Evaluator:
    """Judges parameters on validation data and remembers which checkpoint did best; `judged` is the
    last step that it has judged.

    `eval_step` is (params, batch [devices, B, …]) → LossSums.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        held_out: tuple[Corpus, Pairs] | None,
        eval_step: Callable[[Any, Any], LossSums],
        translator: Translator,
    ):
        self._config, self._run, self._held_out = config, run, held_out
        self._eval_step, self._translator = eval_step, translator
        self.forget()
        self.judged = 0

    def forget(self) -> None:
        """Nothing is best."""
        self.best: dict[str, Any] = {}
        self.without_better = 0
        self._before = {}, 0  # the last judgement

    def take_back(self, step: int) -> None:
        """Step `step` was not saved: if it is best, what was best before is best again."""
        if self.best.get("checkpoint") == step:
            self.best, self.without_better = self._before

    @property
    def memory(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, for `recall`."""
        return {name: getattr(self, name) for name in ("best", "without_better", "judged")}

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on as the evaluator whose `memory` it was."""
        self.best, self.without_better, self.judged = (
            memory[name] for name in ("best", "without_better", "judged")
        )

    @property
    def exhausted(self) -> bool:
        """Whether so many evaluations in a row were no better that training should stop."""
        return 0 < self._config.training.patience <= self.without_better

    def judge(self, checkpoint: int | str, step: int, params: Any) -> None:
        """Record validation scores; `best` becomes `checkpoint` where they are better."""
        if self._held_out is None:
            self.judged = step
            return
        corpus, pairs = self._held_out
        training = self._config.training
        metrics = held_out_loss(self._eval_step, params, pairs, self._config)
        total = len(corpus.source)
        count = min(training.eval_sentences or total, total)
        # The first ones; of several corpora some of each.
        chosen = (
            range(count)
            if len(corpus.origins) == 1
            else (np.linspace(0, total - 1, count).astype(int))
        )
        sources, references = ([side[i] for i in chosen] for side in corpus[:2])
        self._translator.use(params)
        texts = translations(self._translator, sources)
        metrics["valid_bleu"] = bleu(texts, references).value
        metrics["valid_exact_match"] = exact_match(texts, references)
        self._run.record(
            step,
            metrics
            if checkpoint == step
            else {  # beside those of its step
                name.replace("valid", str(checkpoint)): value for name, value in metrics.items()
            },
        )
        self._run.write_samples(checkpoint, samples(sources, texts, references, SAMPLES))
        shown = ", ".join(f"{name[6:]} {value:.4g}" for name, value in metrics.items())
        self._run.log(f"validation of {checkpoint}: {shown}")
        self._before = self.best, self.without_better
        value = metrics[f"valid_{training.best_metric}"]
        sign = 1.0 if training.best_metric == "bleu" else -1.0
        if not self.best or sign * value > sign * self.best[training.best_metric]:
            self.best = {"checkpoint": checkpoint, training.best_metric: value}
            self.without_better = 0
        else:
            self.without_better += 1
        self.judged = step


def translations(translator: Translator, sources: list[str]) -> list[str]:
    """The translation of each; every process does its part and gets all."""
    me, all_of_us, total = processes.index(), processes.count(), len(sources)
    begin, end = total * me // all_of_us, total * (me + 1) // all_of_us
    mine = [found.text for found in translator.stream(sources[begin:end], begin)]
    return list(chain.from_iterable(processes.all_gather("the exchange of translations", mine)))


def held_out_loss(
    eval_step: Callable[[Any, Any], LossSums], params: Any, pairs: Pairs, config: Config
) -> dict[str, float]:
    """Loss (smoothed) and nll a target token in nats, perplexity, and next-token accuracy.

    As many rows at a time as a training step has in memory.
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
    """`count` examples spread over the list, four lines each."""
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

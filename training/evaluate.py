"""Evaluation on held-out pairs: loss and perplexity, BLEU, exact match, samples."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from data.batches import fixed_batches
from data.pairs import Pairs
from training.config import Config
from training.loss import LossSums
from training.step import split_rows


def held_out_loss(
    eval_step: Callable[[Any, Any], LossSums], params: Any, pairs: Pairs, config: Config
) -> dict[str, float]:
    """Loss (smoothed) and nll a target token in nats, perplexity, and next-token accuracy."""
    data, devices = config.data, jax.local_device_count()
    total = np.zeros(4)
    shape = config.rows_per_batch, data.source_length, data.target_length
    for batch in fixed_batches(pairs, *shape):
        total += np.array(jax.device_get(eval_step(params, split_rows(batch, devices))))
    loss, nll, correct, tokens = total
    return {
        "valid_loss": loss / tokens,
        "valid_nll": nll / tokens,
        "valid_perplexity": math.exp(min(nll / tokens, 700.0)),
        "valid_accuracy": correct / tokens,
    }


def translation_scores(texts: list[str], references: list[str]) -> tuple[dict[str, float], str]:
    """BLEU (sacreBLEU, 0–100) and exact match (per cent), and BLEU's signature."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    bleu = metric.corpus_score(texts, [references]).score
    exact = 100.0 * sum(map(str.__eq__, texts, references)) / len(references)
    return {"bleu": bleu, "exact_match": exact}, str(metric.get_signature())


def samples(sources: list[str], texts: list[str], references: list[str], count: int) -> list[str]:
    """`count` examples spread over the list, four lines each."""
    chosen = np.linspace(0, len(sources) - 1, min(count, len(sources))).astype(int)
    return [
        line
        for i in chosen
        for line in (f"source    {sources[i]}", f"reference {references[i]}",
                     f"model     {texts[i]}", "")
    ]

"""Without 1/√d_k the softmax saturates

Claim: for large d_k the dot products grow large, which pushes the softmax into regions where it has
extremely small gradients; therefore they are divided by √d_k (Vaswani et al. 2017, section 3.2.1).

Measurement: 512 queries and 64 keys for each 32 of them, with components of mean 0 and variance 1.
For each d_k: the variance of the scores, the entropy of the weights as a share of the largest one,
log 64, the mean norm of the derivative of the weights by the scores, and the mean and the median
over the queries of the norm of the derivative of the weights by the query, which includes the
factor 1/√d_k and the keys. Then a Transformer with one head of d_k = 128 learns to reverse
sequences with and without the factor.

Rule, in each seed: without the factor the variance is d_k within 20 %; at the largest d_k the
entropy is below 10 %, and the derivative by the scores, the median and the mean of the derivative
by the query are each below a quarter of those with the factor; the training loss at the end is
larger by at least 10 %.

Remark: mean and median are checked separately, because the derivative by the query has a heavy
tail without the factor: a query with two almost equal largest scores has a large derivative.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from seq2seq.model.attention import MultiHeadAttention, dot_product_attention, multi_head_attention
from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.figures import curve, panels, smoothed
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Variant,
    is_call,
    small_config,
    small_training,
    train_model,
)
from seq2seq.scripts.experiments.softmax_derivative import entropy, query_norms, softmax_derivative
from seq2seq.scripts.experiments.tasks import reversal

CLAIM = "Without 1/√d_k the softmax saturates and gradients vanish as d_k grows."
ARMS = ("scaled", "unscaled")
WIDTHS = (1, 4, 16, 64, 256, 1024, 4096)  # d_k
ROWS, QUERIES, KEYS = 16, 32, 64
STEPS, BATCH = {"tiny": 100, "full": 500}, {"tiny": 16, "full": 64}


def measure(arm: str, seed: int, size: str) -> Result:
    """The statistics over d_k, and the losses of a training."""
    losses = training_losses(arm, seed, size)
    tail = losses[-(len(losses) // 10) :]
    return {**score_statistics(arm, seed), "losses": smoothed(losses), "loss": tail.mean()}


def training_losses(arm: str, seed: int, size: str, heads: int = 1) -> np.ndarray:
    """The loss of each step of a training with d_k = 128 / heads."""
    task = reversal()
    model = Transformer(small_config(task, d_model=128, num_heads=heads))
    model = model if arm == "scaled" else Variant(model.config, unscaled)
    return train_model(model, task, small_training(seed, STEPS[size]), BATCH[size]).losses


def score_statistics(arm: str, seed: int) -> Result:
    """Variance, entropy and derivatives over WIDTHS, as the measurement describes them."""
    random = np.random.default_rng(seed)
    names = "variance", "entropy", "derivative", "query_mean", "query_median"
    statistics: dict[str, list[float]] = {name: [] for name in names}
    for width in WIDTHS:
        queries = random.standard_normal((ROWS, 1, QUERIES, width), np.float32)
        keys = random.standard_normal((ROWS, 1, KEYS, width), np.float32)
        factor = width**-0.5 if arm == "scaled" else 1.0
        scores = np.einsum("bhtk,bhsk->bhts", queries, keys) * factor
        larger = queries * (factor * width**0.5)  # `dot_product_attention` divides by √d_k
        _, weights = dot_product_attention(jnp.array(larger), jnp.array(keys), jnp.array(keys))
        derivative = softmax_derivative(np.asarray(weights))
        by_query = factor * query_norms(derivative, keys)
        numbers = (
            scores.var(),
            entropy(np.asarray(weights)).mean() / np.log(KEYS),
            np.linalg.norm(derivative, axis=(-2, -1)).mean(),
            by_query.mean(),
            np.median(by_query),
        )
        for name, number in zip(names, numbers, strict=True):
            statistics[name].append(number)
    return statistics


def unscaled(original: Call, arguments: Arguments, options: Options, context: Any) -> Any:
    """An interceptor: attention whose scores are not divided by √d_k."""
    if not is_call(context, MultiHeadAttention):
        return original(*arguments, **options)
    x, keys_values, mask, bias, how, _ = arguments
    params = context.module.params
    larger = params.query * params.query.shape[-1] ** 0.5
    params = params._replace(query=larger)
    return multi_head_attention(params, x, keys_values, mask, bias, how)[0]


def judge(results: Results) -> list[Check]:
    def last(name: str) -> list[list[float]]:
        return [[result[name][-1] for result in results[arm]] for arm in ARMS]

    def smaller(name: str, text: str) -> Check:
        scaled, without = last(name)
        less = "below 0.001" if max(without) < 0.001 else spread(without, 3)
        numbers = f"{spread(scaled, 3)} with and {less} without the factor"
        holds = all(b < a / 4 for a, b in zip(scaled, without, strict=True))
        return Check(f"at d_k = {WIDTHS[-1]} {text} is {numbers}", holds)

    grows = all(np.allclose(result["variance"], WIDTHS, rtol=0.2) for result in results["unscaled"])
    entropies = last("entropy")
    highest = np.max([result["entropy"] for result in results["unscaled"]], axis=0)
    low = [width for width, share in zip(WIDTHS, highest, strict=True) if share < 0.1]
    first = f"below 0.10 from d_k = {low[0]}" if low else "never below 0.10"
    losses = [values(results, arm, "loss") for arm in ARMS]
    return [
        Check(f"the variance of the scores {'is' if grows else 'is not'} d_k", grows),
        Check(
            f"at d_k = {WIDTHS[-1]} the entropy is {spread(entropies[0])} of log {KEYS} with and "
            f"{spread(entropies[1])} without the factor ({first})",
            max(entropies[1]) < 0.1,
            f"entropy {spread(entropies[1])} of log {KEYS} without the factor",
        ),
        smaller("derivative", "the mean norm of the derivative of the weights by the scores"),
        smaller("query_median", "the median norm of their derivative by the query"),
        smaller("query_mean", "the mean norm of their derivative by the query"),
        Check(
            f"the training loss ends at {spread(losses[0], 3)} with and {spread(losses[1], 3)} "
            "without it",
            all(b > 1.1 * a for a, b in zip(*losses, strict=True)),
        ),
    ]


def draw(results: Results) -> Any:
    titles = "derivative by the scores, mean", "by the query, mean (dashed: median)"
    figure, axes = panels("entropy / log n over d_k", *titles, "training loss")
    for arm in ARMS:
        for axis, name in zip(axes, ("entropy", "derivative", "query_mean"), strict=False):
            curve(axis, WIDTHS, [result[name] for result in results[arm]], arm)
            axis.set_xscale("log", base=2)
        median = np.mean([result["query_median"] for result in results[arm]], axis=0)
        axes[2].plot(WIDTHS, median, "--", color=axes[2].lines[-1].get_color())
        losses = [result["losses"] for result in results[arm]]
        curve(axes[3], np.linspace(0, 1, len(losses[0])), losses, arm)
    axes[2].set_yscale("log")
    axes[2].set_ylim(bottom=1e-4)
    axes[3].set_xlabel("share of the training")
    axes[0].legend()
    return figure

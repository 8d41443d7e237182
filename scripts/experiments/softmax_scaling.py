"""Without 1/√d_k the softmax saturates

Claim: for large d_k the dot products grow large, which pushes the softmax into regions where it has
extremely small gradients; therefore they are divided by √d_k (Vaswani et al. 2017, section 3.2.1).

Measurement: queries and 64 keys with components of mean 0 and variance 1. For each d_k: the
variance of the scores, the entropy of the weights as a share of the largest one, log 64, and the
norm of the derivative of the weights by the scores. Then a Transformer with one head of d_k = 128
learns to reverse sequences with and without the factor.

Rule, in each seed: without the factor the variance is d_k within 20 %, at the largest d_k the
entropy is below 10 % and the derivative below a quarter of that with the factor; and the training
loss at the end is larger by at least 10 %.

Remark: the derivative vanishes only for large d_k. For small d_k it is larger without the factor,
because the weights are less uniform. A first run, up to d_k = 1024, just missed the quarter.
"""

import jax.numpy as jnp
import numpy as np

from model.attention import MultiHeadAttention, dot_product_attention, multi_head_attention
from model.transformer import Transformer
from scripts.experiments.figures import curve, panels, smoothed
from scripts.experiments.outcome import Check, Result, Results, spread, values
from scripts.experiments.small_model import Variant, is_call, small_config, train_model
from scripts.experiments.tasks import reversal

CLAIM = "Without 1/√d_k the softmax saturates and gradients vanish as d_k grows."
ARMS = ("scaled", "unscaled")
WIDTHS = (1, 4, 16, 64, 256, 1024, 4096)  # d_k
ROWS, QUERIES, KEYS = 16, 32, 64
STEPS = {"tiny": 100, "full": 500}


def measure(arm: str, seed: int, size: str) -> Result:
    """The statistics over d_k, and the losses of a training."""
    result = score_statistics(arm, seed)
    task = reversal()
    model = Transformer(small_config(task, d_model=128, num_heads=1))
    trained = train_model(
        model if arm == "scaled" else Variant(model.config, unscaled), task, seed, STEPS[size]
    )
    tail = len(trained.losses) // 10
    result["losses"] = smoothed(trained.losses)
    result["loss"] = trained.losses[-tail:].mean()
    return result


def score_statistics(arm: str, seed: int) -> Result:
    """Variance of the scores, entropy of the weights and norm of their derivative over WIDTHS."""
    random = np.random.default_rng(seed)
    found: dict[str, list[float]] = {"variance": [], "entropy": [], "derivative": []}
    for width in WIDTHS:
        queries = random.standard_normal((ROWS, 1, QUERIES, width), np.float32)
        keys = random.standard_normal((ROWS, 1, KEYS, width), np.float32)
        if arm == "unscaled":
            queries = queries * width**0.5  # cancels the factor of `dot_product_attention`
        scores = np.einsum("bhtk,bhsk->bhts", queries, keys) * width**-0.5
        _, weights = dot_product_attention(jnp.array(queries), jnp.array(keys), jnp.array(keys))
        found["variance"].append(scores.var())
        found["entropy"].append(entropy(np.asarray(weights)).mean() / np.log(KEYS))
        found["derivative"].append(derivative_norm(np.asarray(weights)).mean())
    return found


def entropy(weights: np.ndarray) -> np.ndarray:
    """The entropy of the distributions in the last axis, in nats."""
    return -(weights * np.log(np.maximum(weights, 1e-30))).sum(axis=-1)


def derivative_norm(weights: np.ndarray) -> np.ndarray:
    """The Frobenius norm of the derivative of a softmax by its scores, diag(w) − w wᵀ."""
    square, fourth = (weights**2).sum(axis=-1), (weights**2).sum(axis=-1) ** 2
    return np.sqrt(np.maximum(square - 2 * (weights**3).sum(axis=-1) + fourth, 0.0))


def unscaled(original, arguments, options, context):
    """An interceptor: attention whose scores are not divided by √d_k."""
    if not is_call(context, MultiHeadAttention):
        return original(*arguments, **options)
    x, keys_values, mask = (*arguments, None)[:3]
    params = context.module.params
    larger = params.query * params.query.shape[-1] ** 0.5
    attend = options.get("attend", dot_product_attention)
    return multi_head_attention(params._replace(query=larger), x, keys_values, mask, attend=attend)[
        0
    ]


def judge(results: Results) -> list[Check]:
    last = {arm: {n: [r[n][-1] for r in results[arm]] for n in ("entropy", "derivative")}
            for arm in ARMS}  # fmt: skip
    grows = all(np.allclose(result["variance"], WIDTHS, rtol=0.2) for result in results["unscaled"])
    entropies = last["scaled"]["entropy"], last["unscaled"]["entropy"]
    norms = last["scaled"]["derivative"], last["unscaled"]["derivative"]
    over_widths = np.mean([result["derivative"] for result in results["unscaled"]], axis=0)
    peak = WIDTHS[int(over_widths.argmax())]
    losses = values(results, "scaled", "loss"), values(results, "unscaled", "loss")
    return [
        Check(f"the variance of the scores {'is' if grows else 'is not'} d_k", grows),
        Check(
            f"at d_k = {WIDTHS[-1]} the entropy is {spread(entropies[0])} of log {KEYS} with and "
            f"{spread(entropies[1])} without the factor",
            max(entropies[1]) < 0.1,
        ),
        Check(
            f"the derivative there is {spread(norms[0], 3)} with and {spread(norms[1], 3)} without "
            f"it (largest without it at d_k = {peak})",
            all(b < a / 4 for a, b in zip(*norms, strict=True)),
        ),
        Check(
            f"the training loss ends at {spread(losses[0], 3)} with and {spread(losses[1], 3)} "
            "without it",
            all(b > 1.1 * a for a, b in zip(*losses, strict=True)),
        ),
    ]


def draw(results: Results):
    figure, axes = panels("entropy / log n over d_k", "norm of the derivative", "training loss")
    for arm in ARMS:
        for axis, name in zip(axes, ("entropy", "derivative"), strict=False):
            curve(axis, WIDTHS, [result[name] for result in results[arm]], arm)
            axis.set_xscale("log", base=2)
        losses = [result["losses"] for result in results[arm]]
        curve(axes[2], np.linspace(0, 1, len(losses[0])), losses, arm)
    axes[2].set_xlabel("share of the training")
    axes[0].legend()
    return figure

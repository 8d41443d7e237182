"""Masked scores become −∞ before the softmax

Claim: illegal connections are masked by setting the inputs of the softmax to −∞ (Vaswani et al.
2017, section 3.2.3). To set the weights to zero after the softmax instead is not the same: the
remaining weights no longer sum to one, and masked keys still act through the normalisation.

Measurement: random queries, keys and values. 16 keys are allowed; the number of masked keys grows
from 0 to 48. Zeroing is the function `drop` on the weights of `dot_product_attention`. The change
of the output is its distance from the output without masked keys, relative to that output.

Rule, in each seed, at the largest number of masked keys: with −∞ the weights sum to 1, the
derivative of the output by the masked keys is 0 and the output does not change; with zeroing the
weights sum to less than 0.5, the derivative is not 0, and the output changes by more than 25 %. The
two are equal again if the weights are zeroed and then divided by their sum.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.model.attention import AttentionOptions, dot_product_attention
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread

CLAIM = "Masks act before the softmax, because weights zeroed after it are not normalised."
ARMS = ("−∞ before", "zero after", "zero after, divided by the sum")
ALLOWED, MOST = 16, 48
MASKED = {"tiny": (MOST,), "full": (0, 4, 8, 16, 32, MOST)}
SHAPE = (1, 4, 32)  # B, H and the number of queries
TOLERANCE = 1e-5


def measure(arm: str, seed: int, size: str) -> Result:
    """The sum of the weights, the influence of masked keys and the change of the output."""
    random, width = np.random.default_rng(seed), 16
    queries = jnp.array(random.standard_normal((*SHAPE, width), np.float32))
    keys, values = jnp.array(
        random.standard_normal((2, *SHAPE[:2], ALLOWED + MOST, width), np.float32)
    )
    plain, _ = dot_product_attention(queries, keys[:, :, :ALLOWED], values[:, :, :ALLOWED])
    statistics: dict[str, list] = {"sum": [], "influence": [], "change": []}
    for masked in MASKED[size]:
        used = ALLOWED + masked
        inputs = queries, keys[:, :, :used], values[:, :, :used]
        output, weights = attend(arm, *inputs)
        statistics["sum"].append(weights.sum(axis=-1).mean())
        statistics["influence"].append(influence(arm, *inputs))
        statistics["change"].append(jnp.linalg.norm(output - plain) / jnp.linalg.norm(plain))
    return {name: [float(number) for number in numbers] for name, numbers in statistics.items()}


def attend(
    arm: str, queries: jax.Array, keys: jax.Array, values: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The output [B, H, T, K] and the weights that multiply the values [B, H, T, S]."""
    mask = (jnp.arange(keys.shape[2]) < ALLOWED)[None, None, None]
    if arm == ARMS[0]:
        return dot_product_attention(queries, keys, values, mask)
    kept = []

    def zero(weights: jax.Array) -> jax.Array:
        weights = jnp.where(mask, weights, 0.0)
        if arm == ARMS[2]:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        kept.append(weights)
        return weights

    output, _ = dot_product_attention(queries, keys, values, options=AttentionOptions(zero))
    return output, kept[0]


def influence(arm: str, queries: jax.Array, keys: jax.Array, values: jax.Array) -> float:
    """The norm of the derivative of the output's squares by the masked keys."""

    def energy(masked: jax.Array) -> jax.Array:
        output, _ = attend(arm, queries, jnp.concatenate([keys[:, :, :ALLOWED], masked], 2), values)
        return jnp.square(output).sum()

    return float(jnp.linalg.norm(jax.grad(energy)(keys[:, :, ALLOWED:])))


def judge(results: Results) -> list[Check]:
    def last(arm: str, name: str) -> list[float]:
        return [result[name][-1] for result in results[arm]]

    before, after, divided = ARMS
    equal = max(
        np.abs(np.subtract(a["change"], b["change"])).max()
        for a, b in zip(results[before], results[divided], strict=True)
    )
    return [
        Check(
            f"with {MOST} masked and {ALLOWED} allowed keys the weights sum to "
            f"{spread(last(before, 'sum'))} with −∞ and {spread(last(after, 'sum'))} with zeroing",
            all(abs(s - 1) < TOLERANCE for s in last(before, "sum"))
            and max(last(after, "sum")) < 0.5,
            f"zeroed weights sum to {spread(last(after, 'sum'))}",
        ),
        Check(
            f"the derivative by masked keys is {spread(last(before, 'influence'))} and "
            f"{spread(last(after, 'influence'))}",
            max(last(before, "influence")) == 0.0 and min(last(after, "influence")) > TOLERANCE,
        ),
        Check(
            f"the output changes by {spread(last(before, 'change'))} and "
            f"{spread(last(after, 'change'))}",
            max(last(before, "change")) < TOLERANCE and min(last(after, "change")) > 0.25,
        ),
        Check(f"zeroing and dividing by the sum differs by {equal:.0e}", bool(equal < TOLERANCE)),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("sum of the weights", "change of the output", "derivative by masked keys")
    for axis, name in zip(axes, ("sum", "change", "influence"), strict=True):
        for arm in ARMS[:2]:
            curve(axis, MASKED["full"], [result[name] for result in results[arm]], arm)
        axis.set_xlabel("masked keys")
    axes[0].legend()
    return figure

"""Self-attention without feed-forward layers re-averages values

Claim: attention alone only averages values. The feed-forward layers (Vaswani et al. 2017, section
3.3) compute functions of a position; without them and without residual connections all positions
converge to the same vector with growing depth (Dong et al. 2021).

Measurement: the norm of the differences of the encoder's vectors from their mean over the
positions, relative to the norm of the vectors, over 12 layers with random parameters: with all
parts, without feed-forward layers, without residual connections, and without both. Then models of 1
and 2 layers, with and without feed-forward layers, learn sequences of 2 to 16 bits in which each
output is the exclusive or of an input and the next one, which is no threshold of an average. They
predict sequences of 16 bits that are excluded from the training.

Rule, in each seed: after 12 layers the relative distance is below 1 % without both and above 1 %
without residual connections only; at one layer the accuracy is above 0.9 with feed-forward layers
and lower by at least 0.2 without; two layers without them remain below one layer with them.

Remark: attention is not only an average: its weights are functions of the input. Residual
connections, not feed-forward layers, keep the positions apart at this depth.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.model.layers import FeedForward
from seq2seq.model.transformer import Layer, Sublayer, Transformer
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Task,
    Variant,
    batch_of,
    is_call,
    small_config,
    small_training,
    token_accuracy,
    train_model,
)
from seq2seq.scripts.experiments.tasks import excluding, sequence_task
from seq2seq.training.parameters import init_params

CLAIM = "Self-attention without feed-forward layers only re-averages values."
ARMS = ("with", "without", "with, no residuals", "without, no residuals")
STEPS, DEPTHS = {"tiny": 400, "full": 1000}, {"tiny": (1,), "full": (1, 2)}
LONGEST, TESTED = {"tiny": 8, "full": 16}, 64
LAYERS = 12


def measure(arm: str, seed: int, size: str) -> Result:
    """The distances over the layers, and the accuracy at each depth."""
    longest = LONGEST[size]
    task, test = exclusive_ors(range(2, longest + 1)), exclusive_ors(range(longest, longest + 1))
    pairs = test.sample(np.random.default_rng([seed, 1]), TESTED)
    task, accuracy = excluding(task, pairs[0]), []
    for depth in DEPTHS[size] if arm in ARMS[:2] else ():
        model = Transformer(small_config(task, num_layers=depth, d_model=64, d_ff=256))
        trained = train_model(
            variant(arm, model), task, small_training(seed, STEPS[size], learning_rate=2e-3)
        )
        accuracy.append(token_accuracy(trained, test, *pairs))
    return {"distance": distances(arm, seed), "depths": DEPTHS[size], "accuracy": accuracy}


def exclusive_ors(lengths: range) -> Task:
    """Each target bit is the exclusive or of a source bit and the next one, the last one first."""

    def rule(source: list[int]) -> list[int]:
        return [a ^ b for a, b in zip(source, source[1:] + source[:1], strict=True)]

    return sequence_task(rule, 2, lengths)


def variant(arm: str, model: Transformer) -> Transformer:
    """The model of an arm."""
    feeds, adds = arm in ARMS[::2], arm in ARMS[:2]

    def replace_call(original: Call, arguments: Arguments, options: Options, context: Any) -> Any:
        if is_call(context, FeedForward) and not feeds:
            return jnp.zeros_like(arguments[0])
        if is_call(context, Sublayer, "add") and not adds:
            x, y, *others = arguments
            kept = not feeds and context.module.name == "around_feed_forward"
            return original(x if kept else jnp.zeros_like(x), y, *others, **options)
        return original(*arguments, **options)

    return model if arm == "with" else Variant(model.config, replace_call)


def distances(arm: str, seed: int) -> list[float]:
    """The relative distance of the positions from their mean before and after each layer."""
    task = exclusive_ors(range(32, 33))
    config = small_config(task, d_model=64, num_layers=LAYERS, num_decoder_layers=1)
    model = variant(arm, Transformer(config))
    batch = batch_of(task, *task.sample(np.random.default_rng(seed), 16))
    source, segments = jnp.asarray(batch.source), jnp.asarray(batch.source_segments)
    params = init_params(model, jax.random.key(seed))
    _, sown = model.apply(
        {"params": params}, source, segments, method="encode",
        mutable="intermediates", capture_intermediates=lambda m, _: isinstance(m, Layer),
    )  # fmt: skip
    layers = sown["intermediates"]["encoder"]
    relative = []
    for layer in range(LAYERS):
        x = np.asarray(layers[f"layers_{layer}"]["__call__"][0][0])[:, : task.source_length - 1]
        away = np.linalg.norm(x - x.mean(axis=1, keepdims=True), axis=(1, 2))
        relative.append(float((away / np.linalg.norm(x, axis=(1, 2))).mean()))
    return relative


def judge(results: Results) -> list[Check]:
    last = [[result["distance"][-1] for result in results[arm]] for arm in ARMS]
    first, deepest = (
        [[result["accuracy"][place] for result in results[arm]] for arm in ARMS[:2]]
        for place in (0, -1)
    )
    depth = results["with"][0]["depths"][-1]
    return [
        Check(
            f"after {LAYERS} layers the relative distance is {spread(last[0])} with and "
            f"{spread(last[1])} without feed-forward layers, and {spread(last[3], 4)} without "
            "residual connections too",
            max(last[3]) < 0.01,
            f"relative distance {spread(last[1])} after {LAYERS} layers without them",
        ),
        Check(f"it is {spread(last[2], 4)} without residual connections only", min(last[2]) > 0.01),
        Check(
            f"one layer predicts {spread(first[0])} of the tokens with and {spread(first[1])} "
            "without feed-forward layers",
            all(a > 0.9 and b < a - 0.2 for a, b in zip(*first, strict=True)),
        ),
        Check(
            f"{depth} layer{'s' if depth > 1 else ''} without them predict {spread(deepest[1])}",
            all(b < a for a, b in zip(first[0], deepest[1], strict=True)),
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("relative distance from the mean", "accuracy over depth")
    for arm in ARMS:
        runs = [result["distance"] for result in results[arm]]
        curve(axes[0], range(1, LAYERS + 1), runs, arm)
    axes[0].set_yscale("log")
    axes[0].set_xlabel("layer")
    axes[0].legend()
    for arm in ARMS[:2]:
        accuracy = [result["accuracy"] for result in results[arm]]
        curve(axes[1], results[arm][0]["depths"], accuracy, arm)
    axes[1].set_xlabel("layers of encoder and decoder")
    axes[1].set_ylim(0, 1.05)
    return figure

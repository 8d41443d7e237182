"""Without the causal mask the model copies its input

Claim: the decoder must not attend to subsequent positions; the mask ensures that the prediction of
a token depends on earlier ones only (Vaswani et al. 2017, section 3.2.3). Without it each token can
be read from the decoder's input, so the training loss approaches zero and decoding fails.

Measurement: a Transformer learns to reverse sequences of 4 to 8 symbols, with and without the mask
in training. A fifth of the symbols of the training targets is replaced by random ones, which
nothing but the decoder's input can predict. Both models decode 256 sequences that are
excluded from the training, without such noise.

Rule, in each seed: the training loss ends above 0.5 nats per token with the mask and below 0.05
without it; the share of correct outputs is above 0.9 with the mask and below 0.1 without it.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from seq2seq.config.special_tokens import SPECIALS
from seq2seq.model.attention import MultiHeadAttention
from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.figures import bars, curve, panels, smoothed
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread, values
from seq2seq.scripts.experiments.small_model import (
    Arguments,
    Call,
    Options,
    Sequences,
    Task,
    Variant,
    exact_share,
    is_call,
    small_config,
    small_training,
    token_accuracy,
    train_model,
)
from seq2seq.scripts.experiments.tasks import excluding, reversal

CLAIM = "Without the causal mask the training loss approaches zero and decoding fails."
ARMS = ("masked", "unmasked")
STEPS = {"tiny": 400, "full": 1000}
NOISE = 0.2  # the share of target symbols that are replaced


def measure(arm: str, seed: int, size: str) -> Result:
    """Losses of the training, and the accuracy with teacher forcing and of decoding."""
    task = reversal(symbols=8) if size == "tiny" else reversal()
    model = Transformer(small_config(task))
    model = model if arm == "masked" else Variant(model.config, unmasked)
    pairs = task.sample(np.random.default_rng([seed, 1]), 256)
    trained = train_model(
        model, with_noise(excluding(task, pairs[0])), small_training(seed, STEPS[size])
    )
    tenth = len(trained.losses) // 10
    return {
        "losses": smoothed(trained.losses),
        "loss": trained.losses[-tenth:].mean(),
        "forced": token_accuracy(trained, task, *pairs),
        "decoded": exact_share(trained, task, *pairs),
    }


def with_noise(task: Task) -> Task:
    """The task, with random symbols in a share NOISE of the places of its targets."""

    def sample(random: np.random.Generator, count: int) -> tuple[Sequences, Sequences]:
        sources, targets = task.sample(random, count)
        for target in targets:
            for place in np.flatnonzero(random.random(len(target)) < NOISE):
                target[place] = int(random.integers(SPECIALS, task.vocab_size))
        return sources, targets

    return task._replace(sample=sample)


def unmasked(original: Call, arguments: Arguments, options: Options, context: Any) -> Any:
    """An interceptor: in training the decoder may attend to all positions of its segment."""
    is_self = context.module.path[:1] == ("decoder",) and context.module.name == "self_attention"
    if not (is_self and is_call(context, MultiHeadAttention)):
        return original(*arguments, **options)
    x, keys_values, mask, *others = arguments
    if mask.shape[-2] == mask.shape[-1]:  # not a step of a search
        mask = mask | jnp.swapaxes(mask, -1, -2)
    return original(x, keys_values, mask, *others, **options)


def judge(results: Results) -> list[Check]:
    loss = [values(results, arm, "loss") for arm in ARMS]
    decoded = [values(results, arm, "decoded") for arm in ARMS]
    return [
        Check(
            f"the loss ends at {spread(loss[1], 3)} nats without and {spread(loss[0], 3)} with the "
            "mask",
            max(loss[1]) < 0.05 and min(loss[0]) > 0.5,
        ),
        Check(
            f"{spread(decoded[1])} of the outputs are correct without and {spread(decoded[0])} "
            "with it",
            max(decoded[1]) < 0.1 and min(decoded[0]) > 0.9,
            f"{spread(decoded[1])} of the outputs correct without the mask",
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("training loss", "correct tokens, teacher forcing", "correct outputs")
    for arm in ARMS:
        losses = [result["losses"] for result in results[arm]]
        curve(axes[0], np.linspace(0, 1, len(losses[0])), losses, arm)
    axes[0].set_xlabel("share of the training")
    axes[0].legend()
    for axis, name in zip(axes[1:], ("forced", "decoded"), strict=True):
        bars(axis, ARMS, [values(results, arm, name) for arm in ARMS])
        axis.set_ylim(0, 1.05)
    return figure

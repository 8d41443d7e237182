"""Positions beyond the training length

Claim: sinusoidal positions may allow the model to extrapolate to sequences longer than those of the
training (Vaswani et al. 2017, section 3.5); learned ones cannot, because later rows of their table
are not trained; rotary positions are said to extrapolate better (Su et al. 2021).

Measurement: models learn to copy sequences of 4 to 16 of 16 symbols. New sequences of 16, 24, 32
and 64 symbols are copied: the share of correct tokens with teacher forcing, and of sequences that
are decoded without any error.

Rule, in each seed: each model predicts at least 95 % of the tokens at the training length. At 1.5
times this length sinusoidal positions, and rotary ones, still predict at least 90 %; learned
positions predict less than sinusoidal ones at 2 times.

Remark: with all kinds of positions the accuracy falls at once beyond the training length, and no
longer sequence is decoded without error. Sinusoidal positions lose least, but do not extrapolate.
Rotary positions, which only self-attention has here, lose most.
"""

import numpy as np

from model.transformer import Transformer
from scripts.experiments.figures import curve, panels
from scripts.experiments.outcome import Check, Result, Results, spread
from scripts.experiments.small_model import exact_share, small_config, token_accuracy, train_model
from scripts.experiments.tasks import copying

CLAIM = "Sinusoidal and rotary positions extrapolate beyond the training length, learned do not."
ARMS = ("sinusoidal", "learned", "rotary", "none")
SYMBOLS, LONGEST, FACTORS = 16, 16, (1.0, 1.5, 2.0, 4.0)
STEPS = {"tiny": 200, "full": 1000}


def measure(arm: str, seed: int, size: str) -> Result:
    """The shares of correct tokens and sequences at each multiple of the training length."""
    task = copying(SYMBOLS, range(4, LONGEST + 1))
    model = Transformer(small_config(task, d_model=64, positions=arm))
    trained = train_model(model, task, seed, STEPS[size])
    tokens, sequences = [], []
    for factor in FACTORS:
        length = int(LONGEST * factor)
        longer = copying(SYMBOLS, range(length, length + 1))
        pairs = longer.sample(np.random.default_rng([seed, length]), 128)
        tokens.append(token_accuracy(trained, longer, *pairs))
        sequences.append(exact_share(trained, longer, *pairs))
    return {"tokens": tokens, "sequences": sequences}


def judge(results: Results) -> list[Check]:
    def at(arm: str, factor: float) -> list[float]:
        return [result["tokens"][FACTORS.index(factor)] for result in results[arm]]

    inside = {arm: at(arm, 1.0) for arm in ARMS[:3]}
    over = {arm: ", ".join(spread(at(arm, factor)) for factor in FACTORS[1:]) for arm in ARMS}
    return [
        Check(
            "at the training length the correct tokens are "
            + ", ".join(f"{spread(inside[arm])} ({arm})" for arm in inside),
            min(min(one) for one in inside.values()) >= 0.95,
        ),
        *(
            Check(f"{arm}: {over[arm]} at 1.5, 2 and 4 times", min(at(arm, 1.5)) >= 0.9)
            for arm in ("sinusoidal", "rotary")
        ),
        Check(
            f"learned: {over['learned']} at 1.5, 2 and 4 times",
            all(a < b for a, b in zip(at("learned", 2.0), at("sinusoidal", 2.0), strict=True)),
        ),
    ]


def draw(results: Results):
    figure, axes = panels("correct tokens, teacher forcing", "sequences decoded without error")
    for axis, name in zip(axes, ("tokens", "sequences"), strict=True):
        for arm in ARMS:
            curve(axis, FACTORS, [result[name] for result in results[arm]], arm)
        axis.set_xlabel("length / training length")
        axis.set_ylim(0, 1.05)
    axes[0].legend()
    return figure

"""Positions beyond the training length

Claim: sinusoidal positions may allow the model to extrapolate to sequences longer than those of the
training (Vaswani et al. 2017, section 3.5); learned ones cannot, because later rows of their table
are not trained; rotary positions extrapolate further than sinusoidal ones, though not far,
relative positions in buckets (Raffel et al. 2020) further than rotary ones, and linear biases
(ALiBi) furthest (Press et al. 2022).

Measurement: models learn to copy sequences of 4 to 16 of 16 symbols. New sequences of 16, 24, 32
and 64 symbols are copied. The shares of correct tokens with teacher forcing, separately for the
places inside and beyond the training length, and of sequences that are decoded without any error.
Chance is one of 16 tokens. Rotary positions, relative positions and linear biases act in
self-attention only, so cross-attention, which a copy depends on, has no positions in these models:
their results are no comparison with sinusoidal positions in general.

Rule, in each seed: each model predicts at least 95 % of the tokens at the training length. All
positions but learned ones predict at least 90 % of the tokens beyond the training length at 1.5
times this length. Learned positions predict at most twice the share of chance beyond it, at each
length.
"""

from typing import Any

import numpy as np

from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import (
    Sequences,
    Task,
    Trained,
    exact_share,
    forced_pass,
    small_config,
    small_training,
    train_model,
)
from seq2seq.scripts.experiments.tasks import copying

CLAIM = "All positions but learned ones extrapolate beyond the training length."
ARMS = ("sinusoidal", "learned", "rotary", "relative", "alibi", "none")
FACTORS, CHANCE = {"tiny": (1.0, 1.5), "full": (1.0, 1.5, 2.0, 4.0)}, 1 / 16
LONGEST, STEPS = {"tiny": 8, "full": 16}, {"tiny": 300, "full": 1000}
WITHOUT = dict.fromkeys(("rotary", "relative", "alibi"), " (no positions in cross-attention)")


def measure(arm: str, seed: int, size: str) -> Result:
    """The shares of correct tokens and sequences at each multiple of the training length."""
    return accuracies(arm, seed, size, LONGEST[size])


def accuracies(arm: str, seed: int, size: str, trained_to: int) -> Result:
    """The result of a model that is trained with sequences of at most `trained_to` symbols."""
    task, longest = copying(round(1 / CHANCE), range(4, trained_to + 1)), LONGEST[size]
    model = Transformer(small_config(task, d_model=64, positions=arm))
    trained = train_model(model, task, small_training(seed, STEPS[size]))
    shares: dict[str, list[float]] = {"inside": [], "beyond": [], "sequences": []}
    for factor in FACTORS[size]:
        length = int(longest * factor)
        longer = copying(round(1 / CHANCE), range(length, length + 1))
        pairs = longer.sample(np.random.default_rng([seed, length]), 128)
        correct = correct_tokens(trained, longer, *pairs)
        shares["inside"].append(correct[:, :longest].mean())
        if factor > 1:
            shares["beyond"].append(correct[:, longest:].mean())
        shares["sequences"].append(exact_share(trained, longer, *pairs))
    return {"factors": FACTORS[size], **shares}


def correct_tokens(
    trained: Trained, task: Task, sources: Sequences, targets: Sequences
) -> np.ndarray:
    """Whether each token of targets of one length is predicted given those before, [B, T]."""
    logits, _ = forced_pass(trained, task, sources, targets)
    return logits.argmax(axis=-1)[:, : len(targets[0])] == np.array(targets)


def judge(results: Results) -> list[Check]:
    def at(arm: str, name: str, place: int) -> list[float]:
        return [result[name][place] for result in results[arm]]

    def described(arm: str) -> str:
        lists = [
            ", ".join(spread(at(arm, name, place)) for place in range(1 - len(factors), 0))
            for name in ("beyond", "inside", "sequences")
        ]
        return (
            f"{arm}{WITHOUT.get(arm, '')}: at {times} times the training length {lists[0]} of "
            f"the tokens beyond it are correct (chance {CHANCE:.2f}), {lists[1]} of those inside; "
            f"{lists[2]} of the sequences are decoded without error"
        )

    factors = results[ARMS[0]][0]["factors"]
    times = ", ".join(f"{factor:g}" for factor in factors[1:])
    inside = {arm: at(arm, "inside", 0) for arm in ARMS[:-1]}
    learned = [share for result in results["learned"] for share in result["beyond"]]
    return [
        Check(
            "at the training length the correct tokens are "
            + ", ".join(f"{spread(inside[arm])} ({arm})" for arm in inside),
            min(min(shares) for shares in inside.values()) >= 0.95,
        ),
        *(
            Check(
                described(arm),
                min(at(arm, "beyond", 0)) >= 0.9,
                f"{arm}: {spread(at(arm, 'beyond', 0))} correct at {factors[1]:g} times that"
                if arm == "rotary"
                else "",
            )
            for arm in ("sinusoidal", *WITHOUT)
        ),
        Check(described("learned"), max(learned) <= 2 * CHANCE),
    ]


def draw(results: Results) -> Any:
    titles = "correct tokens beyond the training length", "inside it"
    figure, axes = panels(*titles, "sequences decoded without error")
    for axis, name in zip(axes, ("beyond", "inside", "sequences"), strict=True):
        for arm in ARMS:
            runs = [result[name] for result in results[arm]]
            curve(axis, results[arm][0]["factors"][-len(runs[0]) :], runs, arm)
        axis.set_xlabel("length / training length")
        axis.set_ylim(0, 1.05)
    axes[0].axhline(CHANCE, color="gray", linestyle=":", label="chance")
    axes[0].legend()
    return figure

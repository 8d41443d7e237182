"""Parallel training over positions

Claim: an RNN computes the positions of a sequence one after another, which precludes parallel
computation within training examples and becomes critical at longer sequence lengths; the
Transformer computes all positions of a layer at once (Vaswani et al. 2017, sections 1 and 4).

Measurement: training steps of the Transformer and of the RNN with one context vector, of two layers
and equal numbers of parameters. Each batch has the same number of tokens: longer sequences in
fewer rows. The target tokens per second are those of the median step of several, on a machine that
may run other work.

Rule, in each seed: at the longest length the RNN trains on at most half as many tokens per second
as at the shortest, the Transformer on more than half; at the longest length the Transformer trains
on more tokens per second than the RNN.

Remark: the claim is about hardware that computes many positions at once. Two CPU cores are busy
with a batch of short sequences, so longer ones gain nothing, while the products of attention for
each token grow with the length.
"""

from typing import Any

import numpy as np

from seq2seq.config.training_config import TrainingConfig
from seq2seq.model.kinds import make_model
from seq2seq.scripts.experiments.equal_models import equal_config
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import batch_of
from seq2seq.scripts.experiments.tasks import copying
from seq2seq.scripts.experiments.timing import median_seconds
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_train_step, split_rows
from seq2seq.training.step import init_state, make_train_step

CLAIM = "Training of the Transformer is parallel over the positions, that of an RNN is not."
ARMS = ("transformer", "rnn")
SYMBOLS, WIDTH = 16, 64
LENGTHS = {"tiny": (4, 8), "full": (16, 64, 256, 1024)}
TOKENS = {"tiny": 16, "full": 4096}  # target tokens of a batch
ROUNDS = {"tiny": 1, "full": 7}


def measure(arm: str, seed: int, size: str) -> Result:
    """The target tokens per second of a training step at each length."""
    rates = [TOKENS[size] / step_seconds(arm, seed, size, length) for length in LENGTHS[size]]
    return {"lengths": LENGTHS[size], "rates": rates}


def step_seconds(arm: str, seed: int, size: str, length: int) -> float:
    """The median time of a training step on sequences of a length, the end token included."""
    task = copying(SYMBOLS, range(length - 1, length))
    model = make_model(equal_config(arm, task, WIDTH, max_length=max(LENGTHS[size])))
    config = TrainingConfig(seed=seed)
    optimizer = make_optimizer(config, model.config.d_model)
    step = pmap_train_step(make_train_step(model, optimizer, config))
    sample = task.sample(np.random.default_rng(seed), TOKENS[size] // length)
    batch = split_rows(batch_of(task, *sample), 1, 1)  # on one device
    state = init_state(model, optimizer, config)

    def advance() -> Any:
        nonlocal state  # a step donates the state before it
        state, metrics = step(state, batch)
        return state, metrics

    return median_seconds(advance, ROUNDS[size])


def judge(results: Results) -> list[Check]:
    lengths = results[ARMS[0]][0]["lengths"]
    transformer, rnn = (np.array([result["rates"] for result in results[arm]]) for arm in ARMS)
    ratios = transformer / rnn  # [seeds, lengths]

    def kept(rates: np.ndarray) -> np.ndarray:
        return rates[:, -1] / rates[:, 0]

    def described(name: str, rates: np.ndarray) -> str:
        return (
            f"{name}: {spread(rates[:, -1].tolist(), 0)} tokens/s at length {lengths[-1]}, "
            f"{spread(kept(rates).tolist())} of those at length {lengths[0]}"
        )

    faster = ", ".join(spread(column.tolist(), 1) for column in ratios.T)
    return [
        Check(described("RNN", rnn), bool(kept(rnn).max() <= 0.5)),
        Check(
            described("Transformer", transformer),
            bool(kept(transformer).min() > 0.5),
            f"Transformer: {spread(kept(transformer).tolist())} of the tokens/s remain",
        ),
        Check(
            f"the Transformer trains on {faster} times the tokens/s of the RNN at the lengths "
            + ", ".join(map(str, lengths)),
            bool(ratios[:, -1].min() > 1),
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("target tokens per second", "Transformer / RNN")
    lengths = results[ARMS[0]][0]["lengths"]
    rates = {arm: np.array([result["rates"] for result in results[arm]]) for arm in ARMS}
    for arm in ARMS:
        curve(axes[0], lengths, rates[arm], arm)
    curve(axes[1], lengths, rates["transformer"] / rates["rnn"], "ratio")
    axes[0].set_yscale("log")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("tokens of a sequence")
    axes[0].legend()
    return figure

"""The fixed context vector loses long sentences

Claim: an encoder-decoder that compresses a sentence into a vector of fixed length has difficulty
with long sentences (Cho et al. 2014, On the Properties of Neural Machine Translation; Bahdanau et
al. 2015, section 5.1, figure 2, and section 5.2.2). Attention removes the limit, in an RNN and in
the Transformer.

Measurement: the RNN whose only connection from encoder to decoder is the context vector, the RNN
with additive attention and the Transformer, of two layers and equal numbers of parameters, learn to
copy sequences of 16 symbols in the same number of steps. New sequences of each length of the
training: the share of correct tokens with teacher forcing, and of sequences that are decoded
without any error.

Rule, in each seed: the numbers of parameters differ by at most 5 %, and each kind predicts at
least 90 % of the tokens of the shortest sequences. From the shortest to the longest sequences the
RNN's share of correct tokens falls by at least 0.20, those of the RNN with attention and of the
Transformer by at most 0.05. A kind that does not predict the shortest
sequences satisfies no part of the rule.
"""

from typing import Any

import numpy as np

from seq2seq.model.config import num_parameters
from seq2seq.model.kinds import make_model
from seq2seq.scripts.experiments.equal_models import equal_config
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import (
    best_hypotheses,
    forced_pass,
    small_training,
    train_model,
)
from seq2seq.scripts.experiments.tasks import copying

CLAIM = "The fixed context vector loses long sentences."
ARMS = ("transformer", "rnn_attention", "rnn")
NAMES = {"transformer": "Transformer", "rnn_attention": "RNN with attention", "rnn": "RNN"}
SYMBOLS, WIDTH, SEQUENCES = 16, 64, 64
LENGTHS = {"tiny": (2, 6, 10), "full": (4, 8, 12, 16, 20, 24)}
STEPS = {"tiny": 300, "full": 2000}
LEARNED, LOST, KEPT, EQUAL = 0.9, 0.2, 0.05, 1.05  # the limits of the rule


def measure(arm: str, seed: int, size: str) -> Result:
    """The shares of correct tokens and sequences of each length, and the parameters."""
    lengths = LENGTHS[size]
    task = copying(SYMBOLS, range(lengths[0], lengths[-1] + 1))
    model = make_model(equal_config(arm, task, WIDTH))
    trained = train_model(model, task, small_training(seed, STEPS[size]))
    sources = []
    for length in lengths:
        task_of_length = copying(SYMBOLS, range(length, length + 1))
        sources += task_of_length.sample(np.random.default_rng([seed, length]), SEQUENCES)[0]
    logits, _ = forced_pass(trained, task, sources, sources)
    outputs, _ = best_hypotheses(trained, task, sources)
    predicted = logits.argmax(axis=-1)
    tokens = [
        np.mean(row[: len(source)] == source)
        for row, source in zip(predicted, sources, strict=True)
    ]
    exact = [output == source for output, source in zip(outputs, sources, strict=True)]
    by_length = (len(lengths), SEQUENCES)
    return {
        "lengths": lengths,
        "tokens": np.reshape(tokens, by_length).mean(axis=1),
        "sequences": np.reshape(exact, by_length).mean(axis=1),
        "parameters": num_parameters(model.config),
    }


def judge(results: Results) -> list[Check]:
    def at(arm: str, place: int) -> list[float]:
        return [result["tokens"][place] for result in results[arm]]

    lengths = results[ARMS[0]][0]["lengths"]
    parameters = {arm: results[arm][0]["parameters"] for arm in ARMS}
    equal = max(parameters.values()) <= EQUAL * min(parameters.values())
    learned = {arm: equal and min(at(arm, 0)) >= LEARNED for arm in ARMS}
    lost = {arm: np.subtract(at(arm, 0), at(arm, -1)) for arm in ARMS}

    def described(arm: str) -> str:
        return (
            f"{NAMES[arm]}: {spread(at(arm, 0))} of the tokens are correct at length "
            f"{lengths[0]} and {spread(at(arm, -1))} at length {lengths[-1]}"
        )

    least = min(min(at(arm, 0)) for arm in ARMS)
    sizes = ", ".join(f"{parameters[arm]:,} ({NAMES[arm]})" for arm in ARMS)
    return [
        Check(
            f"the numbers of parameters are {sizes}; each kind predicts at least {least:.2f} of "
            f"the tokens at length {lengths[0]}",
            all(learned.values()),
        ),
        Check(
            described("rnn"),
            learned["rnn"] and bool(lost["rnn"].min() >= LOST),
            f"RNN: {spread(at('rnn', -1))} of the tokens correct at length {lengths[-1]}",
        ),
        *(
            Check(described(arm), learned[arm] and bool(lost[arm].max() <= KEPT))
            for arm in ("rnn_attention", "transformer")
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("correct tokens, teacher forcing", "sequences decoded without error")
    for axis, name in zip(axes, ("tokens", "sequences"), strict=True):
        for arm in ARMS:
            lengths = results[arm][0]["lengths"]
            curve(axis, lengths, [result[name] for result in results[arm]], NAMES[arm])
        axis.set_xlabel("symbols of the source")
        axis.set_ylim(0, 1.05)
    axes[0].legend()
    return figure

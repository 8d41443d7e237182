"""Teacher forcing against the model's own tokens

Claim: training on the reference's tokens (teacher forcing, Williams and Zipser 1989) converges
faster than on the model's own, but differs from decoding (exposure bias, Bengio et al. 2015).

Measurement: the target is the running sum modulo 3 of 4 to 12 digits, so that each token depends
on the one before. One model is trained by teacher forcing; the decoder input of the other one is
its own greedy output in each step. After 100 to 800 steps of one training, on the same sequences,
which are excluded from it: the share of correct tokens in greedy decoding, at the places of the
reference; this share given the reference as decoder input; and the negative log-likelihood of the
reference. The gap is the share given the reference minus that of decoding.

Rule, in each seed: in the mean over these steps, the share in greedy decoding is higher with
teacher forcing; with it, the share of errors in decoding is more than 1.2 times that given the
reference, in the mean over these steps and after the last one. Training losses are not compared.

Remark: the gap exists only while the task is being learned; at the end both shares are 1.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.data.batching.packing import Batch
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.scoring import GivenPairs, teacher_forcing
from seq2seq.model.search.translate import Request, translate
from seq2seq.model.transformer import Transformer
from seq2seq.scripts.experiments.figures import curve, panels
from seq2seq.scripts.experiments.outcome import Check, Result, Results, spread
from seq2seq.scripts.experiments.small_model import (
    Task,
    padded,
    small_config,
    small_training,
    train_model,
)
from seq2seq.scripts.experiments.tasks import excluding, sequence_task

CLAIM = "Teacher forcing converges faster, but training and decoding then differ."
ARMS = ("teacher forcing", "own tokens")
STEPS = {"tiny": (100, 200, 400), "full": (100, 200, 300, 400, 600, 800)}
BASE = 3


def measure(arm: str, seed: int, size: str) -> Result:
    """The scores after each of STEPS."""
    return curves(arm, seed, running_sums(range(4, 9 if size == "tiny" else 13)), STEPS[size])


def curves(arm: str, seed: int, task: Task, steps: Sequence[int]) -> Result:
    """The scores after each of the increasing `steps` of a training on a task."""
    pairs = task.sample(np.random.default_rng([seed, 1]), 256)
    model, done, kept = Transformer(small_config(task)), count(), []
    output = greedy_output(model, task.target_length)

    def feed(params: Any, batch: Batch) -> Batch:
        if next(done) in steps:
            kept.append(jax.tree.map(np.array, params))  # copies: the step donates them
        return batch if arm == ARMS[0] else own_tokens(output)(params, batch)

    training = small_training(seed, steps[-1])
    trained = train_model(model, excluding(task, pairs[0]), training, feed=feed)
    sources, targets = padded(pairs[0], task.source_length), padded(pairs[1], task.target_length)
    forced_pass = jax.jit(partial(teacher_forcing, model))
    curves_of_scores: dict[str, list[float]] = {"decoded": [], "forced": [], "nll": []}
    for params in (*kept, trained.params):
        references = GivenPairs(*map(jnp.asarray, (*sources, *targets)))
        logits, _ = forced_pass({"params": params}, references)
        decoded = np.asarray(output(params, *sources))
        for name, number in scores(decoded, np.asarray(logits), *targets).items():
            curves_of_scores[name].append(number)
    return {"steps": list(steps), **curves_of_scores}


def scores(
    tokens: np.ndarray, logits: np.ndarray, labels: np.ndarray, lengths: np.ndarray
) -> dict[str, float]:
    """The shares of correct `tokens` [B, T] of decoding and of the best `logits` [B, T, V] among
    the labels without end tokens; and the negative log-likelihood of all labels, in nats."""
    places = np.arange(labels.shape[1])
    inside = places < lengths[:, None] - 1
    log_probs = np.asarray(jax.nn.log_softmax(logits))  # [B, T, V]
    of_labels = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]  # [B, T]
    return {
        "decoded": float((tokens == labels)[inside].mean()),
        "forced": float((logits.argmax(axis=-1) == labels)[inside].mean()),
        "nll": float(-of_labels[places < lengths[:, None]].mean()),
    }


def running_sums(lengths: range) -> Task:
    """Digits, and the sums of the digits up to each place modulo BASE."""
    return sequence_task(lambda s: (np.cumsum(s) % BASE).tolist(), BASE, lengths)


def greedy_output(model: Transformer, length: int) -> Callable[..., jax.Array]:
    """A function (params, source [B, S], lengths [B]) → the greedy output [B, length]."""

    @jax.jit
    def output(params: Any, source: jax.Array, lengths: jax.Array) -> jax.Array:
        request, rows = Request(source, lengths, jnp.full(len(source), length)), len(source)
        models = [(model, {"params": params})]
        options = SearchOptions(length, model.config.end_id, beam_size=1)
        return translate(models, request, options, rows).tokens[:, 0]

    return output


def own_tokens(output: Callable[..., jax.Array]) -> Callable[[Any, Batch], Batch]:
    """A function (params, batch) → batch whose decoder input is the model's greedy `output`."""

    def feed(params: Any, batch: Batch) -> Batch:
        tokens = np.asarray(output(params, batch.source, batch.source_segments.sum(axis=1)))
        inputs = np.concatenate([batch.decoder_input[:, :1], tokens[:, :-1]], axis=1)
        return batch._replace(decoder_input=np.where(batch.target_segments > 0, inputs, 0))

    return feed


def judge(results: Results) -> list[Check]:
    steps = ", ".join(map(str, results[ARMS[0]][0]["steps"]))
    decoded, forced, nll = (
        [np.array([result[name] for result in results[arm]]) for arm in ARMS]  # [seed, step]
        for name in ("decoded", "forced", "nll")
    )

    def listed(numbers: np.ndarray) -> str:
        return ", ".join(spread(column) for column in numbers.T.tolist())

    end = [spread(shares[0][:, -1].tolist(), 3) for shares in (forced, decoded)]
    return [
        Check(
            f"after {steps} steps {listed(decoded[0])} of the tokens are "
            f"correct in decoding with teacher forcing and {listed(decoded[1])} with own tokens; "
            f"the reference has {listed(nll[0])} and {listed(nll[1])} nats per token",
            bool((decoded[0].mean(axis=1) > decoded[1].mean(axis=1)).all()),
            f"{spread(decoded[1][:, -1].tolist())} of the tokens correct with own tokens",
        ),
        Check(
            f"with teacher forcing {listed(forced[0])} are correct given the reference, a gap of "
            f"{listed(forced[0] - decoded[0])}",
            bool(((1 - decoded[0]).mean(axis=1) > 1.2 * (1 - forced[0]).mean(axis=1)).all()),
        ),
        Check(
            f"after the last step {end[0]} are correct given the reference, {end[1]} in decoding",
            bool((1 - decoded[0][:, -1] > 1.2 * (1 - forced[0][:, -1])).all()),
        ),
    ]


def draw(results: Results) -> Any:
    figure, axes = panels("correct tokens, decoded", "given the reference", "nats per token")
    for arm in ARMS:
        for axis, name in zip(axes, ("decoded", "forced", "nll"), strict=True):
            curve(axis, results[arm][0]["steps"], [result[name] for result in results[arm]], arm)
            axis.set_xlabel("steps")
    axes[0].legend()
    return figure

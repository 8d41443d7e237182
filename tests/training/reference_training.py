"""Training of the model of bag_of_words.py in NumPy: pair by pair, without packing or devices.

It reads the batches of training, and nothing else of seq2seq/training.
"""

from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

import jax
import numpy as np

from seq2seq.config.special_tokens import END, START
from tests.support.models.bag_of_words import (
    BROKEN,
    BagOfWords,
    add_gradient,
    divergence_of,
    logits_of,
    pair_sums,
)


class Pair(NamedTuple):
    """A pair of a batch; source and labels include the end token."""

    source: list[int]
    labels: list[int]
    row: int
    column: int
    weight: float | None  # the scaled loss weight

    @property
    def inputs(self):
        return [START, *self.labels[:-1]]


def pairs_of(batch):
    """The pairs of a batch, after checks of what training adds to them."""
    pairs = []
    np.testing.assert_array_equal(batch.row_ids, np.arange(len(batch.row_ids)))
    for row, segments in enumerate(batch.target_segments):
        for segment in range(1, segments.max() + 1):
            (columns,) = np.nonzero(segments == segment)
            (places,) = np.nonzero(batch.source_segments[row] == segment)
            for positions, length in (
                (batch.source_positions[row, places], len(places)),
                (batch.target_positions[row, columns], len(columns)),
            ):
                assert positions.tolist() == list(range(length))
            weights = [None] * len(columns)
            if batch.loss_weights is not None:
                weights = batch.loss_weights[row, columns].tolist()
            assert len(set(weights)) == 1
            source, labels = batch.source[row, places].tolist(), batch.labels[row, columns].tolist()
            pair = Pair(source, labels, row, int(columns[0]), weights[0])
            assert batch.decoder_input[row, columns].tolist() == pair.inputs
            assert source[-1] == labels[-1] == END
            pairs.append(pair)
    return pairs


def learning_rate(training, d_model, n):
    """The rate of update n = 1, 2, …"""
    warmup, peak = training.warmup_steps, training.learning_rate
    if training.schedule == "paper":
        return peak * d_model**-0.5 * min(n**-0.5, n * warmup**-1.5)
    left = (training.num_steps - n) / (training.num_steps - warmup)
    after = {
        "inverse_sqrt": (warmup / n) ** 0.5,
        "cosine": 0.5 * (1 - np.cos(np.pi * left)),
        "linear": left,
        "constant": 1.0,
    }
    return peak * (n / warmup if n <= warmup else after[training.schedule])


@cache
def mask_function(config):
    """(key of a step, ones [B, T, D], ids of the rows [B]) → the factors of dropout."""
    module = BagOfWords(config)

    def masks(key, ones, rows):
        rngs = {"params": key, "dropout": key}
        return module.init_with_output(rngs, ones, rows, method="mask")[0]

    return jax.jit(masks)


def root_mean_square(x):
    return np.sqrt((x**2).mean())


class Reference:
    """A training in NumPy: `step(batch)` and `evaluation(pairs)`."""

    def __init__(self, config, params):
        self.model, self.training = config.model, config.training
        patterns = [pattern.strip() for pattern in self.training.freeze.split(",")]
        self.trained = [name for name in params if not any(fnmatchcase(name, p) for p in patterns)]
        self.params, self.number, self.updates = params, 0, 0
        self.ema = params if self.training.ema_decay else None
        self.key = jax.random.split(jax.random.PRNGKey(self.training.seed))[1]
        self.first = {name: np.zeros_like(params[name]) for name in self.trained}
        self.second = dict(self.first)
        self.factors = {name: (0.0, 0.0) for name in self.trained}

    @property
    def eval_params(self):
        return self.params if self.ema is None else self.ema

    def step(self, batch, weights):
        """The metrics of the next step; None if it is skipped. `weights` are those of the pairs."""
        pairs = pairs_of(batch)
        self.number += 1
        if any(BROKEN in pair.source for pair in pairs):
            return None
        sums, gradients, total = np.zeros(4), self.zeros(), 0.0
        passes = self.passes(batch)
        for pair, weight in zip(pairs, weights, strict=True):
            columns = slice(pair.column, pair.column + len(pair.labels))
            masks = [mask[pair.row, columns] for mask in passes]
            forwards = [logits_of(self.params, pair.source, pair.inputs, mask) for mask in masks]
            of_passes, at_logits = zip(
                *(
                    pair_sums(forward[0], pair.labels, self.training.label_smoothing)
                    for forward in forwards
                ),
                strict=True,
            )
            of_pair = np.mean(of_passes, axis=0)
            if self.training.r_drop:  # Liang et al. 2021, equation 4, divided by 2
                factor = self.training.r_drop / 4
                divergence, *at_divergence = divergence_of(*(forward[0] for forward in forwards))
                of_pair[0] += factor * divergence
                at_logits = [
                    x / 2 + factor * y for x, y in zip(at_logits, at_divergence, strict=True)
                ]
            for mask, forward, at in zip(masks, forwards, at_logits, strict=True):
                add_gradient(
                    gradients, self.params, pair.source, pair.inputs,
                    weight * at, *forward[1:], mask,
                )  # fmt: skip
            sums += weight * of_pair
            total += len(pair.labels)
        loss, nll, accuracy = sums[:3] / sums[3]
        gradients = {name: gradients[name] / sums[3] for name in self.trained}
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        rate = learning_rate(self.training, self.model.d_model, self.number)
        self.update(gradients, norm, rate)
        return {
            "train_loss": loss, "train_nll": nll, "train_accuracy": accuracy,
            "train_gradient_norm": norm, "train_learning_rate": rate,
        }  # fmt: skip

    def passes(self, batch):
        """The factors of dropout [B, T, D] of each pass of the batch: two with R-Drop."""
        ones = np.ones((*batch.decoder_input.shape, self.model.d_model), np.float32)
        if not self.model.dropout:
            return [ones]
        key = jax.random.fold_in(self.key, self.number - 1)
        ids = [batch.row_ids, ~batch.row_ids] if self.training.r_drop else [batch.row_ids]
        return [np.asarray(mask_function(self.model)(key, ones, x), np.float64) for x in ids]

    def zeros(self):
        return {name: np.zeros_like(x) for name, x in self.params.items()}

    def update(self, gradients, norm, rate):
        training, params = self.training, dict(self.params)
        self.updates += 1
        scaling = {"adam": self.adam, "adafactor": self.adafactor}[training.optimizer]
        for name, g in gradients.items():
            if training.clip_norm:
                g = g * min(1.0, training.clip_norm / norm)
            change = scaling(name, g)
            if name.endswith("table"):
                change = change + training.weight_decay * params[name]
            params[name] = params[name] - rate * change
        self.params = params
        if self.ema is not None:
            n = self.number - 1
            decay = min(training.ema_decay, (1 + n) / (10 + n))
            self.ema = {k: decay * old + (1 - decay) * params[k] for k, old in self.ema.items()}

    def adam(self, name, g):
        b1, b2 = self.training.adam_b1, self.training.adam_b2
        self.first[name] = b1 * self.first[name] + (1 - b1) * g
        self.second[name] = b2 * self.second[name] + (1 - b2) * g**2
        mean = self.first[name] / (1 - b1**self.updates)
        square = self.second[name] / (1 - b2**self.updates)
        return mean / (np.sqrt(square) + self.training.adam_epsilon)

    def adafactor(self, name, g):
        """Shazeer and Stern 2018, algorithms 4 and 5."""
        decay, square = 1 - self.updates**-0.8, g**2 + 1e-30
        if g.ndim == 2:
            old, means = self.factors[name], (square.mean(1, keepdims=True), square.mean(0))
            rows, columns = (decay * x + (1 - decay) * y for x, y in zip(old, means, strict=True))
            self.factors[name] = rows, columns
            change = g / np.sqrt(rows * columns / rows.mean())
        else:
            self.second[name] = decay * self.second[name] + (1 - decay) * square
            change = g / np.sqrt(self.second[name])
        change = change / max(1.0, root_mean_square(change))
        return change * max(root_mean_square(self.params[name]), 1e-3)

    def evaluation(self, pairs, params):
        """The metrics of these pairs, lists of ids without end tokens, without dropout."""
        sums = 0
        for source, target in pairs:
            logits = logits_of(params, [*source, END], [START, *target])[0]
            sums = sums + pair_sums(logits, [*target, END], self.training.label_smoothing)[0]
        loss, nll, accuracy = sums[:3] / sums[3]
        return {
            "loss": loss, "nll": nll, "accuracy": accuracy, "perplexity": np.exp(nll),
        }  # fmt: skip

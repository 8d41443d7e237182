"""The training step of the model of bag_of_words.py and a batch, compiled once for these tests."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.model.mesh import AXIS, replicated
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_train_step, split_rows
from seq2seq.training.step import init_state, loss_sums, make_train_step
from tests.support.models.bag_of_words import BROKEN, MODEL, BagOfWords

ROWS, S, T, V, D_MODEL = 16, 11, 13, 23, 8
# The learning rate falls to 0 at the last step.
TRAINING = TrainingConfig(
    schedule="linear",
    learning_rate=1e-2,
    warmup_steps=1,
    num_steps=100,
    clip_norm=0.1,
    ema_decay=0.3,
)
DROPOUT = 0.3


@cache
def model(dropout=0.0):
    return BagOfWords(
        replace(MODEL, source_vocab_size=V, target_vocab_size=V, d_model=D_MODEL, dropout=dropout)
    )


@cache
def batch():
    """Rows with different numbers of tokens: a mean of means would be wrong."""
    random = np.random.default_rng(0)
    ids = lambda length: random.integers(BROKEN + 1, V, (ROWS, length)).astype(np.int32)  # noqa: E731
    segments = lambda length: (  # noqa: E731
        np.arange(length) < random.integers(2, length + 1, (ROWS, 1))
    ).astype(np.int32)
    column = lambda length: np.tile(np.arange(length, dtype=np.int32), (ROWS, 1))  # noqa: E731
    return Batch(
        ids(S),
        segments(S),
        column(S),
        ids(T),
        ids(T),
        segments(T),
        column(T),
        np.arange(ROWS, dtype=np.int32),
    )


@cache
def host_state():
    """The same parameters for all tests; dropout has no parameters."""
    return jax.device_get(init_state(model(), make_optimizer(TRAINING, D_MODEL), TRAINING))


def spread_over(step, devices):
    """`step` by pmap over the first `devices` devices."""
    return jax.pmap(step, AXIS, in_axes=(None, 0), out_axes=None, devices=jax.devices()[:devices])


@cache
def step_on(devices):
    """The training step, as pmap_train_step on all devices or on the first one. It compiles once
    for each shape of a batch."""
    step = make_train_step(model(), make_optimizer(TRAINING, D_MODEL), TRAINING)
    return pmap_train_step(step) if devices == jax.device_count() else spread_over(step, devices)


def one_step(state, batch, devices=1, micro=1):
    """(state, metrics) after a step, on the host."""
    if devices == jax.device_count():
        state = jax.device_put(state, replicated())  # as in training
    return jax.device_get(step_on(devices)(state, split_rows(batch, devices, micro)))


@cache
def sharded_step():
    """The training step with dropout under shard_map on four devices."""
    step = make_train_step(model(DROPOUT), make_optimizer(TRAINING, D_MODEL), TRAINING)
    specs = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            lambda state, batch: step(state, jax.tree.map(lambda x: x[0], batch)),
            mesh=Mesh(np.array(jax.devices()[:4]), (AXIS,)),
            in_specs=specs,
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )


@cache
def gradient_function(dropout=0.0):
    """(parameters, key of the step) → (LossSums, gradient of the mean loss) of the batch."""

    def mean_loss(params, batch, key):
        sums = loss_sums(model(dropout), params, batch, TRAINING, key if dropout else None)
        return sums.loss / sums.tokens, sums

    gradient = jax.jit(jax.grad(mean_loss, has_aux=True))

    def on_host(params, key=None):
        gradients, sums = gradient(params, batch(), key)
        return jax.device_get((sums, gradients))

    return on_host


def norm(tree):
    """The global norm, in float64."""
    return np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(tree)))


def assert_close(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)

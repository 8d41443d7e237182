"""The training step: any number of devices and micro-batches gives the same update; it learns."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

from data.config import DataConfig
from data.packing import Batch
from data.pairs import Pairs, ragged
from model.config import ModelConfig
from model.transformer import Transformer
from storage.config import Config, TrainingConfig
from training.evaluate import held_out_loss
from training.loss import LossSums
from training.optimizer import make_optimizer
from training.step import (
    AXIS,
    init_state,
    loss_sums,
    make_train_step,
    pmap_train_step,
    split_rows,
)

ROWS, S, T, V = 8, 11, 7, 23
TRAINING = TrainingConfig(schedule="constant", learning_rate=1e-2, warmup_steps=1, clip_norm=0.1)


def model(dropout=0.0):
    return Transformer(
        ModelConfig(
            source_vocab_size=V,
            target_vocab_size=V,
            d_model=8,
            d_ff=13,
            num_heads=2,
            num_layers=1,
            max_length=16,
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
        )
    )


@pytest.fixture(scope="module")
def batch():
    """Rows with different numbers of tokens: a mean of means would be wrong."""
    random = np.random.default_rng(0)
    ids = lambda length: random.integers(4, V, (ROWS, length)).astype(np.int32)  # noqa: E731
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


def spread_over(step, devices):
    """`step` by pmap over the first `devices` devices."""
    return jax.pmap(step, AXIS, in_axes=(None, 0), out_axes=None, devices=jax.devices()[:devices])


@cache
def host_state():
    """The same parameters for all tests; dropout has no parameters."""
    return jax.device_get(init_state(model(), make_optimizer(TRAINING, 8), TRAINING))


def train(batch, devices, micro, steps=2, dropout=0.0):
    step = make_train_step(model(dropout), make_optimizer(TRAINING, 8), TRAINING)
    step, state = spread_over(step, devices), host_state()
    for _ in range(steps):
        state, metrics = step(state, split_rows(batch, devices, micro))
        state = jax.device_get(state)
    return state, jax.device_get(metrics)


def assert_close(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def one_device(batch):
    return train(batch, 1, 1)


@pytest.mark.parametrize("devices, micro", [(4, 1), (1, 4), (2, 2), (3, 1)])
def test_the_update_is_independent_of_devices_and_micro_batches(batch, one_device, devices, micro):
    assert_close(train(batch, devices, micro), one_device)


def test_any_optax_optimizer_can_be_used(batch):
    """Gradient descent with a rate of 1 subtracts the gradient of the mean loss; its norm is
    reported."""
    descent = optax.scale(-1.0)
    params = host_state().params
    state = host_state()._replace(optimizer=descent.init(params))
    step = spread_over(make_train_step(model(), descent, TRAINING), 1)
    trained, metrics = step(state, split_rows(batch, 1, 1))

    def mean_loss(params, batch):
        sums = loss_sums(model(), params, batch, TRAINING, None)
        return sums.loss / sums.tokens

    gradient = jax.jit(jax.grad(mean_loss))(params, batch)
    expected = jax.tree.map(jnp.subtract, params, gradient)
    assert_close(trained.params, expected)
    squares = sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(gradient))
    np.testing.assert_allclose(metrics["gradient_norm"], np.sqrt(squares), rtol=1e-5)


def test_dropout_does_not_depend_on_the_devices(batch, one_device):
    one = train(batch, 1, 1, dropout=0.3)
    assert_close(train(batch, 4, 1, dropout=0.3), one)
    assert not np.allclose(one[1]["loss"], one_device[1]["loss"], rtol=1e-3)  # dropout is on


def test_the_step_also_runs_under_shard_map(batch, one_device):
    step = make_train_step(model(), make_optimizer(TRAINING, 8), TRAINING)
    mesh = Mesh(np.array(jax.devices()[:4]), (AXIS,))

    @jax.jit
    @lambda f: jax.shard_map(
        f,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    def sharded(state, batch):
        return step(state, jax.tree.map(lambda x: x[0], batch))

    state = host_state()
    for _ in range(2):
        state, metrics = sharded(state, split_rows(batch, 4, 1))
        state = jax.device_get(state)
    assert_close((state, jax.device_get(metrics)), one_device)


def test_a_batch_of_padding_changes_no_parameter(batch):
    empty = batch._replace(
        source_segments=0 * batch.source_segments, target_segments=0 * batch.target_segments
    )
    state, metrics = train(empty, 1, 1, steps=1)
    for before, after in zip(
        jax.tree.leaves(host_state().params), jax.tree.leaves(state.params), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    assert metrics["loss"] == 0 and metrics["gradient_norm"] == 0


def test_a_schedule_ends_at_num_steps_even_if_steps_were_skipped(batch):
    """The learning rate of the last step is 0, so that it changes no parameter."""
    training = replace(TRAINING, schedule="linear", num_steps=3)
    step = spread_over(make_train_step(model(), make_optimizer(training, 8), training), 1)
    rows = split_rows(batch, 1, 1)
    first = jax.device_get(step(host_state(), rows)[0])
    broken = first._replace(params=jax.tree.map(lambda x: np.nan * x, first.params))
    skipped, metrics = jax.device_get(step(broken, rows))
    assert not np.isfinite(metrics["loss"])
    last = jax.device_get(step(skipped._replace(params=first.params), rows)[0])
    for before, after in zip(*(jax.tree.leaves(x.params) for x in (first, last)), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [int(state.step) for state in (first, skipped, last)] == [1, 2, 3]
    adam = last.optimizer[1][0]
    assert int(adam.count) == 2  # applied updates


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_step_is_applied_only_if_both_loss_and_gradient_are_finite(batch, monkeypatch, broken):
    def spoilt(model, params, *rest):
        sums = loss_sums(model, params, *rest)
        zero = 0.0 * jax.tree.leaves(params)[0].sum()
        # sqrt(0) is finite but its gradient is not; the gradient of a constant is 0.
        return sums._replace(loss=sums.loss + (jnp.inf if broken == "loss" else jnp.sqrt(zero)))

    monkeypatch.setattr("training.step.loss_sums", spoilt)
    state, metrics = train(batch, 1, 1, steps=1)
    finite = {name: bool(np.isfinite(metrics[name])) for name in ("loss", "gradient_norm")}
    assert finite == {"loss": broken == "gradient", "gradient_norm": broken == "loss"}
    before = host_state()
    for old, new in zip(
        jax.tree.leaves((before.params, before.optimizer)),
        jax.tree.leaves((state.params, state.optimizer)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)
    assert state.step == before.step + 1


def test_the_step_learns_and_donates(batch):
    """pmap_train_step on all devices: the state stays on them, and the loss decreases."""
    optimizer = make_optimizer(TRAINING, 8)
    step = pmap_train_step(make_train_step(model(), optimizer, TRAINING))
    state = init_state(model(), optimizer, TRAINING)
    spread = split_rows(batch, jax.device_count(), 1)
    losses = []
    for _ in range(20):
        old = state
        state, metrics = step(state, spread)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    assert int(state.step) == 20
    assert jax.tree.leaves(old.params)[0].is_deleted()


def test_split_rows_pads_with_rows_that_add_nothing(batch):
    split = split_rows(batch, 3, 2)
    assert split.source.shape == (3, 2, 2, S)
    flat = split.target_segments.reshape(-1, T)
    np.testing.assert_array_equal(flat[:ROWS], batch.target_segments)
    assert (flat[ROWS:] == 0).all() and len(flat) == 12
    assert jnp.asarray(split.row_ids).reshape(-1)[:ROWS].tolist() == list(range(ROWS))


def test_the_moving_average_follows_its_formula(batch):
    training = replace(TRAINING, ema_decay=0.3)
    optimizer = make_optimizer(training, 8)
    step = spread_over(make_train_step(model(), optimizer, training), 1)
    state = jax.device_get(init_state(model(), optimizer, training))
    expected = state.params
    for n in range(4):
        state, _ = step(state, split_rows(batch, 1, 1))
        state = jax.device_get(state)
        decay = min(0.3, (1 + n) / (10 + n))
        expected = jax.tree.map(
            lambda old, new, decay=decay: decay * old + (1 - decay) * new, expected, state.params
        )
    assert_close(state.ema, expected, 1e-6)
    assert_close(state.eval_params, state.ema, 0)


@pytest.mark.parametrize("micro", [1, 3])
def test_an_evaluation_uses_at_most_the_rows_of_a_micro_batch(micro):
    random = np.random.default_rng(1)
    ids = ragged([random.integers(4, V, n).tolist() for n in random.integers(1, T, 60)])
    config = Config(
        data=DataConfig(source_length=T, target_length=T),
        training=TrainingConfig(tokens_per_batch=T * ROWS, accumulate=micro),
    )
    seen = []

    def eval_step(params, rows):
        seen.append(rows.target.shape[0] * rows.target.shape[1])
        real = rows.target_segments > 0
        return LossSums((rows.labels * real).sum(), 2.0 * real.sum(), real.sum() / 4, real.sum())

    metrics = held_out_loss(eval_step, None, Pairs(ids, ids), config)
    parts = micro * jax.local_device_count()
    assert max(seen) <= -(-ROWS // parts) * jax.local_device_count()
    tokens = len(ids.ids) + 60  # one end token per pair
    assert metrics["valid_loss"] == pytest.approx((ids.ids.sum() + 60 * 2) / tokens)
    assert metrics["valid_nll"] == 2.0 and metrics["valid_accuracy"] == 0.25

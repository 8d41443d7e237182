"""Updates of the parameters: Adam with schedule and decay in NumPy; the dropout of each step."""

from functools import cache

import jax
import numpy as np
import optax
import pytest

from data.packing import Batch
from model.config import ModelConfig
from model.transformer import Transformer
from storage.config import TrainingConfig
from training.optimizer import make_optimizer
from training.step import (
    init_state,
    loss_sums,
    make_train_step,
    pmap_eval_step,
    pmap_train_step,
    split_rows,
)

D_MODEL, STEPS, WARMUP = 64, 9, 3


def learning_rate(name, n):
    """The rate of update n = 1, 2, … for a peak of 0.5."""
    if name == "paper":
        return 0.5 * D_MODEL**-0.5 * min(n**-0.5, n * WARMUP**-1.5)
    left = (STEPS - n) / (STEPS - WARMUP)
    if name == "inverse_sqrt":
        return 0.5 * min(n / WARMUP, (WARMUP / n) ** 0.5)
    after = {"cosine": 0.5 * (1 - np.cos(np.pi * left)), "linear": left, "constant": 1.0}[name]
    return 0.5 * (n / WARMUP if n <= WARMUP else after)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["paper", "inverse_sqrt", "cosine", "linear", "constant"])
def test_updates_are_clipped_adamw_with_the_learning_rate_of_the_schedule(name, decay):
    config = TrainingConfig(
        schedule=name,
        learning_rate=0.5,
        warmup_steps=WARMUP,
        num_steps=STEPS,
        clip_norm=1.0,
        weight_decay=decay,
    )
    optimizer = make_optimizer(config, D_MODEL)
    random = np.random.default_rng(0)
    params = {"feed_forward": {"inner": random.normal(size=(5, 7)).astype(np.float32)}}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    expected = params["feed_forward"]["inner"].astype(np.float64)
    first = second = np.zeros((5, 7))
    for n in range(1, STEPS + 1):
        gradient = (0.01 if n % 2 else 1.0) * random.normal(size=(5, 7))
        gradients = {"feed_forward": {"inner": gradient.astype(np.float32)}}
        updates, state = update(gradients, state, params, step=n - 1)
        params = optax.apply_updates(params, updates)
        clipped = gradient / max(1.0, np.sqrt((gradient**2).sum()))
        first = config.adam_b1 * first + (1 - config.adam_b1) * clipped
        second = config.adam_b2 * second + (1 - config.adam_b2) * clipped**2
        mean, square = first / (1 - config.adam_b1**n), second / (1 - config.adam_b2**n)
        step = mean / (np.sqrt(square) + config.adam_epsilon) + decay * expected
        expected = expected - learning_rate(name, n) * step
        np.testing.assert_allclose(params["feed_forward"]["inner"], expected, rtol=1e-4, atol=1e-6)


# The dropout of a step is a function of the state's key and the step number.

MODEL = Transformer(
    ModelConfig(
        source_vocab_size=23,
        target_vocab_size=23,
        d_model=8,
        d_ff=13,
        num_heads=2,
        num_layers=1,
        max_length=16,
        dropout=0.5,
    )
)
TRAINING = TrainingConfig(schedule="constant", learning_rate=1e-2, warmup_steps=1)


@cache
def batch_of_ones():
    """Four rows of six random tokens each."""
    random = np.random.default_rng(0)
    ids = random.integers(4, 23, (3, 4, 6)).astype(np.int32)
    ones, along = np.ones((4, 6), np.int32), np.tile(np.arange(6, dtype=np.int32), (4, 1))
    return Batch(ids[0], ones, along, ids[1], ids[2], ones, along, np.arange(4, dtype=np.int32))


@cache
def step_and_state():
    """The compiled training step and its initial state."""
    optimizer = make_optimizer(TRAINING, 8)
    step = pmap_train_step(make_train_step(MODEL, optimizer, TRAINING))
    return step, jax.device_get(init_state(MODEL, optimizer, TRAINING))


@cache
def loss_of_step(number):
    """The loss of the initial parameters in training step `number`."""
    step, state = step_and_state()
    rows = split_rows(batch_of_ones(), jax.device_count(), 1)
    _, metrics = step(state._replace(step=np.asarray(number, state.step.dtype)), rows)
    return float(metrics["loss"])


def test_each_step_has_different_dropout_masks():
    losses = [loss_of_step(number) for number in range(4)]
    assert len(set(losses)) == 4
    assert np.ptp(losses) > 1e-3


@pytest.mark.parametrize("number", [0, 3])
def test_the_dropout_key_is_derived_from_the_run_key_and_the_step_number(number):
    loss, state = loss_of_step(number), step_and_state()[1]
    key = jax.random.fold_in(state.key, number)
    sums = jax.jit(loss_sums, static_argnums=(0, 3))(
        MODEL, state.params, batch_of_ones(), TRAINING, key
    )
    assert loss == pytest.approx(float(sums.loss / sums.tokens), rel=1e-5)


def test_an_evaluation_has_no_dropout():
    state = step_and_state()[1]
    evaluate = pmap_eval_step(MODEL, TRAINING)
    found = evaluate(state.params, split_rows(batch_of_ones(), jax.device_count()))
    expected = jax.jit(loss_sums, static_argnums=(0, 3))(
        MODEL, state.params, batch_of_ones(), TRAINING, None
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert loss_of_step(0) != pytest.approx(float(expected.loss / expected.tokens), rel=1e-3)

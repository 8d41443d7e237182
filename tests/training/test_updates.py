"""Updates of the parameters: Adam with schedule and decay in NumPy; the dropout of each step."""

from functools import cache

import jax
import numpy as np
import optax
import pytest
from small_steps import (
    DROPOUT,
    TRAINING,
    batch,
    gradient_function,
    host_state,
    model,
    sharded_step,
)

from seq2seq.storage.config import TrainingConfig
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_eval_step, split_rows

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


@cache
def loss_of_step(number):
    """The loss of the first parameters in training step `number`."""
    state = host_state()
    state = state._replace(step=np.asarray(number, state.step.dtype))
    return float(sharded_step()(state, split_rows(batch(), 4, 1))[1]["loss"])


def test_each_step_has_different_dropout_masks():
    losses = [loss_of_step(number) for number in range(4)]
    assert len(set(losses)) == 4
    assert np.ptp(losses) > 1e-3


@pytest.mark.parametrize("number", [0, 3])
def test_the_dropout_key_is_derived_from_the_run_key_and_the_step_number(number):
    key = jax.random.fold_in(host_state().key, number)
    sums, _ = gradient_function(DROPOUT)(host_state().params, key)
    assert loss_of_step(number) == pytest.approx(float(sums.loss / sums.tokens), rel=1e-5)


def test_an_evaluation_has_no_dropout():
    evaluate = pmap_eval_step(model(DROPOUT), TRAINING)
    found = evaluate(host_state().params, split_rows(batch(), jax.device_count()))
    expected, _ = gradient_function()(host_state().params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert loss_of_step(0) != pytest.approx(float(expected.loss / expected.tokens), rel=1e-3)

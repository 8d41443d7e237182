"""Dropout in the step: a function of the key of the run, the step number and the row."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import optax
import pytest

from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_eval_step, split_rows
from seq2seq.training.step import loss_sums
from tests.training.small_steps import (
    D_MODEL,
    DROPOUT,
    TRAINING,
    assert_close,
    batch,
    gradient_function,
    host_state,
    model,
    norm,
    sharded_step,
)


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


def test_the_sums_of_r_drop_are_the_means_of_two_passes():
    """The loss without the divergence, which test_training_combinations.py compares."""

    @jax.jit
    def passes(params, rows, key):
        def sums(ids, r_drop=0.0):
            config = replace(TRAINING, r_drop=r_drop)
            return loss_sums(model(DROPOUT), params, rows._replace(row_ids=ids), config, key)

        return sums(rows.row_ids), sums(~rows.row_ids), sums(rows.row_ids, 1e-9)

    results = passes(host_state().params, batch(), jax.random.key(1))
    first, second, both = map(np.array, results)
    assert np.abs(first - second)[:3].min() > 0
    np.testing.assert_allclose(both, (first + second) / 2, rtol=1e-5)


def test_an_evaluation_has_no_dropout():
    evaluate = pmap_eval_step(model(DROPOUT), TRAINING)
    sums = evaluate(host_state().params, split_rows(batch(), jax.device_count()))
    expected, _ = gradient_function()(host_state().params)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert loss_of_step(0) != pytest.approx(float(expected.loss / expected.tokens), rel=1e-3)


def test_the_step_also_runs_under_shard_map_and_dropout_depends_on_the_rows_only():
    """Four devices against the gradient of the whole batch on one."""
    before = host_state()
    key = jax.random.fold_in(before.key, 0)
    sums, gradient = gradient_function(DROPOUT)(before.params, key)
    state, metrics = jax.device_get(sharded_step()(before, split_rows(batch(), 4, 1)))
    np.testing.assert_allclose(metrics["loss"], sums.loss / sums.tokens, rtol=1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"], norm(gradient), rtol=1e-5)
    update = jax.jit(make_optimizer(TRAINING, D_MODEL).update)
    updates, optimizer = update(gradient, before.optimizer, before.params, step=0)
    assert_close(state.params, optax.apply_updates(before.params, updates))
    assert_close(state.optimizer, optimizer)
    plain, _ = gradient_function()(before.params)
    assert not np.allclose(plain.loss, sums.loss, rtol=1e-3)  # dropout is on

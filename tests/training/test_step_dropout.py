"""The dropout of a step is a function of the key of the run and the step number."""

from functools import cache

import jax
import numpy as np
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

from seq2seq.training.parallel import pmap_eval_step, split_rows


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
    sums = evaluate(host_state().params, split_rows(batch(), jax.device_count()))
    expected, _ = gradient_function()(host_state().params)
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert loss_of_step(0) != pytest.approx(float(expected.loss / expected.tokens), rel=1e-3)

"""The training step with loss weights: a weight of n is a pair n times, on any devices."""

from functools import cache

import jax
import numpy as np
import pytest
from test_step import TRAINING, V, assert_close, host_state, model, spread_over

from data.batches import fixed_batches
from data.pairs import Pairs, ragged, select_sequences
from training.optimizer import make_optimizer
from training.step import make_train_step, split_rows

ROWS, LENGTH = 8, 11
COUNTS = [1, 0, 2, 3, 1, 0, 1, 2, 1, 4, 1]  # how often each pair is taken


@cache
def all_pairs():
    """Pairs of random ids and different lengths."""
    random = np.random.default_rng(5)
    sides = [
        ragged([random.integers(4, V, n).tolist() for n in random.integers(1, LENGTH, len(COUNTS))])
        for _ in range(2)
    ]
    return Pairs(*sides)


@cache
def step_on(devices):
    """The training step, compiled once for weighted and once for other batches."""
    return spread_over(make_train_step(model(), make_optimizer(TRAINING, 8), TRAINING), devices)


def updated(pairs, devices=1, micro=1):
    """The state after a step on a batch of all pairs, without dropout, and its metrics."""
    (batch,) = fixed_batches(pairs, 2 * ROWS, LENGTH, LENGTH)
    assert batch.source_segments.any(axis=1).sum() > 1
    return jax.device_get(step_on(devices)(host_state(), split_rows(batch, devices, micro)))


def weighted(weights):
    return all_pairs()._replace(loss_weights=np.array(weights, np.float32))


@cache
def repeated():
    index = np.repeat(np.arange(len(COUNTS)), COUNTS)
    return updated(Pairs(*(select_sequences(side, index) for side in all_pairs()[:2])))


@pytest.mark.parametrize("devices, micro, factor", [(1, 1, 1.0), (2, 2, 0.3)])
def test_a_weight_of_n_is_the_pair_n_times_and_of_0_is_no_pair(devices, micro, factor):
    """The same parameters, optimizer state, loss, accuracy and gradient."""
    state, metrics = updated(weighted(factor * np.array(COUNTS)), devices, micro)
    lengths = all_pairs().slots[1]
    assert lengths.sum() != np.dot(lengths, COUNTS)
    tokens = pytest.approx(lengths.sum(), rel=1e-6)
    assert metrics == {**metrics, "tokens": tokens}
    assert_close((state, {**metrics, "tokens": np.dot(lengths, COUNTS)}), repeated())


def test_equal_weights_give_the_update_of_no_weights():
    for one, other in zip(
        *map(jax.tree.leaves, (updated(weighted([0.7] * len(COUNTS))), updated(all_pairs()))),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_a_batch_without_weights_has_no_more_arrays_than_its_fields():
    pairs = all_pairs()
    batches = (next(fixed_batches(p, ROWS, LENGTH, LENGTH)) for p in (pairs, weighted(COUNTS)))
    assert [len(jax.tree.leaves(split_rows(batch, 2, 1))) for batch in batches] == [8, 9]

"""The training step with loss weights: a weight of n is a pair n times, on any devices."""

from functools import cache

import jax
import numpy as np
import pytest
from small_steps import ROWS, S, T, V, assert_close, host_state, one_step

from seq2seq.data.batching.batches import fixed_batches
from seq2seq.data.tokens.pairs import Pairs, ragged, select_sequences
from seq2seq.training.parallel import split_rows

COUNTS = [1, 0, 2, 3, 1, 0, 1, 2, 1, 4, 1]  # how often each pair is taken


@cache
def all_pairs():
    """Pairs of random ids and different lengths."""
    random = np.random.default_rng(5)
    sides = [
        ragged([random.integers(4, V, n).tolist() for n in random.integers(1, S, len(COUNTS))])
        for _ in range(2)
    ]
    return Pairs(*sides)


def updated(pairs):
    """The state after a step on a batch of all pairs, without dropout, and its metrics.

    Four devices with three micro-batches each: weights are summed over all of them.
    """
    (batch,) = fixed_batches(pairs, ROWS, S, T)
    assert batch.source_segments.any(axis=1).sum() > 1
    return one_step(host_state(), batch, 4, 3)


def weighted(weights):
    return all_pairs()._replace(loss_weights=np.array(weights, np.float32))


@cache
def repeated():
    index = np.repeat(np.arange(len(COUNTS)), COUNTS)
    return updated(Pairs(*(select_sequences(side, index) for side in all_pairs()[:2])))


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_a_weight_of_n_is_the_pair_n_times_and_of_0_is_no_pair(factor):
    """The same parameters, optimizer state, loss, accuracy and gradient."""
    state, metrics = updated(weighted(factor * np.array(COUNTS)))
    lengths = all_pairs().row_lengths[1]
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
    batches = (next(fixed_batches(p, ROWS, S, T)) for p in (pairs, weighted(COUNTS)))
    assert [len(jax.tree.leaves(split_rows(batch, 2, 1))) for batch in batches] == [8, 9]

"""Packing: every pair once, in rows that fit, with little padding, by lengths and key only."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.special_tokens import OUR_IDS
from seq2seq.data.batching.packing import first_fit, pack_pairs, pack_side
from seq2seq.data.tokens.pairs import ragged
from seq2seq.model.target_shift import shift_right

CAPACITIES = 23, 31


def random_sides(count, seed=0):
    """Lengths of which the longest ones fill a row."""
    random = np.random.default_rng(seed)
    return tuple(random.integers(2, capacity + 1, count) for capacity in CAPACITIES)


@pytest.mark.parametrize("count", [0, 1, 2, 37, 997])
def test_every_pair_is_in_one_row_and_rows_never_exceed_a_capacity(count):
    sides = random_sides(count)
    plan = pack_pairs(sides, CAPACITIES, (1, 2))
    assert sorted(plan.pairs.tolist()) == list(range(count))
    assert plan.offsets[0] == 0 and plan.offsets[-1] == count
    for first, stop in pairwise(plan.offsets):
        row = plan.pairs[first:stop]
        assert len(row) and all(
            tokens[row].sum() <= capacity
            for tokens, capacity in zip(sides, CAPACITIES, strict=True)
        )


def test_the_order_of_the_rows_depends_on_the_key_only(monkeypatch):
    """Nor on NumPy's generators, which may change between versions."""
    sides = random_sides(211)
    monkeypatch.setattr(np.random, "Generator", None)

    def rows_of(key):
        plan = pack_pairs(sides, CAPACITIES, key)
        return [tuple(plan.pairs[i:j].tolist()) for i, j in pairwise(plan.offsets)]

    assert rows_of((7, 0)) == rows_of((7, 0))
    for key in ((7, 1), (8, 0)):
        assert rows_of(key) != rows_of((7, 0)) and set(rows_of(key)) == set(rows_of((7, 0)))


def test_rows_of_natural_lengths_have_less_than_5_percent_padding():
    random = np.random.default_rng(0)
    length = np.exp(random.normal(np.log(23), 0.6, 4096))
    noise = np.exp(random.normal(0, 0.15, (2, 4096)))
    sides = tuple(np.clip((length * noise).astype(int), 2, 256))
    plan = pack_pairs(sides, (256, 256), (0,))
    used = sum(int(tokens.sum()) for tokens in sides)
    assert 0.95 < used / (plan.num_rows * 512) <= 1
    in_given_order = first_fit(np.arange(4096), *sides, 256, 256)
    assert plan.num_rows < 0.995 * len(in_given_order)


def test_a_pair_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="24 tokens: expected at most 23"):
        pack_pairs((np.array([3, 24]), np.array([2, 2])), CAPACITIES, (0,))
    with pytest.raises(ValueError, match="32 tokens: expected at most 31"):
        pack_pairs((np.array([3, 23]), np.array([2, 32])), CAPACITIES, (0,))


def test_the_worked_example_of_pack_side_is_right():
    """The arrays in its docstring; the special ids start, end and padding are 1, 2 and 0."""
    side = ragged([[7, 8], [9], [5, 6, 4]])
    packed = pack_side(side, np.array([0, 2, 3]), (2, 6), OUR_IDS)
    assert [array.tolist() for array in packed] == [
        [[1, 7, 8, 1, 9, 0], [1, 5, 6, 4, 0, 0]],
        [[7, 8, 2, 9, 2, 0], [5, 6, 4, 2, 0, 0]],
        [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]],
        [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]],
    ]


def test_rows_without_pairs_are_padding():
    packed = pack_side(ragged([]), np.array([0]), (2, 3), OUR_IDS._replace(pad=9))
    assert [array.tolist() for array in packed] == [[[9] * 3] * 2] * 2 + [[[0] * 3] * 2] * 2


def test_the_decoder_input_of_training_is_that_of_scoring():
    """One target per row in training; the end token and padding follow a shorter one."""
    targets = [[7, 8, 6], [9], []]
    starts = np.arange(4)
    inputs, labels, *_ = pack_side(ragged(targets), starts, (3, 5), OUR_IDS)
    scored = np.asarray(shift_right(jnp.asarray(labels), jnp.arange(5) == 0, OUR_IDS.start))
    for row, target in enumerate(targets):
        tokens = len(target) + 1
        assert inputs[row, :tokens].tolist() == [OUR_IDS.start, *target]
        assert scored[row, :tokens].tolist() == [OUR_IDS.start, *target]
        assert labels[row, :tokens].tolist() == [*target, OUR_IDS.end]

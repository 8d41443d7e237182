"""Windows contain the slots of an epoch once, fit into rows, and depend on their slots only."""

import numpy as np
import pytest

from data.order import EpochOrder, Part
from data.windows import num_windows, plan_window, window_slots

CAPACITIES = 32, 40


def lengths_of(count, seed=0):
    """A function of pair indices, for random lengths of up to a row."""
    random = np.random.default_rng(seed)
    sides = [np.minimum(random.geometric(0.12, count) + 1, capacity) for capacity in CAPACITIES]
    return lambda pairs: tuple(side[pairs] for side in sides)


@pytest.mark.parametrize("size", [1, 7, 10])
@pytest.mark.parametrize("slots", [1, 4, 5, 6, 10, 14, 15, 16, 97])
def test_windows_have_every_slot_once_and_about_equal_sizes(slots, size):
    windows = [window_slots(slots, n, size) for n in range(num_windows(slots, size))]
    assert np.concatenate(windows).tolist() == list(range(slots))
    assert all(len(window) == size for window in windows[:-1])
    assert len(windows) == 1 or size / 2 <= len(windows[-1]) < 1.5 * size


def rows_of(plan):
    return [plan.pairs[i:j] for i, j in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


def test_an_epoch_has_each_pair_by_weight_and_rows_that_fit():
    parts = Part(700, 2.0), Part(900)
    order, lengths = EpochOrder(parts, 1, 2), lengths_of(1600)
    rows = [
        row
        for n in range(num_windows(order.slots, 500))
        for row in rows_of(plan_window(order, n, lengths, CAPACITIES, (1, 2), 500))
    ]
    counts = np.bincount(np.concatenate(rows), minlength=1600)
    assert counts.tolist() == [2] * 700 + [1] * 900
    for row in rows:
        assert all(
            0 < side.sum() <= capacity
            for side, capacity in zip(lengths(row), CAPACITIES, strict=True)
        )


def test_a_window_asks_only_for_its_own_pairs():
    order, lengths, asked = EpochOrder((Part(2000),), 1, 2), lengths_of(2000), []

    def watched(pairs):
        asked.extend(pairs.tolist())
        return lengths(pairs)

    plan = plan_window(order, 2, watched, CAPACITIES, (1, 2), 500)
    assert sorted(asked) == sorted(plan.pairs.tolist())
    assert asked == order(window_slots(2000, 2, 500)).tolist()
    again = plan_window(order, 2, lengths, CAPACITIES, (1, 2), 500)
    assert again.pairs.tolist() == plan.pairs.tolist()
    other = plan_window(order, 2, lengths, CAPACITIES, (1, 3), 500)
    assert other.pairs.tolist() != plan.pairs.tolist()


def test_a_pair_that_is_longer_than_a_row_is_refused():
    order, lengths = EpochOrder((Part(50),), 1, 2), lengths_of(50)
    with pytest.raises(ValueError, match="tokens: expected at most 3"):
        plan_window(order, 0, lengths, (32, 3), (1, 2))


def test_rows_have_at_most_five_percent_padding():
    """On both sides together, with lengths as in translation."""
    random = np.random.default_rng(0)
    source = random.gamma(3, 5, 20_000).astype(int) + 2
    target = np.maximum(2, source + random.integers(-2, 3, 20_000))
    sides = np.minimum(source, 128), np.minimum(target, 128)
    order = EpochOrder((Part(20_000),), 0, 0)
    plan = plan_window(order, 0, lambda pairs: (sides[0][pairs], sides[1][pairs]), (128, 128), (0,))
    useful = sum(side.sum() for side in sides) / (256 * (len(plan.offsets) - 1))
    assert useful >= 0.95

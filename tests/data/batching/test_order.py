"""The computed order of an epoch: a bijection, without visible structure, by weight."""

from collections import Counter

import numpy as np
import pytest

from seq2seq.data.batching.order import EpochOrder, Permutation
from seq2seq.data.tokens.training_pairs import Part


@pytest.mark.parametrize("size", [*range(1, 40), 255, 256, 257, 4095, 4097, 70_001])
def test_each_place_has_one_image_and_each_image_one_place(size):
    images = Permutation(size, (3, 5))(np.arange(size))
    assert sorted(images.tolist()) == list(range(size))


def test_an_image_depends_on_the_place_and_the_key_only():
    places = np.array([17, 0, 9_999_999_999, 5, 17])
    permutation = Permutation(10**10, (1, 2))
    assert permutation(places).tolist() == [permutation(np.array([place]))[0] for place in places]
    assert permutation(places).max() < 10**10
    others = Permutation(10**10, (1, 3)), Permutation(10**10, (2, 1))
    assert all((other(places) != permutation(places)).any() for other in others)


@pytest.mark.parametrize("places", [[-1], [7], [0, 7]])
def test_a_place_outside_is_refused(places):
    with pytest.raises(ValueError, match="places must be from 0 to 6"):
        Permutation(7, (0,))(np.array(places))


@pytest.mark.parametrize("size", [1000, 65_536])
def test_images_of_neighbours_are_as_far_apart_as_in_a_random_permutation(size):
    """Means over 40 keys: the distance of the images of neighbours is size / 3, their correlation
    with the places 0, and the number of fixed points 1."""
    places, distances, correlations, fixed = np.arange(size), [], [], []
    for key in range(40):
        images = Permutation(size, (key,))(places)
        distances.append(np.abs(np.diff(images)).mean() / size)
        correlations.append(np.corrcoef(places, images)[0, 1])
        fixed.append((places == images).sum())
    assert np.mean(distances) == pytest.approx(1 / 3, abs=0.005)
    assert np.abs(correlations).max() < 5 / np.sqrt(size)
    assert np.mean(fixed) == pytest.approx(1, abs=0.7)


def test_all_orders_of_four_pairs_are_about_equally_frequent():
    counts = Counter(tuple(Permutation(4, (key,))(np.arange(4)).tolist()) for key in range(4800))
    assert len(counts) == 24
    expected = 200
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < 60  # chi-squared with 23 degrees of freedom: p < 0.0001 above 59


MIXTURE = (Part(23, 2.0), Part(31, 0.5), Part(7), Part(12, 1.25))


def epoch_of(number, seed=4):
    order = EpochOrder(MIXTURE, seed, number)
    return order(np.arange(order.num_pairs)).tolist()


def test_epochs_take_the_pairs_of_each_part_by_weight():
    """In four epochs a weight w takes each pair 4 w times: 8, 2, 4 and 5."""
    counts = Counter(pair for epoch in range(4) for pair in epoch_of(epoch))
    ends = np.cumsum([part.num_pairs for part in MIXTURE])
    assert [counts[pair] for pair in range(ends[-1])] == [8] * 23 + [2] * 31 + [4] * 7 + [5] * 12


def test_no_pair_is_taken_again_before_all_others_of_its_part():
    counts = Counter()
    for epoch in range(9):
        counts.update(epoch_of(epoch))
        for first, stop in ((0, 23), (23, 54), (54, 61), (61, 73)):
            counts_of_part = [counts[pair] for pair in range(first, stop)]
            assert max(counts_of_part) - min(counts_of_part) <= 1


def test_the_order_differs_between_epochs_and_seeds_and_mixes_the_parts():
    orders = [epoch_of(0), epoch_of(1), epoch_of(0, seed=5)]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        parts = np.searchsorted([23, 54, 61], order, side="right")
        assert (np.diff(parts) != 0).mean() > 0.4
    assert [sorted(order) for order in orders[::2]][0] != sorted(orders[1])


def test_epochs_and_seeds_mix_the_parts_differently():
    """Epochs 0 and 4 take equal numbers of each part."""
    places = [np.searchsorted([23, 54, 61], epoch_of(*key), side="right").tolist()
              for key in ((0, 4), (4, 4), (0, 5))]  # fmt: skip
    assert [sorted(parts) for parts in places] == [sorted(places[0])] * 3
    assert len(set(map(tuple, places))) == 3


def test_a_window_of_slots_is_the_same_part_of_the_epoch():
    order = EpochOrder((Part(1000, 1.5), Part(77)), 1, 3)
    whole = order(np.arange(order.num_pairs))
    for window in (slice(0, 10), slice(500, 900), slice(order.num_pairs - 3, order.num_pairs)):
        assert order(np.arange(order.num_pairs)[window]).tolist() == whole[window].tolist()

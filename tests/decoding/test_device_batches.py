"""Batches for the devices: buckets, padding, and the order of rows on the devices."""

import random

import jax
import numpy as np

from decoding.batches import by_bucket, distribute, merge_devices, pad


def test_each_line_is_in_the_smallest_bucket_that_holds_it_the_longest_first():
    choose = random.Random(0)
    lengths = [choose.randint(0, 40) for _ in range(200)]
    buckets, seen = [8, 16, 40], []
    for bucket, lines in by_bucket(lengths, buckets):
        smaller = max([0, *(other for other in buckets if other < bucket)])
        assert all(smaller < lengths[i] <= bucket for i in lines)
        assert [lengths[i] for i in lines] == sorted((lengths[i] for i in lines), reverse=True)
        seen += lines
    assert sorted(seen) == [i for i, length in enumerate(lengths) if length]


def test_rows_without_a_sequence_come_last_with_length_0():
    ids, lengths = pad([[5, 6, 7], [8]], rows=3, width=4, pad_id=9)
    assert ids.tolist() == [[5, 6, 7, 9], [8, 9, 9, 9], [9, 9, 9, 9]]
    assert lengths.tolist() == [3, 1, 0]
    assert ids.dtype == lengths.dtype == np.int32


def test_devices_take_rows_in_turn_and_merging_restores_their_order():
    devices = jax.local_device_count()
    for x in (np.arange(3 * devices), np.arange(6 * devices).reshape(3 * devices, 2)):
        distributed = distribute(x)
        assert distributed.shape == (devices, 3, *x.shape[1:])
        np.testing.assert_array_equal(distributed[:, 0], x[:devices])
        np.testing.assert_array_equal(merge_devices(distributed), x)

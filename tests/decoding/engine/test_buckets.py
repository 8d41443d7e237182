"""Batches for the devices: buckets, the division among threads, padding, and the order of rows."""

import random

import jax
import numpy as np
import pytest

from seq2seq.decoding.engine.buckets import (
    BALANCED_FROM,
    by_bucket,
    distribute,
    divide,
    longest_input,
    merge_devices,
    pad,
)
from seq2seq.model.config import CHOICES, ModelConfig


def test_each_line_is_in_the_smallest_bucket_that_holds_it_the_longest_first():
    choose = random.Random(0)
    lengths = [choose.randint(0, 40) for _ in range(200)]
    buckets, seen = [8, 16, 40], []
    for bucket, lines in by_bucket(lengths, buckets):
        smaller = max([0, *(size for size in buckets if size < bucket)])
        assert all(smaller < lengths[i] <= bucket for i in lines)
        assert [lengths[i] for i in lines] == sorted((lengths[i] for i in lines), reverse=True)
        seen += lines
    assert sorted(seen) == [i for i, length in enumerate(lengths) if length]


def test_a_table_of_positions_limits_the_length_and_other_positions_do_not():
    for positions in CHOICES["positions"]:
        limits = [longest_input(ModelConfig(positions=positions, max_length=n)) for n in (9, 9999)]
        table = positions in ("sinusoidal", "learned")
        assert limits == ([9, 9999] if table else [4096, 9999]), positions


def test_rows_without_a_sequence_come_last_with_length_0():
    ids, lengths = pad([[5, 6, 7], [8]], rows=3, width=4, pad_id=9)
    assert ids.tolist() == [[5, 6, 7, 9], [8, 9, 9, 9], [9, 9, 9, 9]]
    assert lengths.tolist() == [3, 1, 0]
    assert ids.dtype == lengths.dtype == np.int32


def test_devices_take_rows_in_turn_and_merging_restores_their_order():
    devices = jax.local_device_count()
    for x in (np.arange(3 * devices), np.arange(6 * devices).reshape(3 * devices, 2)):
        distributed = distribute(x, devices)
        assert distributed.shape == (devices, 3, *x.shape[1:])
        np.testing.assert_array_equal(distributed[:, 0], x[:devices])
        np.testing.assert_array_equal(merge_devices(distributed), x)


def divided(lengths, threads, batch=4):
    """The parts of each bucket of 8 or 32; each line must be in one of them, longest first."""
    groups = [group for group in by_bucket(lengths, [8, 32]) if group[1]]
    divided_groups = divide(groups, lengths, threads, lambda bucket: batch)
    assert [bucket for bucket, _ in divided_groups] == [bucket for bucket, _ in groups]
    for (_, lines), (_, parts) in zip(groups, divided_groups, strict=True):
        assert sorted(lines) == sorted(line for part in parts for line in part)
        assert len(parts) == threads
        for part in parts:
            assert part == sorted(part, key=lines.index)
    return dict(divided_groups)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("long", [0, 1, 3, 4])
def test_threads_get_the_same_work_if_a_batch_of_few_lines_counts_as_a_full_one(threads, long):
    random, batch = np.random.default_rng(long), 4
    short = BALANCED_FROM * batch * threads + long
    lengths = [*random.integers(1, 9, short).tolist(), *random.integers(9, 33, long).tolist()]
    parts = divided(lengths, threads, batch)
    work = [sum(lengths[line] for line in part) for part in parts[8]]
    if long:
        busy = [i for i, part in enumerate(parts[32]) if part]
        assert len(busy) == 1 and len(parts[32][busy[0]]) == long
        work[busy[0]] += batch * max(lengths)
    if min(map(len, parts[8])):  # else one call takes longer than all others together
        assert max(work) - min(work) <= 8


@pytest.mark.parametrize("number", [5, 9, 2 * 4 * BALANCED_FROM - 1])
def test_groups_of_few_batches_are_divided_evenly(number):
    """Their time depends on the number of batches: an uneven division could add one."""
    lengths = [*[7] * number, 30]
    sizes = [len(part) for part in divided(lengths, threads=2)[8]]
    assert sum(sizes) == number and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("number, parts", [(1, 1), (4, 1), (5, 2), (9, 3), (33, 8), (100, 8)])
def test_a_group_has_no_more_parts_than_batches(number, parts):
    sizes = [len(part) for part in divided([3] * number, threads=8)[8] if part]
    assert len(sizes) == parts and max(sizes) - min(sizes) <= 1


def test_threads_with_the_least_work_get_the_lines_of_small_groups():
    """The long line counts as a batch of 4 × 20 tokens, more than the two batches of 5 tokens."""
    parts = divided([20, *[5] * 8], threads=3)
    assert [bool(part) for part in parts[32]] == [True, False, False]
    assert [len(part) for part in parts[8]] == [0, 4, 4]


def test_a_thread_keeps_the_work_of_longer_buckets():
    """Both have a batch of 30 tokens a line, the first also one of 20: the second is free first."""
    groups = [(8, [9]), (24, [8]), (32, [*range(8)])]
    lengths = [*[30] * 8, 20, 5]
    shares = dict(divide(groups, lengths, 2, lambda bucket: 4))
    assert shares == {32: [[0, 2, 4, 6], [1, 3, 5, 7]], 24: [[8], []], 8: [[], [9]]}

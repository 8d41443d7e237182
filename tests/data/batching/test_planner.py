"""The planner: the next window is planned while one is used, in a thread or in a process."""

import os
import sys
import threading
from concurrent.futures import Future

import pytest

from seq2seq.data.batching import planner
from seq2seq.data.batching.batches import DataPosition
from seq2seq.data.batching.planner import Planner
from seq2seq.data.batching.windows import Windows
from seq2seq.runtime.errors import INTERNAL
from seq2seq.runtime.workers import WorkerLost
from tests.data.batching.test_batches import LAYOUT, SEED, SOURCE, TARGET, assert_same, random_pairs
from tests.support.memory_pairs import MemoryPairs, batches_in_windows


class LocalPairs(MemoryPairs):
    """A corpus that cannot be sent to another process."""

    def __reduce__(self):
        raise AssertionError("the corpus is pickled")


def windows_of(count=253, size=84):
    return Windows(LocalPairs(random_pairs(count)), (SOURCE, TARGET), SEED, size)


def watched(monkeypatch):
    """The list of events: which windows are submitted, and by the test, which are used."""
    events, submit = [], Planner._submit

    def record(self, place):
        events.append(("plan", place))
        return submit(self, place)

    monkeypatch.setattr(Planner, "_submit", record)
    return events


def test_the_next_window_is_planned_as_soon_as_one_begins(monkeypatch):
    """Its planning starts before the first batch of the current window is made; each once."""
    events = watched(monkeypatch)
    batches = batches_in_windows(84, MemoryPairs(random_pairs(253)), 5, LAYOUT, SEED)
    items = batches._generate(DataPosition(), lambda batch: events.append("batch"))
    taken = [next(items)[0] for _ in range(70)]
    places = sorted({position[:2] for position in taken})
    assert len(places) >= 5
    expected, before = [("plan", (0, 0))], None
    for position in taken:
        if position[:2] != before:
            before = position[:2]
            expected.append(("plan", batches._planner.following(*before)))
        expected.append("batch")
    assert events == expected


def test_no_batch_waits_for_the_plan_of_a_later_window(monkeypatch):
    """The plan of the second window is held back: all batches of the first one are made."""
    release, original = threading.Event(), Windows.plan

    def plan(self, epoch, window):
        if (epoch, window) != (0, 0):
            release.wait(60)
        return original(self, epoch, window)

    monkeypatch.setattr(Windows, "plan", plan)
    batches = batches_in_windows(84, MemoryPairs(random_pairs(253)), 5, LAYOUT, SEED)
    stream = batches.iterate(DataPosition())
    first = original(windows_of(), 0, 0).plan.num_rows // 5
    assert [next(stream)[0] for _ in range(first)] == [(0, 0, i) for i in range(first)]
    assert not stream.ready(0.05)
    release.set()
    assert next(stream)[0] == (0, 1, 0)
    stream.close()


def test_looking_up_another_window_does_not_plan_further(monkeypatch):
    events = watched(monkeypatch)
    planned = Planner(windows_of())
    planned.window(0, 1)
    for _ in range(2):
        assert_same(planned.lookup(0, 0).plan, windows_of().plan(0, 0).plan)
    planned.window(0, 1)
    planned.window(0, 2)
    assert events == [("plan", place) for place in ((0, 1), (0, 2), (0, 0), (1, 0))]


def test_the_windows_of_an_epoch_are_followed_by_those_of_the_next():
    planned = Planner(windows_of())
    assert [planned.following(4, n) for n in range(3)] == [(4, 1), (4, 2), (5, 0)]


def test_large_epochs_are_planned_in_another_process_without_sending_the_corpus(monkeypatch):
    """With the same result; a worker that is killed is replaced."""
    monkeypatch.setattr(planner, "IN_THREAD", 200)
    planned, expected = Planner(windows_of()), windows_of()
    try:
        assert_same(planned.window(0, 0).plan, expected.plan(0, 0).plan)
        modules = planned._workers.submit(lambda: set(sys.modules)).result()
        assert "seq2seq.data.batching.windows" in modules
        assert not modules & {"jax", "absl", "sentencepiece", "tensorflow_datasets", "sacrebleu"}
        os.kill(planned._workers.submit(os.getpid).result(), 9)
        for place in ((0, 1), (0, 2), (1, 0)):
            assert_same(planned.window(*place).plan, expected.plan(*place).plan)
    finally:
        planned.close()
    with pytest.raises(RuntimeError, match="the workers are closed"):
        planned.window(5, 0)


def test_a_worker_that_is_lost_again_is_an_error(monkeypatch):
    submitted = []

    def lost(self, place):
        future = Future()
        submitted.append(place)
        future.set_exception(WorkerLost(INTERNAL, "lost"))
        return future

    monkeypatch.setattr(Planner, "_submit", lost)
    with pytest.raises(WorkerLost):
        Planner(windows_of()).window(0, 0)
    assert submitted == [(0, 0)] * 2

"""Prefetched: items in order, a bounded number ahead, no delay of a signal or an exit."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seq2seq.runtime.prefetch import Prefetched


def test_items_are_returned_in_order_until_the_end():
    items = Prefetched(iter(range(11)), 2)
    assert list(items) == list(range(11))
    assert list(items) == []  # it stays at the end


def test_an_exception_is_raised_at_its_position_and_by_every_later_call():
    def items():
        yield 1
        raise KeyError("here")

    prefetched = Prefetched(items(), 5)
    assert next(prefetched) == 1
    for _ in range(2):
        with pytest.raises(KeyError, match="here"):
            next(prefetched)


def test_the_thread_computes_a_bounded_number_of_items_ahead_and_ends_when_closed():
    made, full = [], threading.Event()

    def items():
        while True:
            made.append(threading.current_thread())
            if len(made) == 8:
                full.set()
            yield len(made)

    ahead = Prefetched(items(), 5)
    assert [next(ahead) for _ in range(3)] == [1, 2, 3]
    assert full.wait(60)
    time.sleep(0.1)
    assert len(made) == 3 + 5
    ahead.close()
    made[0].join(timeout=5)
    assert not made[0].is_alive()


def test_ready_waits_at_most_its_timeout():
    release = threading.Event()
    items = Prefetched(iter(release.wait, None), 1)
    assert not items.ready(0.01)
    release.set()
    assert items.ready(5) and items.ready(0) and next(items) is True
    items.close()


def test_an_item_under_computation_does_not_delay_the_exit_of_the_process():
    script = (
        "import time; from seq2seq.runtime.prefetch import Prefetched; "
        "Prefetched(iter(lambda: time.sleep(600), 1), 1).ready(0.1)"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], timeout=60, check=True
    )

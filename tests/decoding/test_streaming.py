"""Streaming and progress: input that pauses, results out of order, progress lines."""

import os
import queue
import sys
import threading
import time

import pytest

from seq2seq.decoding import streaming
from seq2seq.decoding.command import progress as module
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.results import Item, Source
from seq2seq.decoding.streaming import (
    IDLE,
    WindowFeed,
    in_order,
    in_order_with_room,
    weight,
    windows,
)
from seq2seq.files.lines import text_lines
from seq2seq.runtime.prefetch import Prefetched
from seq2seq.runtime.streams import note, write_stderr
from tests.support.models.echo import in_time


@pytest.fixture
def pipe():
    """The writing end of a pipe, and the lines that `text_lines` reads from it."""
    reader, writer = os.pipe()
    yield writer, text_lines(f"/dev/fd/{reader}")
    os.close(reader)


def test_a_window_closes_when_it_is_full_at_the_end_and_when_the_input_pauses(pipe):
    assert list(windows(Prefetched(range(10), 10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    writer, lines = pipe
    iterator = windows(Prefetched(lines, 10), 4)
    for text in ("one\n", "two\nthree\n", "\n"):
        os.write(writer, text.encode())
        seen = []
        while len(seen) < text.count("\n"):  # a slow machine may see a pause between two lines
            seen += in_time(lambda: next(iterator))
        assert seen == text.split("\n")[:-1]
    os.write(writer, b"last")
    os.close(writer)
    assert in_time(lambda: list(iterator)) == [["last"]]


def test_a_window_closes_after_a_fixed_time_if_the_input_is_slow_and_steady(monkeypatch):
    """A line every 0.3 s: a window takes those of LATEST seconds, not only the first."""
    now = [50.0]
    monkeypatch.setattr(streaming, "IDLE", 0.5)
    monkeypatch.setattr(streaming.time, "monotonic", lambda: now[0])

    class Steady:
        def __iter__(self):
            return self

        def __next__(self):
            return round(now[0], 1)

        def ready(self, seconds):
            now[0] += min(seconds, 0.3)
            return seconds >= 0.3

    window = next(windows(Steady(), 1000))
    assert window == [50.0, 50.3, 50.6, 50.9] and now[0] == pytest.approx(50 + streaming.LATEST)


def test_an_error_is_raised_after_the_items_before_it():
    def items():
        yield from range(3)
        raise ValueError("item 3")

    iterator = windows(Prefetched(items(), 10), 10)
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(iterator)


def test_closing_does_not_wait_for_an_input_that_blocks(pipe):
    writer, lines = pipe
    ahead = Prefetched(lines, 10)
    waiting = queue.SimpleQueue()
    threading.Thread(target=lambda: waiting.put(list(ahead)), daemon=True).start()
    in_time(ahead.close)
    assert waiting.get(timeout=60) == []
    os.close(writer)


def test_results_in_any_order_are_yielded_in_order_as_soon_as_possible():
    groups = iter([{}, {2: "c", 1: "b"}, {}, {0: "a"}, {3: "d"}])
    iterator = in_order(groups)
    assert [next(iterator) for _ in range(3)] == ["a", "b", "c"]
    assert list(groups) == [{3: "d"}]  # the last group was not read yet
    assert list(in_order([{7: "a"}, {8: "b"}], first=7)) == ["a", "b"]


def wait_until(is_true):
    while not is_true():
        time.sleep(0.01)


def test_a_reader_in_another_thread_has_room_for_the_items_ahead_and_ends_with_the_stream():
    read, threads = [], []

    def items():
        for i in range(9):
            read.append(i)
            yield i

    def compute(numbered):
        held = []
        threads.append(threading.Thread(target=lambda: held.extend(numbered), daemon=True))
        threads[0].start()
        in_time(lambda: wait_until(lambda: len(held) == 3))
        time.sleep(0.3)  # time for an item too many
        assert read == [0, 1, 2]
        yield {0: "a"}
        yield {1: "b"}

    stream = in_order_with_room(compute, items(), 0, ahead=3)
    assert next(stream) == "a"
    in_time(lambda: wait_until(lambda: len(read) == 4))
    time.sleep(0.1)  # the reader waits for room
    stream.close()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_only_lines_that_are_searched_are_in_flight():
    """Else a pipe that has answered all its lines would be polled without a pause."""
    waits = []

    class Feed(list):
        def ready(self, seconds):
            waits.append(seconds)
            return bool(self)

        def __next__(self):
            return self.pop(0)

    blank, text = Source(1, []), Source(2, [4])
    feed = WindowFeed(Feed([[blank, blank], [text, blank, text]]))
    results = iter(feed)
    for lines, in_flight in (2, 0), (3, 2):
        assert len(next(results)) == lines and feed.in_flight == in_flight
        assert list(feed.take_blank()) == [1]
    feed.in_flight -= 2
    assert next(results) is None and waits == [IDLE, IDLE, IDLE]


def test_a_long_target_counts_as_a_long_text():
    long = "x" * 4096
    assert weight((0, Item("", "", target=long))) == weight((0, Item(long, ""))) > 2


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def seconds(text):
    hours, minutes, rest = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


@pytest.mark.parametrize("reused", [0, 2000])
def test_the_time_left_follows_from_recent_work_without_the_compilation(clock, capsys, reused):
    """Ten seconds of compilation, then 100 lines a second, in calls of two seconds."""
    progress = DecodingProgress(total=10_000)
    progress.add_reused(reused)
    clock[0] += 8.0
    while progress.done + reused < 9_000:
        clock[0] += 2.0
        progress.add_done(200)
    reports = capsys.readouterr().err.splitlines()
    assert len(reports) >= 10
    timed = [report for report in reports if "left" in report]
    assert "left" not in reports[0] and len(timed) >= len(reports) - 2
    for report in timed:
        lines, rate, left = report.split(", ")
        done = int(lines.split(" of ")[0].replace(",", ""))
        assert rate == "100.0 lines/s"
        assert seconds(left.removesuffix(" left")) == (10_000 - done) / 100


def test_the_throughput_is_that_of_recent_work(clock):
    progress = DecodingProgress(total=10**6)
    for lines in [10] * 100 + [1000] * 100:
        clock[0] += 1.0
        progress.add_done(lines)
    assert ", 1,000.0 lines/s, " in progress.line()


def test_progress_is_reported_every_few_seconds_while_lines_are_done(clock, capsys):
    progress = DecodingProgress()
    for _ in range(60):
        clock[0] += 1.0
        progress.add_done(1)
    assert len(capsys.readouterr().err.splitlines()) == 60 // module.LOG_INTERVAL
    for _ in range(60):
        clock[0] += 1.0
        progress.add_done(0)
    assert capsys.readouterr().err == ""
    silent = DecodingProgress(shown=False)
    clock[0] += 60.0
    silent.add_done(1)
    silent.report(0, 0)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_progress_is_one_line_that_is_updated(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = DecodingProgress(total=10, live=True)
    for _ in range(3):
        clock[0] += 1.0
        progress.add_done(1)
    note("in.txt:7: truncated")
    clock[0] += 1.0
    progress.add_done(1)
    write_stderr("stopped by SIGTERM\n")
    written = capsys.readouterr().err
    assert "\r\033[Kin.txt:7: truncated\n\r" in written
    assert written.count("\n") == 2 and written.endswith("\r\033[Kstopped by SIGTERM\n")
    assert written.count("\r\033[K") == 6

"""Progress of training: limits, logged values and durations.

A larger limit continues as if it had been given.
"""

import itertools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from seq2seq.config.tree import Config, TrainingConfig
from seq2seq.data.batching.batches import DataPosition
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CONFIGURATION, DIVERGED, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.storage.run_files import steps
from seq2seq.training.progress import Progress, Stopwatch, limits_text, reached_limit, seconds_left
from seq2seq.training.resume import restored_position
from tests.support.runs import run_config, state_bytes, stopped_run, train_cheaply, whole_run
from tests.support.several import training, write_data

HOUR = 3600.0


def limited(**training):
    """The config of the shared runs, whose learning rate does not depend on num_steps."""
    return run_config(**{f"training__{name}": value for name, value in training.items()})


def log_of(run):
    return (run / "train.log").read_text(encoding="utf-8")


def count_half_hours(monkeypatch):
    """A clock that advances by half an hour in each step: Stopwatch reads it once in each."""
    clock = itertools.count(12345.0, 0.5 * HOUR)
    monkeypatch.setattr("seq2seq.training.progress.monotonic", lambda: next(clock))


@pytest.mark.parametrize(
    "limits, state, expected",
    [
        ({}, (9, 99, 99 * HOUR, 99), ""),
        ({}, (10, 0, 0.0, 0), "training.num_steps=10"),
        ({"max_epochs": 3}, (9, 2, 0.0, 0), ""),
        ({"max_epochs": 3}, (9, 3, 0.0, 0), "training.max_epochs=3"),
        ({"max_epochs": 3}, (9, 4, 0.0, 0), "training.max_epochs=3"),
        ({"max_hours": 1.5}, (9, 0, 1.5 * HOUR - 1, 0), ""),
        ({"max_hours": 1.5}, (9, 0, 1.5 * HOUR, 0), "training.max_hours=1.5"),
        ({"patience": 2}, (9, 0, 0.0, 1), ""),
        ({"patience": 2}, (9, 0, 0.0, 2), "training.patience=2"),
        ({"max_epochs": 1, "max_hours": 1.0}, (10, 1, HOUR, 0), "training.num_steps=10"),
    ],
)
def test_the_first_limit_that_is_reached_is_named(limits, state, expected):
    assert reached_limit(TrainingConfig(num_steps=10, **limits), *state) == expected


@pytest.mark.parametrize(
    "field, value", [("max_hours", -0.5), ("max_hours", float("nan")), ("max_epochs", -1)]
)
def test_an_invalid_limit_is_refused(field, value):
    config = Config(training=TrainingConfig(**{field: value}))
    with pytest.raises(UserError, match=f"training.{field} must be at least 0") as refused:
        config.validate()
    assert refused.value.code == CONFIGURATION


def test_the_time_left_is_the_smaller_one_of_both_limits():
    config = TrainingConfig(num_steps=100)
    assert seconds_left(config, 40, 7 * HOUR, 2.0) == 120.0
    config = replace(config, max_hours=8.0)
    assert seconds_left(config, 40, 8 * HOUR - 50, 2.0) == 50.0
    assert seconds_left(config, 40, 7 * HOUR, 2.0) == 120.0
    assert seconds_left(config, 40, 9 * HOUR, 2.0) == 0.0


def test_the_progress_line_has_the_time_left():
    lines = []
    run = SimpleNamespace(log=lines.append, record=lambda *_: None)
    config = TrainingConfig(num_steps=10**9, log_every=1, max_hours=2.0)
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    for max_epochs, expected in ((0, "/s  0:30:00 left"), (3, "/s  at most 0:30:00 left")):
        limits_of = replace(config, max_epochs=max_epochs)
        progress = Progress(run, limits_of, 0, None, Stopwatch(1.5 * HOUR))
        progress.report(1, dict(metrics), None)
        assert lines[-1].endswith(expected)


def test_the_limits_are_listed_at_start():
    assert limits_text(TrainingConfig(num_steps=1000)) == "1,000 steps"
    assert limits_text(TrainingConfig(num_steps=5, max_epochs=1)) == "5 steps or 1 epoch"
    both = TrainingConfig(num_steps=1000, max_epochs=3, max_hours=1.5)
    assert limits_text(both) == "1,000 steps or 3 epochs or 1.5 hours"


def test_the_seconds_of_earlier_sessions_are_counted_in_process_0_only(monkeypatch):
    count_half_hours(monkeypatch)
    stopwatch = Stopwatch(100.0)
    assert stopwatch.seconds == 100.0
    stopwatch.update()
    assert stopwatch.seconds == 100.0 + 0.5 * HOUR
    monkeypatch.setattr(processes, "is_first", lambda: False)
    stopwatch.update()
    assert stopwatch.seconds == 100.0 + 0.5 * HOUR


@pytest.mark.parametrize("entry, seconds", [({}, 0.0), ({"seconds": 7.5}, 7.5)])
def test_a_checkpoint_without_the_training_time_starts_at_0(entry, seconds):
    stored = {"files": {"train": {}}, "epoch": 1, "window": 2, "index": 3}
    data = SimpleNamespace(files={"train": {}})
    assert restored_position(stored | entry, Config(), None, data) == ((1, 2, 3), seconds)


def test_one_epoch_is_a_training_of_its_number_of_batches(tmp_path):
    run = tmp_path / "run"
    train_cheaply(run, limited(max_epochs=1))
    assert steps(run) == [2, 4]
    assert "training ends at step 4: training.max_epochs=1" in log_of(run)
    shutil.rmtree(run / "average")
    assert state_bytes(run) == state_bytes(stopped_run())
    assert "training ends at step 12: training.num_steps=12" in log_of(whole_run())


def test_training_ends_after_max_hours_and_resumes_with_a_larger_limit(tmp_path, monkeypatch):
    """Half an hour per step. The evaluation at the end, step 2, is not due in other trainings: the
    checkpoint does not store its score."""
    whole = whole_run()
    count_half_hours(monkeypatch)
    run = tmp_path / "run"
    train_cheaply(run, limited(max_hours=1.0))
    assert steps(run) == [2] and "ends at step 2: training.max_hours=1.0" in log_of(run)
    entries = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    assert [entry["step"] for entry in entries if "valid_bleu" in entry] == [2]
    assert [entry["step"] for entry in entries if "average_bleu" in entry] == [2]
    assert json.loads((run / "best.json").read_text())["checkpoint"] in (2, "average")
    before = state_bytes(run)
    assert before[1]["best"] == {} and before[1]["evaluated_step"] == 0
    train_cheaply(run, limited(max_hours=1.0))
    assert log_of(run).count("already complete at step 2") == 1 and state_bytes(run) == before
    train_cheaply(run, limited())
    assert state_bytes(run) == state_bytes(whole) and steps(run) == steps(whole)
    assert (run / "best.json").read_bytes() == (whole / "best.json").read_bytes()


@pytest.mark.slow
def test_the_hours_of_several_sessions_are_added(tmp_path, monkeypatch):
    count_half_hours(monkeypatch)
    for hours, last in ((1.5, 3), (2.5, 5), (2.75, 6)):
        train_cheaply(tmp_path / "run", limited(max_hours=hours))
        assert steps(tmp_path / "run")[-1] == last


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every, eval_every", [(3, 3), (4, 8)])
def test_more_epochs_continue_as_if_there_had_been_no_limit(tmp_path, checkpoint_every, eval_every):
    """The epochs end at steps 4, 8 and 12, with and without a checkpoint or an evaluation."""
    every = {"checkpoint_every": checkpoint_every, "eval_every": eval_every, "patience": 3}
    train_cheaply(tmp_path / "whole", limited(**every))
    for epochs in (1, 2, 3):
        train_cheaply(tmp_path / "run", limited(max_epochs=epochs, **every))
        assert steps(tmp_path / "run")[-1] == 4 * epochs
        _, data = state_bytes(tmp_path / "run")
        assert data["evaluated_step"] == 4 * epochs // eval_every * eval_every
    assert state_bytes(tmp_path / "run") == state_bytes(tmp_path / "whole")
    assert steps(tmp_path / "run") == steps(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_stop_at_the_same_step_after_the_hours_of_process_0(tmp_path):
    """The clock of process 1 is never above the limit."""
    path, run = write_data(tmp_path), tmp_path / "run"
    job = training(path, 2, 1, run, "--config.training.max_hours=0.0001", num_steps=100_000)
    assert job.codes() == [0, 0], job.texts(1)
    last = steps(run)[-1]
    assert 0 < last < 100_000
    assert f"training ends at step {last}: training.max_hours=0.0001" in job.texts(1)[0]
    assert (
        json.loads((run / "checkpoints" / str(last) / "data" / "metadata").read_text())["seconds"]
        >= 0.0001 * HOUR
    )
    job = training(path, 2, 1, run, "--config.training.max_hours=0.0001", num_steps=100_000)
    assert job.codes() == [0, 0], job.texts(1)
    assert f"already complete at step {last}" in job.texts(1)[0]


def test_the_logged_learning_rate_is_the_formula_of_each_step():
    """Linear to the peak, 0.01, in 3 steps, then the inverse square root of the step."""
    training = run_config().training
    assert (training.schedule, training.log_every) == ("inverse_sqrt", 1)
    lines = (whole_run() / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = {
        entry["step"]: entry["train_learning_rate"]
        for entry in map(json.loads, lines)
        if "train_learning_rate" in entry
    }
    assert sorted(logged) == list(range(1, 13))
    for n, rate in logged.items():
        expected = n / 3 if n <= 3 else np.sqrt(3 / n)
        assert rate == pytest.approx(1e-2 * expected, abs=1e-8)


def test_only_the_first_step_of_a_start_logs_its_time():
    """The run is resumed after step 4."""
    lines = []
    run = SimpleNamespace(log=lines.append, record=lambda *_: None, progress=lambda _: None)
    progress = Progress(run, TrainingConfig(num_steps=20), 4, None, Stopwatch(0))
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    for step in (5, 6, 7):
        progress.report(step, dict(metrics), DataPosition())
        assert [line.split(" after")[0] for line in lines] == ["first step"]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_more_nonfinite_steps_in_a_row_than_allowed_stop_training(limit):
    """A finite step restarts the count. Loss or gradient norm is not finite."""
    run = SimpleNamespace(
        log=lambda _: None, record=lambda *_: None, progress=lambda _: None,
        write_samples=lambda *_: None,
    )  # fmt: skip
    training = TrainingConfig(num_steps=20, skip_nonfinite=limit)
    progress = Progress(run, training, 0, lambda _: ["a.tsv:1"], Stopwatch(0))
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    row = [{"loss": np.nan}, {"gradient_norm": np.inf}] * 2
    steps = iter(range(1, 20))
    for spoilt in [*row[:limit], {}, *row[:limit]]:
        progress.report(next(steps), metrics | spoilt, DataPosition())
    step = next(steps)
    with pytest.raises(UserError, match=f"step {step}: .* a.tsv:1") as stopped:
        progress.report(step, metrics | row[limit], DataPosition(2, 0, 3))
    assert stopped.value.code == DIVERGED
    assert "batch 3 of window 0 of epoch 2" in str(stopped.value)


@pytest.mark.parametrize("log_every", [1, 3, 100])
@pytest.mark.parametrize(("start", "max_epochs", "bound"), [(0, 0, ""), (40, 3, "at most ")])
def test_the_expected_duration_is_that_of_the_remaining_steps(
    monkeypatch, log_every, start, max_epochs, bound
):
    """A step takes 2 s. The first one includes the compilation; an evaluation follows the third."""
    clock, lines, shown = [1000.0], [], []

    def log(line):
        (shown if line.startswith("step ") else lines).append(line)

    monkeypatch.setattr("seq2seq.training.progress.perf_counter", lambda: clock[0])
    run = SimpleNamespace(log=log, record=lambda *_: None, progress=log)
    config = TrainingConfig(num_steps=100, log_every=log_every, max_epochs=max_epochs)
    progress = Progress(run, config, start, None, Stopwatch(0))
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=6.0, learning_rate=0.1)
    for step in range(start + 1, start + 10):
        clock[0] += {start + 1: 60, start + 4: 50}.get(step, 2)
        progress.report(step, dict(metrics), DataPosition())
        if step in (start + 2, start + 3):  # the compilation does not count
            assert "  3 target tokens/s  " in shown[-1]
    (line,) = (line for line in lines if line.startswith("expected duration"))
    left = 100 - (start + 6)
    minutes, seconds = divmod(2 * left, 60)
    assert line == (
        f"expected duration: {bound}0:{minutes:02}:{seconds:02} for the remaining {left} of 100 "
        "steps at 2 s each, without the evaluations"
    )


@pytest.mark.parametrize("num_steps", [1, 5, 6])
def test_no_duration_is_expected_at_the_end_of_a_short_training(num_steps):
    lines = []
    run = SimpleNamespace(log=lines.append, record=lambda *_: None, progress=lambda _: None)
    progress = Progress(run, TrainingConfig(num_steps=num_steps), 0, None, Stopwatch(0))
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    for step in range(1, num_steps + 1):
        progress.report(step, dict(metrics), DataPosition())
    assert not any("expected duration" in line for line in lines)


def test_the_time_of_the_first_step_is_logged_once_for_each_start(tmp_path):
    """It includes the compilation, so it does not measure throughput."""
    run = tmp_path / "run"
    shutil.copytree(stopped_run(), run)
    for starts in (1, 2):
        assert (run / "train.log").read_text(encoding="utf-8").count("first step after ") == starts
        if starts == 1:
            with pytest.raises(Stopped):
                train_cheaply(run, run_config(), stop_after=1)

"""Limits of training: steps, epochs and hours; a larger limit continues as if it had been given."""

import itertools
import json
from types import SimpleNamespace

import pytest
from runs import run_training, state_bytes
from several import training, write_data
from tiny import tiny_config, write_corpus

from runtime import processes
from runtime.errors import CONFIGURATION, UserError
from storage.checkpoint import steps
from storage.config import Config, TrainingConfig
from training import limits
from training.best import BestCheckpoint
from training.limits import Stopwatch, reached_limit, seconds_left
from training.progress import Progress
from training.report import limits as listed_limits
from training.resume import resume_or_start

HOUR = 3600.0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four batches of eight packed rows in each epoch."""
    return write_corpus(tmp_path_factory.mktemp("data") / "pairs.tsv", 132)


def limited(corpus, **training):
    """A config whose learning rate does not depend on num_steps, validated on the training data."""
    config = tiny_config(corpus, valid=corpus)
    config.training.schedule, config.training.best_metric = "constant", "loss"
    for name, value in training.items():
        setattr(config.training, name, value)
    return config


def log_of(run):
    return (run / "train.log").read_text(encoding="utf-8")


def count_half_hours(monkeypatch):
    """A clock that advances by half an hour in each step: Stopwatch reads it once in each."""
    clock = itertools.count(12345.0, 0.5 * HOUR)
    monkeypatch.setattr(limits, "monotonic", lambda: next(clock))


@pytest.mark.parametrize(
    "given, state, expected",
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
def test_the_first_limit_that_is_reached_is_named(given, state, expected):
    assert reached_limit(TrainingConfig(num_steps=10, **given), *state) == expected


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
    config.max_hours = 8.0
    assert seconds_left(config, 40, 8 * HOUR - 50, 2.0) == 50.0
    assert seconds_left(config, 40, 7 * HOUR, 2.0) == 120.0
    assert seconds_left(config, 40, 9 * HOUR, 2.0) == 0.0


def test_the_progress_line_has_the_time_left():
    lines = []
    run = SimpleNamespace(log=lines.append, record=lambda *_: None)
    config = TrainingConfig(num_steps=10**9, log_every=1, max_hours=2.0)
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    for config.max_epochs, expected in ((0, "/s  0:30:00 left"), (3, "/s  at most 0:30:00 left")):
        progress = Progress(run, config, 0, None, Stopwatch(1.5 * HOUR))
        progress.report(1, dict(metrics), None)
        assert lines[-1].endswith(expected)


def test_the_limits_are_listed_at_start():
    assert listed_limits(TrainingConfig(num_steps=1000)) == "1,000 steps"
    assert listed_limits(TrainingConfig(num_steps=5, max_epochs=1)) == "5 steps or 1 epoch"
    both = TrainingConfig(num_steps=1000, max_epochs=3, max_hours=1.5)
    assert listed_limits(both) == "1,000 steps or 3 epochs or 1.5 hours"


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
    stored = {
        "files": {"train": {}},
        "epoch": 1,
        "window": 2,
        "index": 3,
        **BestCheckpoint("loss").to_json(),
    }
    state = SimpleNamespace(step=3)
    start = resume_or_start(
        dict,
        SimpleNamespace(restore=lambda like: (state, stored | entry)),
        BestCheckpoint("loss"),
        Config(),
        SimpleNamespace(log=lambda line: None),
        SimpleNamespace(files={"train": {}}),
    )
    assert start == (state, (1, 2, 3), seconds)


def test_one_epoch_is_a_training_of_its_number_of_batches(corpus, tmp_path):
    for name, limit in (("epochs", {"max_epochs": 1}), ("steps", {"num_steps": 4})):
        config = limited(corpus, **limit)
        config.data.valid = ""
        run_training(tmp_path / name, config)
    assert steps(tmp_path / "epochs") == steps(tmp_path / "steps") == [2, 4]
    assert state_bytes(tmp_path / "epochs") == state_bytes(tmp_path / "steps")
    assert "training ends at step 4: training.max_epochs=1" in log_of(tmp_path / "epochs")
    assert "training ends at step 4: training.num_steps=4" in log_of(tmp_path / "steps")


def test_hours_end_training_and_more_hours_continue_it(corpus, tmp_path, monkeypatch):
    """Half an hour per step. The evaluation at the end, step 2, is not due in other trainings: the
    checkpoint does not store its score."""
    count_half_hours(monkeypatch)
    run, whole, config = tmp_path / "run", tmp_path / "whole", limited(corpus, max_hours=1.0)
    run_training(run, config)
    assert steps(run) == [2] and "ends at step 2: training.max_hours=1.0" in log_of(run)
    entries = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    assert [one["step"] for one in entries if "valid_bleu" in one] == [2]
    assert [one["step"] for one in entries if "average_bleu" in one] == [2]
    assert json.loads((run / "best.json").read_text())["checkpoint"] in (2, "average")
    before = state_bytes(run)
    assert before[1]["best"] == {} and before[1]["judged"] == 0
    run_training(run, config)
    assert log_of(run).count("already complete at step 2") == 1 and state_bytes(run) == before
    run_training(run, limited(corpus))
    run_training(whole, limited(corpus))
    assert state_bytes(run) == state_bytes(whole) and steps(run) == steps(whole) == [8, 10, 12]
    assert (run / "best.json").read_bytes() == (whole / "best.json").read_bytes()


@pytest.mark.slow
def test_the_hours_of_several_sessions_are_added(corpus, tmp_path, monkeypatch):
    count_half_hours(monkeypatch)
    for hours, last in ((1.5, 3), (2.5, 5), (2.75, 6)):
        run_training(tmp_path / "run", limited(corpus, max_hours=hours))
        assert steps(tmp_path / "run")[-1] == last


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every, eval_every", [(3, 3), (4, 8)])
def test_more_epochs_continue_as_if_there_had_been_no_limit(
    corpus, tmp_path, checkpoint_every, eval_every
):
    """The epochs end at steps 4, 8 and 12, with and without a checkpoint or an evaluation."""
    every = {"checkpoint_every": checkpoint_every, "eval_every": eval_every, "patience": 3}
    run_training(tmp_path / "whole", limited(corpus, **every))
    for epochs in (1, 2, 3):
        run_training(tmp_path / "run", limited(corpus, max_epochs=epochs, **every))
        assert steps(tmp_path / "run")[-1] == 4 * epochs
        _, data = state_bytes(tmp_path / "run")
        assert data["judged"] == 4 * epochs // eval_every * eval_every
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

"""Logged values: the learning rate of each step, the first step, and the expected duration."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from runs import run_training
from tiny import tiny_config, write_corpus

from data.batches import DataPosition
from storage.config import TrainingConfig
from training.limits import Stopwatch
from training.progress import Progress


def test_the_logged_learning_rate_is_the_formula_of_each_step(tmp_path):
    """The cosine schedule: linear to the peak in 3 steps, then half a cosine to 0 at step 12."""
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 60))
    assert config.training.schedule == "cosine" and config.training.log_every == 1
    run_training(tmp_path / "run", config)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = {
        one["step"]: one["train_learning_rate"]
        for one in map(json.loads, lines)
        if "train_learning_rate" in one
    }
    assert sorted(logged) == list(range(1, 13))
    for n, rate in logged.items():
        expected = n / 3 if n <= 3 else 0.5 * (1 + np.cos(np.pi * (n - 3) / 9))
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


@pytest.mark.parametrize("log_every", [1, 3, 100])
@pytest.mark.parametrize(("start", "max_epochs", "bound"), [(0, 0, ""), (40, 3, "at most ")])
def test_the_expected_duration_is_that_of_the_remaining_steps(
    monkeypatch, log_every, start, max_epochs, bound
):
    """A step takes 2 s. The first one includes the compilation; an evaluation follows the third."""
    clock, lines = [1000.0], []
    monkeypatch.setattr("training.progress.time.perf_counter", lambda: clock[0])
    run = SimpleNamespace(log=lines.append, record=lambda *_: None, progress=lambda _: None)
    config = TrainingConfig(num_steps=100, log_every=log_every, max_epochs=max_epochs)
    progress = Progress(run, config, start, None, Stopwatch(0))
    metrics = dict(loss=1.0, gradient_norm=1.0, accuracy=0.5, tokens=7.0, learning_rate=0.1)
    for step in range(start + 1, start + 10):
        clock[0] += {start + 1: 60, start + 4: 50}.get(step, 2)
        progress.report(step, dict(metrics), DataPosition())
    (line,) = (line for line in lines if line.startswith("expected duration"))
    left = 100 - (start + 6)
    minutes, seconds = divmod(2 * left, 60)
    assert line == (
        f"expected duration: {bound}0:{minutes:02}:{seconds:02} for the remaining {left} of 100 "
        "steps at 2 s each, and the evaluations"
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


@pytest.mark.slow
def test_the_time_of_the_first_step_is_logged_once_for_each_start(tmp_path):
    """It includes the compilation, so it does not measure throughput."""
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 60))
    config.training.num_steps = 4
    for starts in (1, 2):
        run_training(tmp_path / "run", config)
        log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
        assert log.count("first step after ") == starts
        config.training.num_steps = 8

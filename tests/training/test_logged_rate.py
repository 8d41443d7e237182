"""The logged learning rate is the one that each step uses; the first step is logged once."""

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

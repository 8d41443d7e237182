"""How several processes end: a signal, an error or a death of one is the end of all, in words."""

import os
import re
import signal
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from several import ROOT, TINY, Job, training, write_data

from runtime import processes
from runtime.errors import UserError
from storage.checkpoint import steps


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("hosts"))


@pytest.mark.slow
def test_sigterm_to_one_stops_all_at_one_step_and_the_same_command_goes_on(path, tmp_path):
    run = tmp_path / "run"
    flags = ("--config.training.checkpoint_every=50000", "--config.training.eval_every=50000")
    job = training(path, 2, 1, run, *flags, num_steps=100_000)
    job.wait_for("step 3/")
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    *_, saved, last = job.texts(1)[0].splitlines()
    assert last == "stopped by SIGTERM; run the same command to resume"
    step = int(re.fullmatch(r"saved step (\d+)", saved)[1])
    assert steps(run) == [step]
    job = training(path, 2, 1, run, *flags, num_steps=100_000)
    job.wait_for(f"step {step + 1}/")
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    assert f"resumed at step {step}" in job.texts(1)[0] and steps(run)[-1] > step


def test_sigterm_before_training_ends_all_at_once(path, tmp_path):
    """While one still reads its data and the other waits for the vocabulary."""
    slow = tmp_path / "slow.tsv"
    os.mkfifo(slow)
    writer = os.open(slow, os.O_RDWR)  # who writes nothing
    job = training(
        path,
        2,
        1,
        tmp_path / "run",
        f"--config.data.corpus=tsv:{slow}",
        apart=[f"--config.data.corpus=tsv:{path / 'pairs.tsv'}"],
    )
    job.wait_for("run: ")
    started = time.monotonic()
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    assert time.monotonic() - started < 15  # no --process_timeout has to pass
    os.close(writer)
    assert job.texts(1)[0].splitlines()[-1] == "stopped by SIGTERM; run the same command to resume"
    assert "error: process 0 stopped: stopped by SIGTERM" in job.texts(1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_other_stops_with_a_message(path, tmp_path, victim):
    job = training(path, 2, 1, tmp_path / "run", num_steps=100_000)
    job.wait_for("step 3/")
    job.processes[victim].kill()
    codes = job.codes()
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] not in (0, -signal.SIGKILL)
    said = job.texts(1)[1 - victim]
    assert "lost another process" in said or "another task died" in said, said


def test_what_stops_one_is_said_by_all(path, tmp_path):
    """An error that only one process has: its message and its exit code are everyone's."""
    job = training(path, 2, 1, tmp_path / "run", apart=["--config.data.corpus=tsv:nowhere.tsv"])
    assert job.codes() == [3, 3], job.texts(1)
    own, told = job.texts(1)[1], job.texts(1)[0]
    assert re.search("^error: nowhere.tsv .* does not exist", own, re.MULTILINE), own
    assert re.search("^error: process 1 stopped: nowhere.tsv .* does not exist", told, re.MULTILINE)


def test_processes_with_different_settings_are_refused_by_name(path, tmp_path):
    job = training(path, 2, 1, tmp_path / "run", apart=["--config.training.seed=7"])
    assert job.codes() == [2, 2], job.texts(1)
    assert any("training.seed" in text for text in job.texts(1))
    assert steps(tmp_path / "run") == []


@pytest.mark.slow
def test_a_process_that_never_comes_is_not_waited_for_without_end(path, tmp_path):
    job = Job(
        tmp_path,
        1,
        1,
        ROOT / "train.py",
        *TINY,
        f"--workdir={tmp_path / 'run'}",
        f"--config.data.corpus=tsv:{path / 'pairs.tsv'}",
        "--coordinator=127.0.0.1:1",
        "--num_processes=2",
        "--process_id=1",
        "--process_timeout=1",
    )
    (code,) = job.codes()
    assert code == 1
    assert job.texts(1)[0].splitlines()[-1] == (
        "error: not all processes came to 127.0.0.1:1 within 5 s; start all of them, with the same "
        "flags"
    )


@pytest.mark.parametrize(
    "coordinator, where", [("127.0.0.1:1", "127.0.0.1:1"), ("", "the coordinator of the cluster")]
)
def test_processes_that_never_come_are_waited_for_by_name(monkeypatch, coordinator, where):
    """5 × --process_timeout seconds; no device is used and no other process is needed."""
    timers = []

    def timer(seconds, function, arguments):
        timers.append((seconds, arguments))
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    def never(*_, **options):
        raise RuntimeError("deadline")

    monkeypatch.setattr(processes.threading, "Timer", timer)
    monkeypatch.setattr(processes.jax.distributed, "initialize", never)
    monkeypatch.setattr(processes.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(processes, "greetings_to_stderr", lambda: None)
    monkeypatch.setattr(processes, "_patience", 0)
    given = SimpleNamespace(
        coordinator=coordinator,
        distributed=not coordinator,
        num_processes=2 if coordinator else None,
        process_id=0 if coordinator else None,
        process_timeout=7,
    )
    with pytest.raises(UserError, match="did not find each other: deadline"):
        processes.connect(given)
    assert timers == [
        (
            35,
            [
                f"not all processes came to {where} within 35 s; start all of them, "
                "with the same flags"
            ],
        )
    ]


def test_a_signal_of_any_process_is_shared_with_all(monkeypatch):
    def largest(mine):
        return np.maximum(mine.max(axis=0), [signal.SIGTERM, 1])  # with another process's

    monkeypatch.setattr(processes, "_largest", lambda: largest)
    assert processes.shared(None, False) == (None, False)  # a process on its own asks no device
    monkeypatch.setattr(processes, "count", lambda: 2)
    assert processes.shared(None, False) == (signal.SIGTERM, True)


def test_a_lost_process_is_known_by_what_the_devices_say(monkeypatch):
    """pmap gives Gloo's errors as JaxRuntimeError or ValueError, by chance."""
    said = "UNKNOWN: Gloo all-reduce failed: pair.cc:538] Read error: Connection reset by peer"
    errors = [jax.errors.JaxRuntimeError(said), ValueError(said), ValueError("rows must be even")]
    # a process on its own
    assert [processes.lost_another(error) for error in errors] == [False] * 3
    monkeypatch.setattr(processes, "count", lambda: 2)
    assert [processes.lost_another(error) for error in errors] == [True, True, False]

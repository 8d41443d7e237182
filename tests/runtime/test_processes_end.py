"""How several processes end: a signal, an error or the end of one stops all, with a message."""

import os
import re
import signal
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seq2seq.cli import connection
from seq2seq.runtime import processes
from seq2seq.runtime.errors import UserError
from seq2seq.storage.run_files import steps
from tests.support.several import ROOT, Job, training, write_data
from tests.support.tiny import StopAfter, tiny_flags


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("hosts"))


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_at_one_step_and_the_same_command_resumes(path, tmp_path):
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


def test_sigterm_before_training_ends_all_processes_immediately(path, tmp_path):
    """One process still reads its data; the other waits for the vocabulary."""
    slow = tmp_path / "slow.tsv"
    os.mkfifo(slow)
    writer = os.open(slow, os.O_RDWR)  # it writes nothing
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
    assert time.monotonic() - started < 15  # without waiting for --process_timeout
    os.close(writer)
    assert job.texts(1)[0].splitlines()[-1] == "stopped by SIGTERM; run the same command to resume"
    assert "error: process 0 stopped: stopped by SIGTERM" in job.texts(1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_after_a_kill_of_one_process_the_other_stops_with_a_message(path, tmp_path, victim):
    job = training(path, 2, 1, tmp_path / "run", num_steps=100_000)
    job.wait_for("step 3/")
    job.processes[victim].kill()
    codes = job.codes()
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] not in (0, -signal.SIGKILL)
    message = job.texts(1)[1 - victim]
    lost = ("connection to another process lost", "another task died")
    assert any(part in message for part in lost), message


def test_all_processes_report_the_error_of_one(path, tmp_path):
    """An error that only one process has: all print its message and exit with its code."""
    job = training(path, 2, 1, tmp_path / "run", apart=["--config.data.corpus=tsv:nowhere.tsv"])
    assert job.codes() == [3, 3], job.texts(1)
    failed, waiting = job.texts(1)[1], job.texts(1)[0]
    assert re.search("^error: nowhere.tsv .* does not exist", failed, re.MULTILINE), failed
    expected = "^error: process 1 stopped: nowhere.tsv .* does not exist"
    assert re.search(expected, waiting, re.MULTILINE), waiting


def test_processes_with_different_settings_are_refused_with_the_name_of_the_setting(path, tmp_path):
    job = training(path, 2, 1, tmp_path / "run", apart=["--config.training.seed=7"])
    assert job.codes() == [2, 2], job.texts(1)
    assert any("training.seed" in text for text in job.texts(1))
    assert steps(tmp_path / "run") == []


@pytest.mark.slow
def test_waiting_for_a_missing_process_has_a_limit(path, tmp_path):
    job = Job(
        tmp_path,
        1,
        1,
        ROOT / "train.py",
        *tiny_flags(),
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
        "error: not all processes connected to 127.0.0.1:1 within 5 s; start all of them with the "
        "same flags"
    )


@pytest.mark.parametrize(
    "coordinator, where", [("127.0.0.1:1", "127.0.0.1:1"), ("", "the coordinator of the cluster")]
)
def test_the_timeout_of_missing_processes_names_the_coordinator(monkeypatch, coordinator, where):
    """5 × --process_timeout seconds; no device is used and no other process is needed."""
    timers = []

    def timer(seconds, function, arguments):
        timers.append((seconds, arguments))
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    def time_out(*_, **options):
        raise RuntimeError("deadline")

    monkeypatch.setattr(connection.threading, "Timer", timer)
    monkeypatch.setattr(connection.jax.distributed, "initialize", time_out)
    monkeypatch.setattr(connection.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(connection, "redirect_native_stdout", lambda: None)
    monkeypatch.setattr(processes, "_timeout", 0)
    process_flags = SimpleNamespace(
        coordinator=coordinator,
        distributed=not coordinator,
        num_processes=2 if coordinator else None,
        process_id=0 if coordinator else None,
        process_timeout=7,
    )
    with pytest.raises(UserError, match="could not connect: deadline"):
        connection.connect(process_flags)
    assert timers == [
        (
            35,
            [
                f"not all processes connected to {where} within 35 s; start all of them "
                "with the same flags"
            ],
        )
    ]


def test_a_process_waits_for_others_that_decode_longer_than_the_limit(monkeypatch):
    limits = []

    def get(key, limit):
        limits.append(limit)
        return "null"

    client = SimpleNamespace(blocking_key_value_get=get)
    client.key_value_set = client.key_value_delete = lambda *_: None
    monkeypatch.setattr(processes, "store", lambda: client)
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "_timeout", 7000)
    processes.barrier("the config")
    processes.barrier("the last chunk", is_limited=False)
    assert limits == [7000] * 2 + [processes.NO_LIMIT] * 2


def test_all_processes_receive_the_largest_value_of_any(monkeypatch):
    def device_max(local_values):
        return np.maximum(local_values.max(axis=0), [9, 0, 1])  # the values of another process

    monkeypatch.setattr(processes, "_device_max", lambda: device_max)
    values = 7, True, False
    assert processes.max_over_processes(*values).tolist() == [7, 1, 0]  # one process: no device
    monkeypatch.setattr(processes, "count", lambda: 2)
    assert processes.max_over_processes(*values).tolist() == [9, 1, 1]


@pytest.mark.parametrize(
    "others, status",
    [
        ([(signal.SIGTERM, 0, 1)], (signal.SIGTERM, False)),
        ([(0, 1, 1)], (None, True)),
        ([(0, 0, 1), (0, 0, 1), (0, 0, 0)], (None, False)),
        ([(0, 0, 1), (0, 1, 0)], (None, True)),
    ],
)
def test_a_process_waits_for_the_others_until_any_has_a_signal_or_has_finished(
    monkeypatch, others, status
):
    answers = iter(others)
    monkeypatch.setattr(
        processes,
        "max_over_processes",
        lambda *local_values: list(map(max, local_values, next(answers))),
    )
    flag = StopAfter(None)
    assert flag.agreed_status() == status
    assert list(answers) == []


@pytest.mark.parametrize("finished", [False, True])
def test_a_process_that_has_finished_does_not_wait_for_a_batch(finished):
    asked = []

    def ready(seconds):
        asked.append(seconds)
        return len(asked) == 3

    assert StopAfter(None).agreed_status(ready, finished) == (None, finished)
    assert len(asked) == (0 if finished else 3)


def test_a_lost_process_is_recognised_by_the_error_of_the_devices(monkeypatch):
    """pmap raises Gloo's errors as JaxRuntimeError or as ValueError, by chance."""
    text = "UNKNOWN: Gloo all-reduce failed: pair.cc:538] Read error: Connection reset by peer"
    errors = [jax.errors.JaxRuntimeError(text), ValueError(text), ValueError("rows must be even")]
    # a single process
    assert [processes.is_lost_process(error) for error in errors] == [False] * 3
    monkeypatch.setattr(processes, "count", lambda: 2)
    assert [processes.is_lost_process(error) for error in errors] == [True, True, False]

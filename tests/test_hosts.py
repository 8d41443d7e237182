"""Several processes on this machine: the same numbers as one process, one writer, one end for all.

Two devices add in one order only, so two processes and one agree bit for bit. Four do not: Gloo
adds around a ring, XLA inside one process in turn; float32 sums then differ in their last bits.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from test_resume import state_bytes
from tiny import WORDS, write_corpus, write_run

from data.errors import CONFIGURATION, UserError
from training import hosts
from training.checkpoint import load_params, steps
from training.hosts import check_flags

ROOT = Path(__file__).parent.parent
TINY = (
    "--config.model.d_model=8 --config.model.d_ff=16 --config.model.num_heads=2 "
    "--config.model.num_layers=1 --config.model.max_length=32 --config.data.tokenizer=words "
    "--config.data.vocab_size=64 --config.data.source_length=16 --config.data.target_length=16 "
    "--config.training.tokens_per_batch=128 --config.training.warmup_steps=3 "
    "--config.training.schedule=constant --config.training.log_every=1 "
    "--config.training.eval_every=4 --config.training.checkpoint_every=2 "
    "--config.decoding.beam_size=2 --config.decoding.batch_size=3 "
    "--config.decoding.max_extra_length=5"
).split()


class Job:
    """So many processes of one command, which share `devices` CPU devices each."""

    def __init__(self, path, processes, devices, *command, apart=()):
        """`apart` are more flags for the last process."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "NPROC": "16",
                       "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        logs = Path(tempfile.mkdtemp(dir=path))
        self._names = [[logs / f"{kind}{i}" for i in range(processes)] for kind in ("out", "err")]
        self.processes = []
        for i in range(processes):
            flags = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}",
                     f"--process_id={i}", "--process_timeout=20"] if processes > 1 else []
            more = apart if i == processes - 1 else ()
            with open(self._names[0][i], "wb") as out, open(self._names[1][i], "wb") as err:
                self.processes.append(subprocess.Popen(
                    [sys.executable, *map(str, command), *flags, *more,
                     f"--compilation_cache={path / 'cache'}"],
                    env=environment, stdout=out, stderr=err))

    def texts(self, kind):
        """What each process has said on stdout (0) or stderr (1)."""
        return [name.read_text(encoding="utf-8") for name in self._names[kind]]

    def wait_for(self, words):
        """Until process 0 says so; fails where a process ends before."""
        while words not in self.texts(1)[0]:
            assert all(one.poll() is None for one in self.processes), self.texts(1)
            time.sleep(0.02)

    def codes(self):
        """Exit codes; no process is left."""
        try:
            return [one.wait(timeout=240) for one in self.processes]
        finally:
            for one in self.processes:
                one.kill()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("hosts")
    write_corpus(path / "pairs.tsv", 61)
    write_corpus(path / "valid.tsv", 7, seed=1)
    return path


def training(path, processes, devices, run, *flags, num_steps=4, apart=()):
    return Job(path, processes, devices, ROOT / "train.py", *TINY, f"--workdir={run}",
               f"--config.data.corpus=tsv:{path / 'pairs.tsv'}",
               f"--config.training.num_steps={num_steps}", *flags, apart=apart)


def trained(path, processes, devices, name, *flags):
    job = training(path, processes, devices, path / name, *flags)
    assert job.codes() == [0] * processes, job.texts(1)
    return path / name, job


@pytest.fixture(scope="module")
def of_two(path):
    """A run of two processes with a device each."""
    return trained(path, 2, 1, "two", f"--config.data.valid=tsv:{path / 'valid.tsv'}")


@pytest.fixture(scope="module")
def of_one(path):
    """The same in one process with two devices."""
    return trained(path, 1, 2, "one", f"--config.data.valid=tsv:{path / 'valid.tsv'}")


def measured(run):
    """metrics.jsonl without what a clock measures."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in ("time", "train_tokens_per_second")}
            for line in lines]


def test_two_processes_equal_one_with_two_devices_bit_for_bit(of_two, of_one):
    (two, job), (one, alone) = of_two, of_one
    assert state_bytes(two) == state_bytes(one)
    assert measured(two) == measured(one)
    assert (two / "samples" / "4.txt").read_bytes() == (one / "samples" / "4.txt").read_bytes()
    results, nothing = job.texts(0)
    assert nothing == ""
    assert results.replace(str(two), str(one)) == alone.texts(0)[0]
    assert "2 processes" in job.texts(1)[0] and "step 4/4" not in job.texts(1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("processes, devices", [(2, 2), (4, 1)])
def test_four_devices_add_in_another_order_and_agree_to_1e_6(path, processes, devices):
    if not (path / "four").exists():
        trained(path, 1, 4, "four")
    run, _ = trained(path, processes, devices, f"{processes}x{devices}")
    for a, b in zip(*(jax.tree.leaves(load_params(one, "latest"))
                      for one in (path / "four", run)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_a_checkpoint_of_two_processes_goes_on_in_one_and_the_reverse(
        path, of_two, of_one, tmp_path):
    (two, _), (one, _) = of_two, of_one
    shutil.copytree(two, tmp_path / "two in one")
    shutil.copytree(one, tmp_path / "one in two")
    for name, shape in (("two in one", (1, 2)), ("one in two", (2, 1))):
        job = training(path, *shape, tmp_path / name,
                       f"--config.data.valid=tsv:{path / 'valid.tsv'}", num_steps=6)
        assert job.codes() == [0] * shape[0], job.texts(1)
        assert "resumed at step 4" in job.texts(1)[0]
    assert steps(tmp_path / "two in one")[-1] == 6
    assert state_bytes(tmp_path / "two in one") == state_bytes(tmp_path / "one in two")
    assert state_bytes(tmp_path / "two in one") != state_bytes(one)


def test_one_then_two_then_four_processes_see_the_same_batches_and_losses(path, tmp_path):
    """With dropout, whose keys follow the row: only sums are in another order."""
    whole, run, dropout = tmp_path / "whole", tmp_path / "run", "--config.model.dropout=0.3"
    job = training(path, 1, 1, whole, dropout, num_steps=6)
    assert job.codes() == [0], job.texts(1)
    shutil.copytree(whole, run)
    for name in ("checkpoints/4", "checkpoints/6", "average"):
        shutil.rmtree(run / name)
    for processes, num_steps in ((2, 4), (4, 6)):
        job = training(path, processes, 1, run, dropout, num_steps=num_steps)
        assert job.codes() == [0] * processes, job.texts(1)
        assert f"resumed at step {num_steps - 2}" in job.texts(1)[0]
    data = [state_bytes(one)[1] for one in (whole, run)]
    assert data[0] == data[1]
    for a, b in zip(measured(whole), measured(run), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_sigterm_to_one_stops_all_at_one_step_and_the_same_command_goes_on(path, tmp_path):
    run = tmp_path / "run"
    flags = ("--config.training.checkpoint_every=50000", "--config.training.eval_every=50000")
    job = training(path, 2, 1, run, *flags, num_steps=100_000)
    job.wait_for("step 3/")
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    *_, saved, last = job.texts(1)[0].splitlines()
    assert last == "stopped by SIGTERM; the same command goes on"
    step = int(re.fullmatch(r"saved step (\d+)", saved)[1])
    assert steps(run) == [step]
    job = training(path, 2, 1, run, *flags, num_steps=100_000)
    job.wait_for(f"step {step + 1}/")
    job.processes[0].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    assert f"resumed at step {step}" in job.texts(1)[0] and steps(run)[-1] > step


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
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
    job = training(path, 2, 1, tmp_path / "run",
                   apart=["--config.data.corpus=tsv:nowhere.tsv"])
    assert job.codes() == [3, 3], job.texts(1)
    own, told = job.texts(1)[1], job.texts(1)[0]
    assert re.search("^error: nowhere.tsv .* does not exist", own, re.MULTILINE), own
    assert re.search("^error: process 1 stopped: nowhere.tsv .* does not exist", told, re.MULTILINE)


def test_processes_with_different_settings_are_refused_by_name(path, tmp_path):
    job = training(path, 2, 1, tmp_path / "run", apart=["--config.training.seed=7"])
    assert job.codes() == [2, 2], job.texts(1)
    assert any("training.seed" in text for text in job.texts(1))
    assert steps(tmp_path / "run") == []


def test_a_process_that_never_comes_is_not_waited_for_without_end(path, tmp_path):
    job = Job(tmp_path, 1, 1, ROOT / "train.py", *TINY, f"--workdir={tmp_path / 'run'}",
              f"--config.data.corpus=tsv:{path / 'pairs.tsv'}", "--coordinator=127.0.0.1:1",
              "--num_processes=2", "--process_id=1", "--process_timeout=1")
    (code,) = job.codes()
    assert code == 1
    assert job.texts(1)[0].splitlines()[-1] == (
        "error: not all processes came to 127.0.0.1:1 within 5 s; start all of them, with the same "
        "flags")


@pytest.mark.parametrize("coordinator, num_processes, process_id, part", [
    ("a:1", None, None, "belong together"), ("", None, 1, "belong together"),
    ("a", 2, 1, "HOST:PORT"), ("a:1", 2, 2, "from 0 to"),
])
def test_incomplete_flags_are_refused(coordinator, num_processes, process_id, part):
    given = SimpleNamespace(coordinator=coordinator, num_processes=num_processes,
                            process_id=process_id)
    with pytest.raises(UserError, match=part) as refused:
        check_flags(given)
    assert refused.value.code == CONFIGURATION


def test_two_processes_translate_a_file_as_one_does(path, tmp_path):
    write_run(tmp_path / "run")
    lines = [" ".join(WORDS[i % 11: i % 11 + 1 + i % 4]) for i in range(4100)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = (ROOT / "decode.py", f"--workdir={tmp_path / 'run'}", "--beam_size=1",
               "--max_extra_length=2", f"--input={tmp_path / 'in.txt'}", "--batch_size=64")
    for processes in (1, 2):
        output = tmp_path / f"{processes}.txt"
        job = Job(path, processes, 1, *command, f"--output={output}")
        assert job.codes() == [0] * processes, job.texts(1)
        assert not Path(f"{output}.parts").exists()
    assert (tmp_path / "1.txt").read_bytes() == (tmp_path / "2.txt").read_bytes()
    assert [text.splitlines()[-1].split()[0] for text in job.texts(1)] == ["4096", "4"]


def test_a_lost_process_is_known_by_what_the_devices_say(monkeypatch):
    """pmap gives Gloo's errors as JaxRuntimeError or ValueError, by chance."""
    said = "UNKNOWN: Gloo all-reduce failed: pair.cc:538] Read error: Connection reset by peer"
    errors = [jax.errors.JaxRuntimeError(said), ValueError(said), ValueError("rows must be even")]
    assert [hosts.lost_another(error) for error in errors] == [False] * 3  # a process on its own
    monkeypatch.setattr(hosts, "count", lambda: 2)
    assert [hosts.lost_another(error) for error in errors] == [True, True, False]

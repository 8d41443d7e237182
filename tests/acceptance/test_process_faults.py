"""Rows 4–11: signals, resuming with changes, and two trainers of one run."""

import json
import os
import re
import shutil
import signal

import pytest

from seq2seq.storage.run_files import steps
from tests.acceptance.processes import (
    KILLED,
    at,
    batches_of,
    contents,
    ended,
    error_of,
    final_state,
    last_step,
    unfinished,
    wait_for,
)
from tests.support.tiny import write_corpus

STEP = "step"
row = pytest.mark.row
TERM = row(
    4,
    "SIGTERM in a step, in the first compilation, in evaluation and decoding, in a save",
    "exit 143, the last finished step saved, resumed as in row 2",
)
INT = row(
    5,
    "SIGINT once, twice",
    "once: as in row 4 with exit 130; twice: immediately, exit 130, checkpoints intact",
)
MIDDLE = row(
    6, "SIGKILL inside the write", "the partial checkpoint is ignored and deleted at the next start"
)
ARCHITECTURE = row(
    7,
    "another architecture on resume",
    "exit 2, each differing field old → new; fields that may change are accepted and listed",
)
DATA = row(
    8,
    "changed training data on resume",
    "exit 3 naming the file; allow_data_change restarts the data with a warning",
)
DEVICES = row(9, "1 → 2 → 4 devices on resume", "the same batches; loss to 1e-5; replicas equal")
SECOND = row(
    10,
    "a second trainer in the run directory",
    "exit 6 naming the process that holds the lock; the lock of a dead process is replaced",
)
COMPLETE = row(11, "a finished run started again", "already complete, exit 0, nothing changed")


@pytest.fixture(scope="module")
def evaluated(bench):
    """Flags with validation data, and an uninterrupted run with them."""
    flags = [f"--config.data.valid={write_corpus(bench.path / 'valid.tsv', 13, seed=1)}"]
    code, lines = bench.train_here(bench.path / "evaluated", *flags)
    assert code == 0, lines
    return flags, bench.path / "evaluated"


PLACES = {
    "a step": ("step", 7),
    "evaluation": ("evaluation", 2),
    "decoding": ("decoding", 1),
    "a save": ("manifest", 2),
}


@TERM
@pytest.mark.parametrize("place", PLACES)
def test_sigterm_during(bench, evaluated, tmp_path, record_property, place):
    flags, expected = evaluated
    code, lines = bench.train(tmp_path / "run", *flags, fault=at(*PLACES[place], "TERM"))
    assert code == 143 and lines[-1] == "stopped by SIGTERM; run the same command to resume", lines
    step = last_step(lines, "step ")
    assert steps(tmp_path / "run")[-1] == step
    code, lines = bench.train_here(tmp_path / "run", *flags)
    assert code == 0 and last_step(lines, "resumed at step ") == step, lines
    assert final_state(tmp_path / "run") == final_state(expected)
    record_property("seen", f"in {place}: exit 143, step {step} saved, then all equal")


@TERM
def test_sigterm_in_the_first_compilation(bench, tmp_path, record_property):
    code, lines = bench.train(
        tmp_path / "run", f"--compilation_cache={tmp_path}", fault=at("loss", 1, "TERM")
    )
    assert code == 143 and lines[-1].startswith("stopped by SIGTERM"), lines
    assert not any(line.startswith("saved") for line in lines[: lines.index("now TERM at loss")])
    assert last_step(lines, "step ") == last_step(lines, "saved step ") == 1
    record_property("seen", "in the first compilation: exit 143 after it, step 1 saved")


@INT
def test_sigint_once(bench, tmp_path, record_property):
    code, lines = bench.train(tmp_path / "run", fault=at(STEP, 3, "INT"))
    assert code == 130 and steps(tmp_path / "run") == [2, 3], lines
    record_property("seen", "once: exit 130, step 3 saved")


@INT
def test_sigint_twice(bench, tmp_path, record_property):
    """In the middle of the second checkpoint."""
    code, lines = bench.train(tmp_path / "run", fault=at("sync", 60, "INT INT"))
    assert code == 130 and "stopped immediately by a second signal, SIGINT" in lines[-1], lines
    assert unfinished(tmp_path / "run") == ["4"]
    code, lines = bench.train_here(tmp_path / "run", "--config.training.num_steps=4")
    assert code == 0 and last_step(lines, "resumed at step ") == 2, lines
    record_property("seen", "twice: exit 130 inside a save, step 2 intact and resumed")


@MIDDLE
def test_killed_inside_the_write(bench, whole, tmp_path, record_property):
    """Also with a model that two devices share, in two copies."""
    shared = "--config.training.model_parallel=2"
    code, lines = bench.train_here(tmp_path / "uninterrupted", shared)
    assert code == 0, lines
    for flags, uninterrupted in (((), whole), ((shared,), tmp_path / "uninterrupted")):
        run = tmp_path / f"run{len(flags)}"
        code, lines = bench.train(run, *flags, fault=at("sync", 60, "KILL"))
        assert code == KILLED and last_step(lines, "saved step ") == 2, lines
        assert unfinished(run) == ["4"] and steps(run) == [2]
        code, lines = bench.train_here(run, *flags)
        assert code == 0 and last_step(lines, "resumed at step ") == 2, lines
        assert sorted(os.listdir(run / "checkpoints")) == sorted(["8", "10", "12"])
        assert final_state(run) == final_state(uninterrupted)
    record_property("seen", "resumed at the previous step; no partial checkpoint left; all equal")


@ARCHITECTURE
def test_another_architecture(bench, whole, tmp_path, record_property):
    shutil.copytree(whole, tmp_path / "run")
    code, lines = bench.train(
        tmp_path / "run", "--config.model.d_ff=24", "--config.data.vocab_size=48", devices=0
    )
    error = error_of(lines)
    assert code == 2 and "model.d_ff 16 → 24, data.vocab_size 64 → 48" in error
    code, lines = bench.train_here(
        tmp_path / "run", "--config.training.log_every=2", "--config.training.num_steps=14"
    )
    assert code == 0 and last_step(lines, "saved step ") == 14, lines
    assert "changed: training.log_every 1 → 2" in lines
    assert "changed: training.num_steps 12 → 14" in lines
    record_property(
        "seen",
        f"exit 2: {error.split(': ')[1].split(';')[0]}; log_every, num_steps accepted, listed",
    )


@DATA
def test_changed_data(bench, whole, tmp_path, record_property):
    shutil.copytree(whole, tmp_path / "run")
    changed = f"--config.data.corpus={write_corpus(tmp_path / 'pairs.tsv', 40)}"
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    facts["data"] = {str(tmp_path / "pairs.tsv"): "0" * 64}
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    tree = json.loads((tmp_path / "run" / "config.json").read_text())
    tree["data"]["corpus"] = f"tsv:{tmp_path / 'pairs.tsv'}"
    (tmp_path / "run" / "config.json").write_text(json.dumps(tree))
    more = "--config.training.num_steps=14"
    code, lines = bench.train(tmp_path / "run", changed, more, devices=0)
    assert code == 3 and "pairs.tsv changed since this run began" in error_of(lines)
    code, lines = bench.train_here(
        tmp_path / "run", changed, more, "--config.training.allow_data_change"
    )
    assert code == 0 and last_step(lines, "saved step ") == 14, lines
    warning = next(line for line in lines if "training data has changed" in line)
    data = json.loads((tmp_path / "run" / "checkpoints" / "14" / "data" / "metadata").read_text())
    assert (data["epoch"], data["index"]) == (2, 0)  # two steps of epochs of one batch
    facts = json.loads(
        (tmp_path / "run" / "run.json").read_text()
    )  # the data of the run from now on
    assert facts["data"][str(tmp_path / "pairs.tsv")] != "0" * 64
    record_property("seen", f"exit 3: pairs.tsv changed; with the flag, “{warning}”")


@DEVICES
def test_other_numbers_of_devices(bench, tmp_path, record_property):
    """With dropout, whose keys depend on the row of the global batch."""
    flags = ["--config.model.dropout=0.1"]
    _, lines = bench.train(tmp_path / "whole", *flags, fault=("watch",), devices=1)
    expected, seen = batches_of(lines), []
    for devices, until in ((1, 4), (2, 7), (4, 12)):
        code, lines = bench.train(
            tmp_path / "run",
            *flags,
            f"--config.training.num_steps={until}",
            fault=("watch",),
            devices=devices,
        )
        assert code == 0, lines
        seen += batches_of(lines)
        assert f"replicas {devices} equal" in lines and not any("differ" in line for line in lines)
    assert seen == expected
    expected_losses, losses = (
        dict(final_state(tmp_path / name)["losses"]) for name in ("whole", "run")
    )
    worst = max(abs(losses[step] / expected_losses[step] - 1) for step in expected_losses)
    assert worst < 1e-5
    record_property("seen", f"12 batches equal, losses to {worst:.0e} with dropout, replicas equal")


@SECOND
def test_a_second_trainer(bench, tmp_path, record_property):
    first = bench.start(tmp_path / "run", "--config.training.num_steps=100000")
    lines = wait_for(first, "run: ")
    code, refused = bench.train(tmp_path / "run", devices=0)
    error = error_of(refused)
    assert code == 6 and f"process {first.pid} on {os.uname().nodename} since 20" in error
    ended(first, lines, signal.SIGKILL)
    code, lines = bench.train_here(tmp_path / "run", "--config.training.num_steps=2")
    assert code == 0, lines
    holder = re.search(r"\((.*)\)", error)[1].replace(os.uname().nodename, "HOST")
    record_property(
        "seen",
        f"exit 6: in use by {holder.replace(str(first.pid), 'PID')}; after it was killed exit 0",
    )


@COMPLETE
def test_a_finished_run(bench, whole, record_property):
    before = contents(whole)
    code, lines = bench.train_here(whole)
    assert code == 0 and "already complete at step 12" in lines and contents(whole) == before
    record_property("seen", "already complete at step 12, exit 0; no file changed except the logs")

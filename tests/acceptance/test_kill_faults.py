"""Rows 1–3: a training that is killed or stopped at any time, and resumed."""

import random
import shutil
import signal
import time

import pytest

from seq2seq.runtime.signals import Stopped
from seq2seq.storage.run_files import steps
from tests.acceptance.processes import KILLED, at, ended, final_state, last_step, wait_for
from tests.support.runs import run_config, train_cheaply, whole_run

STEP = "step"
row = pytest.mark.row
KILLS = row(
    1,
    "kill -9 at random times, the same command again",
    "resumes at or after the last announced step; all bits and metrics as in an uninterrupted run",
)
EVERY_STEP = row(
    2,
    "stopped after every step of three epochs, by the flag that a signal sets",
    "all bits as in an uninterrupted run",
)
STOPS = row(
    3,
    "stopped three times in two epochs, once without a step to save",
    "all bits as in an uninterrupted run",
)


def killed(bench, run, flags, prefix, jitter):
    """Kill a training `jitter` seconds after a line of stderr with this prefix; returns all lines.

    The training would not end by itself."""
    process = bench.start(run, *flags, "--config.training.num_steps=1000000")
    lines = wait_for(process, prefix)
    time.sleep(jitter)
    code, lines = ended(process, lines, signal.SIGKILL)
    assert code == KILLED, lines
    return lines


def kill_loop(bench, run, flags, startups, kills, choose):
    """Kill the same command at start-up and at random steps; returns the steps where it resumed."""
    announced, resumed = 0, []
    for number in range(startups + kills):
        if number < startups:
            prefix = choose.choice(["run: ", "train: ", "devices: ", "batch: ", "checkpoints: "])
        else:
            step = announced + choose.randint(1, 12)
            prefix = tuple(f"step {step + more}/" for more in range(10))
        lines = killed(bench, run, flags, prefix, choose.uniform(0, 0.1))
        if last_step(lines, "step "):
            resumed.append(last_step(lines, "resumed at step "))
            assert resumed[-1] >= announced, lines
        announced = max(announced, last_step(lines, "saved step "))
    return resumed


def check_kills(bench, tmp_path, record_property, startups, kills, total=1):
    """Runs with `startups` + `kills` kills each, `total` or more in all. Each is then completed
    and compared with an uninterrupted one. No kill depends on the speed of the machine."""
    flags = ["--config.training.eval_every=10", "--config.training.checkpoint_every=5"]
    choose, done, runs, starts = random.Random(0), 0, 0, []
    while done < total:
        run, runs = tmp_path / f"run{runs}", runs + 1
        starts += kill_loop(bench, run, flags, startups, kills, choose)
        done += startups + kills
        last = f"--config.training.num_steps={(max([0, *steps(run)]) // 10 + 1) * 10}"
        for path in (run, tmp_path / "whole"):
            code, lines = bench.train_here(path, *flags, last)
            assert code == 0, lines
        state = final_state(run)
        assert state == final_state(tmp_path / "whole")
        assert not list((run / "checkpoints").glob("*[a-z]*"))
        shutil.rmtree(run)
        shutil.rmtree(tmp_path / "whole")
    record_property(
        "seen",
        f"{done} kills in {runs} run{'s' * (runs > 1)}, {startups} of each "
        f"at start-up; resumed at {starts[:6]}…; {len(state)} facts equal",
    )


@KILLS
def test_killed_at_random_and_resumed(bench, tmp_path, record_property, request):
    """A kill at start-up and three at random steps of the same run."""
    total = 500 if request.config.option.soak else 1
    check_kills(bench, tmp_path, record_property, 1, 3, total)


@pytest.mark.slow
def test_differing_states_are_detected(whole, tmp_path):
    """The comparison itself: a state with another best or a missing step differs."""
    shutil.copytree(whole, tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(whole)
    (tmp_path / "run" / "best.json").write_text('{"checkpoint": 2}')
    assert final_state(tmp_path / "run") != final_state(whole)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "12")
    with pytest.raises(AssertionError):
        final_state(tmp_path / "run")


@EVERY_STEP
def test_stopped_after_each_step(tmp_path, record_property):
    """In the process of the test, with validation data: each training but the last is stopped after
    one step."""
    run, expected = tmp_path / "run", final_state(whole_run())
    for step in range(1, 12):
        with pytest.raises(Stopped) as stopped:
            train_cheaply(run, run_config(), stop_after=1)
        assert stopped.value.signal == signal.SIGTERM and steps(run)[-1] == step
    train_cheaply(run, run_config())
    assert final_state(run) == expected and steps(run) == steps(whole_run())
    record_property("seen", f"after steps 1 to 11 of one run: {len(expected)} facts equal")


@STOPS
def test_stopped_three_times_and_once_before_any_step(bench, whole, tmp_path, record_property):
    run = tmp_path / "run"
    for fault in (
        at(STEP, 5, "TERM"),
        at("announce", 1, "TERM"),
        at(STEP, 1, "TERM"),
        at(STEP, 1, "TERM"),
    ):
        code, lines = bench.train(run, fault=fault)
        assert code == 143, lines
    assert steps(run)[-1] == 7  # the second stop saved nothing: no step was done
    assert bench.train_here(run)[0] == 0 and final_state(run) == final_state(whole)
    record_property("seen", "three stops, and one without a step: all equal")

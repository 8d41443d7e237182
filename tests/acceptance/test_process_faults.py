"""Rows 1–11: a training process that dies, is stopped, resumed, doubled or changed."""

import json
import os
import random
import re
import shutil
import signal
import time

import pytest
from processes import KILLED, at, contents, ended, error_of, final_state, last_step, wait_for
from tiny import write_corpus

from training.checkpoint import steps

AFTER = "training.progress:Progress.after"
row = pytest.mark.row
KILLS = row(1, "kill -9 at random times, the same command again", "resumes at or after the last "
            "announced step; all bits and metrics as if uninterrupted")
EVERY_STEP = row(2, "stopped at every step of three epochs", "all bits and batches as if "
                 "uninterrupted")
DRIFT = row(3, "stopped twice and thrice in an epoch; saved again without a step", "no drift")
TERM = row(4, "SIGTERM in a step, in the first compilation, in evaluation and decoding, in a save",
           "rc 143, the last finished step saved, resumed as row 2")
INT = row(5, "SIGINT once, twice", "once as row 4 with rc 130; twice at once, rc 130, checkpoints "
          "whole")
MIDDLE = row(6, "SIGKILL inside the write", "the half is ignored, and deleted by the next start")
ARCHITECTURE = row(7, "another architecture on resume", "rc 2, each differing field old → new; "
                   "harmless ones allowed and listed")
DATA = row(8, "changed training data on resume", "rc 3 naming the file; allow_data_change begins "
           "it anew, loudly")
DEVICES = row(9, "1 → 2 → 4 devices on resume", "the same batches; loss to 1e-5; replicas equal")
SECOND = row(10, "a second trainer in the run directory", "rc 6, names the holder; a dead holder's "
             "lock is taken over")
COMPLETE = row(11, "a finished run started again", "already complete, rc 0, nothing changed")


def kill_loop(bench, run, kills, startups, flags, choose):
    """Kill the same command until so many died, or all is done; (killed, resumed at which)."""
    announced, resumed, killed = 0, [], 0
    for number in range(kills + startups):
        process = bench.start(run, *flags)
        if number < startups:
            time.sleep(choose.uniform(0.05, 5.0))
            lines = []
        else:
            lines = wait_for(process, ("saved step ", "already complete"))
            time.sleep(choose.uniform(0.05, 2.0))
        code, lines = ended(process, lines, signal.SIGKILL)
        if any(line.startswith("first step after") for line in lines):
            resumed.append(last_step(lines, "resumed at step "))
            assert resumed[-1] >= announced, lines
        announced = max(announced, last_step(lines, "saved step "))
        if code == 0:
            break
        assert code == KILLED, lines
        killed += 1
        if any(line.startswith("already complete") for line in lines):
            break
    code, lines = bench.train(run, *flags)
    assert code == 0, lines
    return killed, resumed


def check_kills(bench, tmp_path, record_property, kills, startups, num_steps, in_all=1):
    """Runs with up to kills + startups kills each, until there were so many in all."""
    flags = [f"--config.training.num_steps={num_steps}", "--config.training.eval_every=10",
             "--config.training.checkpoint_every=5"]
    code, lines = bench.train(tmp_path / "whole", *flags)
    assert code == 0, lines
    expected, done, runs, starts = final_state(tmp_path / "whole"), 0, 0, []
    choose = random.Random(0)
    while done < in_all:
        run, runs = tmp_path / f"run{runs}", runs + 1
        killed, resumed = kill_loop(bench, run, kills, startups, flags, choose)
        assert final_state(run) == expected
        assert not list((run / "checkpoints").glob("*[a-z]*"))
        done, starts = done + killed, starts + resumed
        shutil.rmtree(run)
    assert done >= runs * (startups + 1)
    record_property("seen", f"{done} kills in {runs} run{'s' * (runs > 1)}, {startups} of each "
                    f"at start-up; resumed at {starts[:6]}…; {len(expected)} facts and {num_steps} "
                    "losses equal")


@KILLS
def test_killed_at_random_and_resumed(bench, tmp_path, record_property):
    check_kills(bench, tmp_path, record_property, kills=1, startups=1, num_steps=40)


@KILLS
@pytest.mark.slow
def test_killed_many_times(bench, tmp_path, record_property, request):
    in_all = 500 if request.config.option.soak else 1
    check_kills(bench, tmp_path, record_property, 25, 3, 1000, in_all)


def test_states_that_differ_are_seen(whole, tmp_path):
    """The comparison itself: another step, another loss, another best is another state."""
    shutil.copytree(whole, tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(whole)
    (tmp_path / "run" / "best.json").write_text('{"checkpoint": 2}')
    assert final_state(tmp_path / "run") != final_state(whole)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "12")
    with pytest.raises(AssertionError):
        final_state(tmp_path / "run")


@EVERY_STEP
@pytest.mark.slow
def test_stopped_after_each_step(bench, whole, tmp_path, record_property):
    expected = final_state(whole)
    for step in range(1, 12):
        run = tmp_path / str(step)
        code, lines = bench.train(run, fault=at(AFTER, step, "TERM"))
        assert code == 143 and last_step(lines, "saved step ") == step, lines
        code, lines = bench.train(run)
        assert code == 0 and last_step(lines, "resumed at step ") == step, lines
        assert final_state(run) == expected
    record_property("seen", f"steps 1 to 11: {len(expected)} facts equal")


def batches_of(lines):
    return [line for line in lines if line.startswith("batch ") and len(line) == 70]


@EVERY_STEP
@pytest.mark.slow
def test_no_batch_is_repeated_or_skipped(bench, tmp_path, record_property):
    _, lines = bench.train(tmp_path / "whole", fault=("watch",))
    expected, seen = batches_of(lines), []
    for until in (3, 4, 5, 12):  # around the end of the first epoch
        code, lines = bench.train(tmp_path / "run", f"--config.training.num_steps={until}",
                                  fault=("watch",))
        assert code == 0, lines
        seen += batches_of(lines)
    assert len(set(expected)) == 12 and seen == expected
    record_property("seen", "12 batches, the same in order over four processes")


@DRIFT
@pytest.mark.slow
def test_stopped_twice_in_an_epoch(bench, whole, tmp_path, record_property):
    for call in (1, 1):  # steps 1 and 2 of the four of an epoch
        code, lines = bench.train(tmp_path / "run", fault=at(AFTER, call, "TERM"))
        assert code == 143, lines
    code, lines = bench.train(tmp_path / "run")
    assert code == 0 and final_state(tmp_path / "run") == final_state(whole), lines
    record_property("seen", "twice: all equal")


@DRIFT
@pytest.mark.slow
def test_stopped_thrice_and_once_before_any_step(bench, whole, tmp_path, record_property):
    run = tmp_path / "run"
    for fault in (at(AFTER, 5, "TERM"), at("train:report", 1, "TERM"), at(AFTER, 1, "TERM"),
                  at(AFTER, 1, "TERM")):
        code, lines = bench.train(run, fault=fault)
        assert code == 143, lines
    assert steps(run)[-1] == 7  # the second one saved nothing, for nothing was done
    assert bench.train(run)[0] == 0 and final_state(run) == final_state(whole)
    record_property("seen", "thrice, and once without a step: all equal")


@pytest.fixture(scope="module")
def judged(bench):
    """Flags with validation data, and an uninterrupted run with them."""
    flags = [f"--config.data.valid={write_corpus(bench.path / 'valid.tsv', 13, seed=1)}"]
    code, lines = bench.train(bench.path / "judged", *flags)
    assert code == 0, lines
    return flags, bench.path / "judged"


PLACES = {"a step": ("train:split_rows", 7), "evaluation": ("train:Evaluator.judge", 2),
          "decoding": ("decoding.engine:Engine._begin", 1),
          "a save": ("training.saving:write_manifest", 2)}


@TERM
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_sigterm_while(bench, judged, tmp_path, record_property, place):
    flags, expected = judged
    code, lines = bench.train(tmp_path / "run", *flags, fault=at(*PLACES[place], "TERM"))
    assert code == 143 and lines[-1] == "stopped by SIGTERM; the same command goes on", lines
    step = last_step(lines, "step ")
    assert steps(tmp_path / "run")[-1] == step
    code, lines = bench.train(tmp_path / "run", *flags)
    assert code == 0 and last_step(lines, "resumed at step ") == step, lines
    assert final_state(tmp_path / "run") == final_state(expected)
    record_property("seen", f"in {place}: rc 143, step {step} saved, then all equal")


@TERM
def test_sigterm_in_the_first_compilation(bench, tmp_path, record_property):
    process = bench.start(tmp_path / "run", "--compilation_cache=off")
    lines = wait_for(process, "checkpoints: ")
    time.sleep(0.5)
    started = time.monotonic()
    code, lines = ended(process, lines, signal.SIGTERM)
    assert code == 143 and lines[-1].startswith("stopped by SIGTERM"), lines
    assert last_step(lines, "step ") == last_step(lines, "saved step ") <= 1
    record_property("seen", "in the first compilation: rc 143 after it, "
                    f"step {last_step(lines, 'saved step ')} saved")
    assert time.monotonic() - started < 60


@INT
def test_sigint_once(bench, tmp_path, record_property):
    code, lines = bench.train(tmp_path / "run", fault=at(AFTER, 3, "INT"))
    assert code == 130 and steps(tmp_path / "run") == [2, 3], lines
    record_property("seen", "once: rc 130, step 3 saved")


@INT
@pytest.mark.slow
def test_sigint_twice(bench, tmp_path, record_property):
    """In the middle of the second checkpoint."""
    code, lines = bench.train(tmp_path / "run", fault=at("training.manifest:sync", 60, "INT INT"))
    assert code == 130 and "stopped at once by a second signal, SIGINT" in lines[-1], lines
    assert (tmp_path / "run" / "checkpoints" / "4.tmp").is_dir()
    code, lines = bench.train(tmp_path / "run", "--config.training.num_steps=4")
    assert code == 0 and last_step(lines, "resumed at step ") == 2, lines
    record_property("seen", "twice: rc 130 inside a save, step 2 whole and resumed")


@MIDDLE
def test_killed_inside_the_write(bench, whole, tmp_path, record_property):
    run = tmp_path / "run"
    code, lines = bench.train(run, fault=at("training.manifest:sync", 60, "KILL"))
    assert code == KILLED and last_step(lines, "saved step ") == 2, lines
    left = run / "checkpoints" / "4.tmp"
    assert left.is_dir() and steps(run) == [2]
    (run / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir()  # as Orbax names its own
    code, lines = bench.train(run)
    assert code == 0 and last_step(lines, "resumed at step ") == 2, lines
    assert sorted(os.listdir(run / "checkpoints")) == sorted(["8", "10", "12"])
    assert final_state(run) == final_state(whole)
    record_property("seen", "resumed at the step before; no half is left; all equal")


@ARCHITECTURE
def test_another_architecture(bench, whole, tmp_path, record_property):
    shutil.copytree(whole, tmp_path / "run")
    code, lines = bench.train(tmp_path / "run", "--config.model.d_ff=24",
                              "--config.data.vocab_size=48", platform="none")
    error = error_of(lines)
    assert code == 2 and "model.d_ff 16 → 24, data.vocab_size 64 → 48" in error
    code, lines = bench.train(tmp_path / "run", "--config.training.log_every=2",
                              "--config.training.num_steps=14")
    assert code == 0 and last_step(lines, "saved step ") == 14, lines
    assert "changed: training.log_every 1 → 2" in lines
    assert "changed: training.num_steps 12 → 14" in lines
    record_property("seen", f"rc 2: {error.split(': ')[1].split(';')[0]}; log_every and num_steps "
                    "allowed and listed")


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
    code, lines = bench.train(tmp_path / "run", changed, more, platform="none")
    assert code == 3 and "pairs.tsv changed since this run began" in error_of(lines)
    code, lines = bench.train(tmp_path / "run", changed, more,
                              "--config.training.allow_data_change")
    assert code == 0 and last_step(lines, "saved step ") == 14, lines
    warning = next(line for line in lines if "training data has changed" in line)
    data = json.loads((tmp_path / "run" / "checkpoints" / "14" / "data" / "metadata").read_text())
    assert data["epoch"] <= 1
    facts = json.loads((tmp_path / "run" / "run.json").read_text())  # the run's data from now on
    assert facts["data"][str(tmp_path / "pairs.tsv")] != "0" * 64
    record_property("seen", f"rc 3: pairs.tsv changed; with the flag, “{warning}”")


@DEVICES
@pytest.mark.slow
def test_other_numbers_of_devices(bench, tmp_path, record_property):
    """Dropout too: its keys follow the row of the global batch."""
    flags = ["--config.model.dropout=0.1"]
    _, lines = bench.train(tmp_path / "whole", *flags, fault=("watch",), devices=1)
    expected, seen = batches_of(lines), []
    for devices, until in ((1, 4), (2, 7), (4, 12)):
        code, lines = bench.train(tmp_path / "run", *flags, f"--config.training.num_steps={until}",
                                  fault=("watch",), devices=devices)
        assert code == 0, lines
        seen += batches_of(lines)
        assert f"replicas {devices} equal" in lines and not any("differ" in one for one in lines)
    assert seen == expected
    one, other = (dict(final_state(tmp_path / name)["losses"]) for name in ("whole", "run"))
    worst = max(abs(other[step] / one[step] - 1) for step in one)
    assert worst < 1e-5
    record_property("seen", f"12 batches equal, losses to {worst:.0e} with dropout, "
                    "replicas equal")


@SECOND
def test_a_second_trainer(bench, tmp_path, record_property):
    first = bench.start(tmp_path / "run", "--config.training.num_steps=100000")
    lines = wait_for(first, "run: ")
    code, refused = bench.train(tmp_path / "run", platform="none")
    error = error_of(refused)
    assert code == 6 and f"process {first.pid} on {os.uname().nodename} since 20" in error
    ended(first, lines, signal.SIGKILL)
    code, lines = bench.train(tmp_path / "run", "--config.training.num_steps=2")
    assert code == 0, lines
    told = re.search(r"\((.*)\)", error)[1].replace(os.uname().nodename, "HOST")
    record_property("seen", f"rc 6: in use by {told.replace(str(first.pid), 'PID')}; after its "
                    "death rc 0")


@COMPLETE
def test_a_finished_run(bench, whole, record_property):
    before = contents(whole)
    code, lines = bench.train(whole)
    assert code == 0 and "already complete at step 12" in lines and contents(whole) == before
    record_property("seen", "already complete at step 12, rc 0; no file changed but the logs")

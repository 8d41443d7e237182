"""A signal stops training promptly, also during the computation of an epoch's plan."""

import signal
import threading

import pytest

from seq2seq import train
from seq2seq.data.batching.planner import Planner
from seq2seq.data.batching.windows import Windows
from seq2seq.runtime.signals import Stopped
from seq2seq.storage.run_files import steps
from tests.support.in_process import call_in_process
from tests.support.runs import run_training
from tests.support.several import training, write_data
from tests.support.tiny import StopAfter, tiny_config, write_corpus

SLOW_PLANS = """
import sys
import time
from seq2seq.data.batching.windows import Windows
from seq2seq.config.tree import Config

def get_config():
    original = Windows.plan
    def plan(self, epoch, window):
        if epoch == 1:
            print("planning epoch 1", file=sys.stderr, flush=True)
            time.sleep(600)
        return original(self, epoch, window)
    Windows.plan = plan
    return Config()
"""


class StopWhilePlanning(StopAfter):
    """SIGTERM arrives during the computation of a plan, when no batch is left."""

    def __init__(self, planning):
        super().__init__(None)
        self.planning = planning

    def agreed_status(self, ready=lambda seconds: True, finished=False):
        def signalled(seconds):
            is_ready = ready(seconds)
            if not is_ready and self.planning.is_set():
                self.signal = signal.SIGTERM
            return is_ready

        return super().agreed_status(signalled, finished)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_signal_takes_effect_during_the_plan_of_an_epoch(tmp_path, monkeypatch, epoch):
    """During the plan of epoch 1, the four steps of epoch 0 are saved; before, nothing is."""
    planning, finish = threading.Event(), threading.Event()
    plan, lookup = Windows.plan, Planner.lookup

    def slow_plan(self, *place):
        if place[0] == epoch:
            finish.wait(60)
        return plan(self, *place)

    def needed(self, *place):
        if place[0] == epoch:
            planning.set()
        return lookup(self, *place)

    monkeypatch.setattr(Windows, "plan", slow_plan)
    monkeypatch.setattr(Planner, "lookup", needed)
    monkeypatch.setattr("tests.support.runs.StopAfter", lambda _: StopWhilePlanning(planning))
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 132))
    try:
        with pytest.raises(Stopped) as stopped:
            run_training(tmp_path / "run", config)
        assert not finish.is_set() and stopped.value.signal == signal.SIGTERM
        assert steps(tmp_path / "run")[-1:] == ([4] if epoch else [])
    finally:
        finish.set()


@pytest.mark.parametrize("begun", [False, True])
def test_the_command_to_resume_has_overwrite_only_until_the_earlier_run_is_deleted(
    tmp_path, monkeypatch, begun
):
    flags_of_signals = []

    def stopped(config, run, data, stop):
        flags_of_signals.append(stop)
        if begun:
            stop.defer()
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(train, "prepare_data", lambda config, *_: (config, None))
    monkeypatch.setattr(train, "train", stopped)
    flags = f"--workdir={tmp_path / 'run'}", "--config.data.corpus=tsv:x", "--overwrite"
    done = call_in_process(train, *flags)
    without = " without --overwrite" * begun
    assert done.code == 143
    assert done.err[-1] == f"stopped by SIGTERM; run the same command{without} to resume"
    flags_of_signals[0].set(signal.SIGTERM)  # during the exit: ignored


@pytest.mark.slow
def test_two_processes_stop_together_during_a_plan(tmp_path):
    path, run = write_data(tmp_path), tmp_path / "run"
    (path / "plans.py").write_text(SLOW_PLANS)
    job = training(path, 2, 1, run, config=path / "plans.py", num_steps=100_000)
    job.wait_for("planning epoch 1")
    job.wait_for("step 1/")
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    assert job.texts(1)[0].splitlines()[-1] == "stopped by SIGTERM; run the same command to resume"
    assert len(steps(run)) == 1

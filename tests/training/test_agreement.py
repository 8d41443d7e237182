"""Several processes take the same decision before each step, and no device waits for it.

Threads stand for processes. Their devices are modelled: each process starts programs in its own
order, and program k has a result when all processes have started it.
"""

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.batches import DataPosition
from seq2seq.runtime import processes
from seq2seq.storage.run_files import steps
from seq2seq.training.trainer import Trainer
from tests.support.several import training, write_data
from tests.support.tiny import StopAfter

HOUR = 3600.0


class Devices:
    """The programs that each process has started, in its order."""

    def __init__(self, count):
        self.programs, self.changed = [[] for _ in range(count)], threading.Condition()
        self.thread = threading.local()  # .index: the process of a thread
        self.reads = []  # of process 0: (program read, number of programs started before)

    def start(self, name, values=(0,)):
        programs = self.programs[self.thread.index]
        with self.changed:
            programs.append((name, values))
            self.changed.notify_all()
        return Result(self, len(programs) - 1)

    def result(self, index):
        if self.thread.index == 0:
            self.reads.append((index, len(self.programs[0])))
        with self.changed:
            started = self.changed.wait_for(
                lambda: all(len(programs) > index for programs in self.programs), timeout=5
            )
        assert started, f"the processes wait for each other: {self.programs}"
        names, values = zip(*(programs[index] for programs in self.programs), strict=True)
        assert len(set(names)) == 1, names
        return np.max(values, axis=0)


class Result:
    """A device array."""

    def __init__(self, devices, index):
        self.devices, self.index = devices, index

    def __array__(self, dtype=None, copy=None):
        return self.devices.result(self.index)


class Stream:
    """The batches of a process: batch b is ready after `polls[b]` waits."""

    def __init__(self, stop, polls, signals, epoch_length):
        self.stop, self.polls, self.signals, self.epoch_length = stop, polls, signals, epoch_length
        self.taken = 0

    def ready(self, seconds):
        batch = self.taken + 1
        left = self.polls.get(batch, 0)
        if left and seconds:
            self.polls[batch] = left - 1
            if self.signals.get(("wait", batch)):
                self.stop.signal = signal.SIGTERM
        return not left

    def __next__(self):
        assert self.ready(0)
        self.taken += 1
        epochs = [(step // self.epoch_length, step) for step in (self.taken - 1, self.taken)]
        before, after = (DataPosition(*position) for position in epochs)
        return before, self.taken, after


def train(devices, case, index):
    """The number of steps of process `index`."""
    devices.thread.index = index
    stop, signals = StopAfter(None), case.signals[index]
    stream = Stream(stop, case.polls[index], signals, case.epoch_length)
    best = SimpleNamespace(without_improvement=0)

    def train_step(state, step):
        if signals.get(("step", step)):
            stop.signal = signal.SIGTERM
        return state, {"loss": devices.start("step")}

    trainer = object.__new__(Trainer)
    vars(trainer).update(
        config=SimpleNamespace(training=case.config), stop=stop, step=0, start_step=0,
        position=DataPosition(0, 0), state=np.zeros(()), _running=None, _train_step=train_step,
        _learning_rate=lambda step: 0.0, stopwatch=SimpleNamespace(seconds=0.0),
        evaluator=SimpleNamespace(best=best),
        _progress=SimpleNamespace(report=lambda step, metrics, _: np.asarray(metrics["loss"])),
    )  # fmt: skip
    while trainer._continues(stream):
        trainer._do_step(stream)
        if trainer.step % case.config.eval_every == 0:
            trainer._finish_step()
            best.without_improvement += trainer.step >= case.worse_from
        if index == 0 and trainer.step >= case.expired_at:
            trainer.stopwatch.seconds = HOUR
    trainer._finish_step()
    return trainer.step


@pytest.fixture
def trained(monkeypatch):
    """trained(case) → the number of steps, the same in all processes, and the devices."""

    def run(case):
        count = len(case.polls)
        devices = Devices(count)
        monkeypatch.setattr(processes, "count", lambda: count)
        monkeypatch.setattr(
            processes, "max_over_processes", lambda *values: devices.start("status", values)
        )
        with ThreadPoolExecutor(count) as pool:
            ends = list(pool.map(lambda index: train(devices, case, index), range(count)))
        assert len(set(ends)) == 1, ends
        assert all(programs == len(devices.programs[0]) for programs in map(len, devices.programs))
        return ends[0], devices

    return run


def make_case(count, num_steps, eval_every=1000, **changes):
    case = SimpleNamespace(
        config=TrainingConfig(
            num_steps=num_steps, eval_every=eval_every, max_hours=1.0, patience=2
        ),
        polls=[{} for _ in range(count)],
        signals=[{} for _ in range(count)],
        epoch_length=1000,
        worse_from=inf,
        expired_at=inf,
    )
    vars(case).update(changes)
    return case


def last_step(case):
    """The step after which a case ends.

    What a process learns during step s counts after step s, if all compare then: after an
    evaluation or while one waits for a batch; and otherwise after step s + 1.
    """
    every = case.config.eval_every

    def after(step):
        is_compared = step % every == 0 or any(step + 1 in polls for polls in case.polls)
        return step if is_compared else step + 1

    first_worse = -(-case.worse_from // every) * every if case.worse_from < inf else inf
    ends = [case.config.num_steps, first_worse + (case.config.patience - 1) * every]
    ends += [case.epoch_length * case.config.max_epochs or inf]
    ends += [after(case.expired_at)] if case.expired_at < inf else []
    for signals in case.signals:
        for place, number in signals:
            ends.append(after(number) if place == "step" else number - 1)
    return min(ends)


@pytest.mark.parametrize("seed", range(60))
def test_all_processes_end_at_the_same_step(trained, seed):
    choose = random.Random(seed)
    count = choose.choice([2, 3])
    case = make_case(count, choose.randint(1, 12), choose.choice([1, 3, 4, 1000]))
    case.polls = [
        {choose.randint(1, 12): choose.randint(1, 3) for _ in range(choose.randint(0, 3))}
        for _ in range(count)
    ]
    case.worse_from, case.expired_at = choose.choice([2, 5, inf]), choose.choice([3, 7, inf, inf])
    case.epoch_length, case.config.max_epochs = choose.choice([2, 3]), choose.choice([0, 1, 2])
    for signals, polls in zip(case.signals, case.polls, strict=True):
        if choose.random() < 0.3:
            signals["step", choose.randint(1, 10)] = True
        signals |= {("wait", batch): True for batch in polls if choose.random() < 0.2}
    expected = last_step(case)  # before the training, which changes `polls`
    assert trained(case)[0] == expected


@pytest.mark.parametrize("receiver", [0, 1, 2])
def test_a_signal_is_handled_while_one_process_waits_for_a_batch_that_does_not_come(
    trained, receiver
):
    """A process that has its batch, or the one that waits, receives the signal."""
    case = make_case(3, 10)
    case.polls[0] = {5: inf}  # batch 5 never comes
    case.polls[receiver].setdefault(5, 3)
    case.signals[receiver]["wait", 5] = True
    assert trained(case)[0] == 4


def test_the_result_of_a_comparison_is_read_after_the_next_step_has_been_started(trained):
    """Otherwise the devices would be idle from the end of a step until the next one is started."""
    steps, devices = trained(make_case(2, 6))
    assert steps == 6
    names = [name for name, _ in devices.programs[0]]
    assert names == ["status"] + ["status", "step"] * 6
    reads = [read for read in devices.reads if names[read[0]] == "status"]
    assert reads[0] == (0, 1)  # before the first step
    # Status program 2n − 1 is started before step n, which is program 2n.
    assert reads[1:] == [(2 * n - 1, 2 * n + 1) for n in range(1, 7)]


def test_a_comparison_is_started_without_waiting_for_a_batch(monkeypatch):
    waits = []
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "max_over_processes", lambda *values: values)
    StopAfter(None).start_agreement(lambda seconds: waits.append(seconds), finished=False)
    assert waits == [0]


def test_a_single_process_starts_no_comparison(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr(processes, "_device_max", fail)
    stop = StopAfter(None)
    stop.start_agreement(fail, finished=True)
    assert stop.agreed_status() == (None, False)
    stop.start_agreement(fail, finished=False)
    stop.signal = signal.SIGINT
    assert stop.agreed_status() == (signal.SIGINT, False)


SLOW_BATCHES = """
import sys
import time
from seq2seq.runtime import processes
from seq2seq.config.tree import Config
from seq2seq.training.trainer import Trainer

def get_config():
    original, calls = Trainer._place, []
    def place(*arguments):
        calls.append(None)
        if processes.index() == 1:
            time.sleep(0.1)
            if len(calls) == 7:
                print("waiting", file=sys.stderr, flush=True)
                time.sleep(600)
        return original(*arguments)
    Trainer._place = place
    return Config()
"""


@pytest.mark.slow
@pytest.mark.parametrize("receiver", [0, 1])
def test_two_processes_stop_together_while_one_waits_for_a_batch(tmp_path, receiver):
    path, run = write_data(tmp_path), tmp_path / "run"
    (path / "batches.py").write_text(SLOW_BATCHES)
    job = training(path, 2, 1, run, config=path / "batches.py", num_steps=100_000)
    job.wait_for("step 6/")
    job.processes[receiver].send_signal(signal.SIGTERM)
    assert job.codes() == [143, 143], job.texts(1)
    assert job.texts(1)[0].splitlines()[-1] == "stopped by SIGTERM; run the same command to resume"
    assert "waiting" in job.texts(1)[1] and steps(run)[-1] == 6

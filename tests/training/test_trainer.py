"""The training loop does not wait: reports and checkpoints follow while the next step runs."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np

from seq2seq.storage import checkpoints
from seq2seq.storage.run_files import restore_params, steps
from seq2seq.training import trainer
from seq2seq.training.trainer import Trainer
from tests.support.runs import run_config, stopped_run, train_cheaply


def test_steps_continue_while_a_checkpoint_is_written_and_do_not_change_it(tmp_path, monkeypatch):
    """The first write waits until two more steps have been started, which overwrite the buffers.
    The steps receive arrays that are on the devices."""
    stopped = stopped_run()  # made before the replacements, which it would wait for
    started, write, seen = threading.Condition(), checkpoints.Checkpoints._write, []
    count = 0
    do_step = Trainer._do_step

    def guarded(step, *_):
        def without_transfer(*arguments):
            with jax.transfer_guard("disallow"):
                return step(*arguments)

        return without_transfer

    def counted(self, *arguments):
        nonlocal count
        do_step(self, *arguments)
        with started:
            count += 1
            started.notify_all()

    def slow(self, path, *arguments):
        if path.name == "2":
            with started:
                seen.append(started.wait_for(lambda: count == 4, timeout=30))
        write(self, path, *arguments)

    monkeypatch.setattr(trainer, "with_profile", guarded)
    monkeypatch.setattr(Trainer, "_do_step", counted)
    monkeypatch.setattr(checkpoints.Checkpoints, "_write", slow)
    train_cheaply(tmp_path / "run", run_config(training__num_steps=6))
    assert seen == [True]
    assert steps(tmp_path / "run") == [2, 4, 6] and steps(stopped) == [2, 4]
    for step in (2, 4):
        params, expected = (restore_params(path, str(step)) for path in (tmp_path / "run", stopped))
        jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_the_thread_that_places_batches_has_ended_at_the_end_of_the_training(tmp_path, monkeypatch):
    """Inside JAX it would abort the exit of the process."""
    place, threads = Trainer._place, []

    def slow(self, batch):
        threads.append(threading.current_thread())
        time.sleep(0.3)
        return place(self, batch)

    monkeypatch.setattr(Trainer, "_place", slow)
    train_cheaply(tmp_path / "run", run_config(training__num_steps=1))
    assert len(set(threads)) == 1 and not threads[0].is_alive()


def test_the_average_of_one_checkpoint_is_not_evaluated_but_saved():
    """It is the last step, which has been evaluated."""
    trainer, events = object.__new__(Trainer), []
    trainer.step, trainer.run = 3, Mock()
    trainer._reached_limit, trainer._evaluate = str, lambda: events.append("last")
    trainer.evaluator = SimpleNamespace(
        evaluate=lambda name, *_: events.append(name), best=SimpleNamespace(entry={})
    )
    trainer.checkpoints = SimpleNamespace(
        average=dict, save_average=lambda *_: events.append("saved")
    )
    for keep in (1, 2):
        trainer.config = SimpleNamespace(training=SimpleNamespace(keep=keep, model_parallel=1))
        trainer._complete()
    assert events == ["last", "saved", "last", "average", "saved"]


def test_each_step_is_started_before_the_one_before_it_is_reported():
    events = []

    def start(state, batch):
        events.append(f"start {batch}")
        return state, {"loss": batch}

    def report(step, metrics, position):
        assert metrics == {"loss": step, "learning_rate": step / 10} and position == step - 1
        events.append(f"report {step}")

    trainer = object.__new__(Trainer)
    trainer.step, trainer.start_step, trainer._running = 0, 0, None
    trainer.state, trainer._train_step = np.zeros(()), start
    trainer._learning_rate = lambda step: (step + 1) / 10
    trainer._progress = SimpleNamespace(report=report)
    trainer.config = SimpleNamespace(training=SimpleNamespace(eval_every=1))
    batches = ((step - 1, step, step) for step in (1, 2, 3))
    for _ in range(3):
        trainer._do_step(batches)
    for _ in range(2):  # the second call has nothing to report
        trainer._finish_step()
    assert events == ["start 1", "start 2", "report 1", "start 3", "report 2", "report 3"]
    assert trainer.step == trainer.position == 3

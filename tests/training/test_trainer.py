"""The training loop does not wait: reports and checkpoints follow while the next step runs."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from runs import run_training
from tiny import tiny_config, write_corpus

from storage import saving
from storage.checkpoint import restore_params, steps
from training.trainer import Trainer


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Six steps; a checkpoint after steps 2 and 4 and at the end."""
    config = tiny_config(write_corpus(tmp_path_factory.mktemp("data") / "pairs.tsv", 132))
    config.training.num_steps, config.training.checkpoint_every = 6, 2
    return config


def test_steps_continue_while_a_checkpoint_is_written_and_do_not_change_it(
    config, tmp_path, monkeypatch
):
    """Each write waits until two more steps have been started, which overwrite the buffers."""
    run_training(tmp_path / "expected", config)
    started, write, seen = threading.Condition(), saving.Checkpoints._write, []
    count = 0
    do_step = Trainer._do_step

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

    monkeypatch.setattr(Trainer, "_do_step", counted)
    monkeypatch.setattr(saving.Checkpoints, "_write", slow)
    run_training(tmp_path / "run", config)
    assert seen == [True]
    assert steps(tmp_path / "run") == steps(tmp_path / "expected") == [2, 4, 6]
    for step in (2, 4, 6):
        one, other = (restore_params(tmp_path / name, str(step)) for name in ("run", "expected"))
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_step_receives_arrays_that_are_on_the_devices(config, tmp_path, monkeypatch):
    prepare = Trainer._prepare_steps

    def guarded(self):
        prepare(self)
        step = self._train_step

        def without_transfer(*arguments):
            with jax.transfer_guard("disallow"):
                return step(*arguments)

        self._train_step = without_transfer

    monkeypatch.setattr(Trainer, "_prepare_steps", guarded)
    run_training(tmp_path / "run", config)


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

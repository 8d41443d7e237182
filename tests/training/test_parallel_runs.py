"""Runs whose model lies on several devices: resumed on as many and on other numbers of devices."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from unittest import mock

import jax
import numpy as np
import pytest

from seq2seq import train
from seq2seq.pretrained.models import load_params
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.scripts import checkpoints
from seq2seq.storage.run_files import mean_params, steps
from seq2seq.training import trainer
from tests.support.in_process import call_in_process
from tests.support.models.bag_of_words import RandomTranslator
from tests.support.runs import cheap_model, run_config, run_training, scratch, state_bytes
from tests.support.tiny import tiny_flags, tiny_rnn
from tests.training.combined_options import metrics

# Each of 2 and of 4 devices has a part of the heads, of the feed-forward units and of the tables.
CHANGES = {"model__num_heads": 4, "training__num_steps": 6, "training__ema_decay": 0.9}
# The model and its optimizer: one whose programs compile in a second, which has only tables, and a
# Transformer, with a state of the optimizer for all matrices of a shape.
MODELS = {
    "tables": (cheap_model, {"training__optimizer": "adafactor"}),
    "transformer": (nullcontext, {"training__optimizer": "muon"}),
}
each_model = pytest.mark.parametrize(
    "model", ["tables", pytest.param("transformer", marks=pytest.mark.slow)]
)


def trained(path, model, devices, stop_after=None, **changes):
    """Train with so many devices for a copy of the model; returns the state from which the
    training started, as NumPy arrays."""
    context, options = MODELS[model]
    config = run_config(**{**CHANGES, **options, **changes}, training__model_parallel=devices)
    states, place = [], trainer.place_state

    def recorded(state):
        states.append(jax.tree.map(np.array, jax.device_get(state)))
        return place(state)

    with (
        context(),
        mock.patch("seq2seq.train.Translator", RandomTranslator),
        mock.patch.object(trainer, "place_state", recorded),
    ):
        run_training(path, config, stop_after)
    return states[0]


@cache
def whole(model):
    """An uninterrupted run with two devices for each copy of the model."""
    path = scratch() / f"parallel_{model}"
    trained(path, model, 2)
    return path


@cache
def stopped(model):
    """The same run, stopped after step 3."""
    path = scratch() / f"parallel_{model}_stopped"
    with pytest.raises(Stopped):
        trained(path, model, 2, stop_after=3)
    return path


def resumed(path, model, devices):
    """The state from which a copy of the stopped run is continued, with so many devices."""
    shutil.copytree(stopped(model), path)
    return trained(path, model, devices)


@each_model
def test_a_run_is_resumed_bit_by_bit_and_on_other_devices_with_the_same_state(tmp_path, model):
    """The losses of the continued trainings agree within rounding: 1e-5."""
    first = resumed(tmp_path / "2", model, 2)
    assert state_bytes(tmp_path / "2") == state_bytes(whole(model))
    assert metrics(tmp_path / "2") == metrics(whole(model))
    for devices in (1, 4):
        run = tmp_path / str(devices)
        state = resumed(run, model, devices)
        assert jax.tree.structure(state) == jax.tree.structure(first)
        jax.tree.map(np.testing.assert_array_equal, state, first)
        compared = list(zip(metrics(run), metrics(whole(model)), strict=True))
        for entry, expected in compared:
            assert entry.keys() == expected.keys()
            numbers = {k: v for k, v in expected.items() if k.endswith(("loss", "nll", "norm"))}
            assert {name: entry[name] for name in numbers} == pytest.approx(numbers, rel=1e-5)


def test_a_number_of_devices_that_does_not_divide_the_model_is_refused_before_anything_is_written(
    tmp_path,
):
    shutil.copytree(stopped("tables"), tmp_path / "run")
    expected = "training.model_parallel must be {} with model.kind={}, "
    for run in tmp_path / "new", tmp_path / "run":
        before = sorted(run.rglob("*"))
        for devices in (3, 4):  # of a model with two heads
            flags = f"--workdir={run}", f"--config.training.model_parallel={devices}"
            done = call_in_process(train, *tiny_flags(), *flags, devices=False)
            assert done.code == CONFIGURATION and sorted(run.rglob("*")) == before
            assert expected.format("1 or 2", "transformer") in done.err[-1]
    rnn = replace(run_config(training__model_parallel=2), model=tiny_rnn("rnn"))
    with pytest.raises(UserError, match=expected.format("1", "rnn")):
        rnn.validate()


def test_a_number_that_does_not_divide_the_devices_changes_no_checkpoint(tmp_path):
    run, changes = tmp_path / "run", {"model__num_heads": 8, "model__d_ff": 24}
    with pytest.raises(UserError, match=r"expected 1 or 2 or 4 with .* and 4 devices") as error:
        trained(run, "tables", 8, **changes)
    assert error.value.code == CONFIGURATION and not steps(run)


def test_the_files_of_a_run_do_not_depend_on_the_devices(tmp_path):
    """They are read without the mesh, averaged, listed and verified as those of any other run."""
    run = tmp_path / "run"
    shutil.copytree(whole("tables"), run)
    kept = [load_params(run, str(step)) for step in (2, 4, 6)]
    jax.tree.map(np.testing.assert_array_equal, mean_params(kept), load_params(run, "average"))
    best = json.loads((run / "best.json").read_text())["checkpoint"]
    assert jax.tree.structure(load_params(run, "best")) == jax.tree.structure(kept[0])
    assert str(best) in ("4", "6", "average")
    flags = f"--workdir={run}", "--steps=2,6", "--output=mean"
    for command in (("verify",), ("average", *flags[1:]), ("list",), ("prune", "--keep=1")):
        done = call_in_process(checkpoints, *command, flags[0])
        assert done.code == 0, done.err
    mean = load_params(run, "mean")
    jax.tree.map(np.testing.assert_array_equal, mean, mean_params([kept[0], kept[2]]))

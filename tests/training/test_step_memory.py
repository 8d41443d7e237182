"""Memory of a step: the estimate, and the error before the first step if it does not fit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import run_training
from tiny import tiny_config, write_corpus

from model.config import num_parameters
from model.transformer import Transformer
from runtime.devices import replicated
from runtime.errors import CONFIGURATION, DATA, UserError
from storage.checkpoint import steps
from training import memory
from training.dry_run import dry_run
from training.optimizer import make_optimizer
from training.step import init_state


@pytest.fixture
def config(tmp_path):
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 29))
    config.training.num_steps = 2
    return config


@pytest.mark.parametrize("donated", [True, False])
def test_step_memory_counts_the_memory_beyond_the_state_per_device(donated):
    """It is the device's batch, and the new state unless that overwrites the old one."""

    def step(state, batch):
        return state + jax.lax.psum(batch.sum(), "devices"), batch.max()

    mapped = jax.pmap(
        step, "devices", in_axes=(None, 0), out_axes=(None, 0), donate_argnums=(0,) * donated
    )
    devices, state_bytes, batch_bytes = jax.local_device_count(), 4 * 100_000, 4 * 1_000_000
    state = jax.device_put(jnp.zeros(100_000), replicated())
    needed, _ = memory.step_memory(mapped, state, np.zeros((devices, 1_000_000), np.float32))
    expected = batch_bytes + (0 if donated else state_bytes)
    assert expected <= needed < expected + 10_000


def test_the_check_does_not_compile_twice(config):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **facts: compiled.append(event) if "backend_compile" in event else None
    )
    mapped = jax.pmap(
        lambda state, batch: (state + jax.lax.psum(batch.sum(), "devices"), 0.0),
        "devices",
        in_axes=(None, 0),
        out_axes=None,
        donate_argnums=0,
    )
    state = jax.device_put(jnp.zeros(17), replicated())
    batch = np.ones((jax.local_device_count(), 19), np.float32)
    memory.step_memory(mapped, state, batch)
    assert compiled
    compiled.clear()
    state, _ = memory.with_memory_check(mapped, config)(state, batch)
    assert not compiled and state[0] == batch.size


@pytest.mark.parametrize("start", ["a training", "a dry run"])
def test_a_step_that_does_not_fit_is_refused_before_it_runs(config, tmp_path, monkeypatch, start):
    """The state fits, the activations do not."""
    monkeypatch.setattr(memory, "free_memory", lambda: 20_000)
    with pytest.raises(UserError) as refused:
        if start == "a training":
            run_training(tmp_path / "run", config)
        else:
            dry_run(config, tmp_path / "run", None, False, "off")
    assert refused.value.code == CONFIGURATION
    for part in (
        "a step needs",
        "0.0 MB are free for each",
        "config.training.accumulate=2",
        "lower training.tokens_per_batch",
    ):
        assert part in str(refused.value), part
    assert steps(tmp_path / "run") == []


def test_a_model_that_does_not_fit_is_refused_before_its_state_is_made(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "free_memory", lambda: 5_000)
    monkeypatch.setattr("training.trainer.init_state", None)  # fails if it is called
    monkeypatch.setattr("training.trainer.partial", lambda *_: lambda: jnp.zeros(3_000))
    with pytest.raises(UserError, match="the parameters and the optimizer need"):
        run_training(tmp_path / "run", config)


def test_unknown_or_sufficient_memory_raises_no_error(config, monkeypatch):
    for free in (None, 10**9):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: free)
        memory.check_step((10**9, 0), config)
    monkeypatch.setattr(memory, "free_memory", lambda: 10**9 - 1)
    with pytest.raises(UserError, match="a step needs 1,000.0 MB on each of 4 devices"):
        memory.check_step((10**9, 0), config)


def test_the_memory_of_the_optimizer_is_that_of_its_state(config, monkeypatch):
    """Adam's moments have twice the size of the parameters, Adafactor's a few percent of it."""
    config.model.d_model, config.model.d_ff = 128, 512
    config.model.source_vocab_size = config.model.target_vocab_size = 1000
    parameters = 4 * num_parameters(config.model)
    monkeypatch.setattr(memory, "free_memory", lambda: 2 * parameters)
    for name in ("adafactor", "adam"):
        config.training.optimizer = name
        optimizer = make_optimizer(config.training, config.model.d_model)
        start = partial(init_state, Transformer(config.model), optimizer, config.training)
        state = jax.eval_shape(start)
        if name == "adafactor":
            memory.check_state(state, config)
            continue
        with pytest.raises(UserError, match="the parameters and the optimizer need"):
            memory.check_state(state, config)


def test_a_dry_run_reads_all_lines(config, tmp_path, capsys):
    """The malformed line is after line 10,000."""
    path = config.data.corpus.removeprefix("tsv:")
    lines = open(path, encoding="utf-8").read() * 362
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(lines.splitlines(keepends=True)[:10_483]) + "no tab\n")
    with pytest.raises(UserError, match=r"got 1 at \S+pairs.tsv:10484;") as refused:
        dry_run(config, tmp_path / "run", None, False, "off")
    assert refused.value.code == DATA
    assert "reads all data" in capsys.readouterr().err

"""Memory of a step: the estimate, the error before the first step, and advice.

configs/small.py is recommended to large models with few pairs or too little memory only.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.packing import RowLayout
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.model.config import num_parameters
from seq2seq.model.mesh import replicated
from seq2seq.model.transformer import Transformer
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.storage.run_files import steps
from seq2seq.training import memory_check
from seq2seq.training.dry_run import dry_run
from seq2seq.training.memory_check import LARGE, out_of_memory_message, size_hint
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.progress import announce
from seq2seq.training.step import init_state
from tests.support.memory_pairs import MemoryPairs
from tests.support.runs import cheap_model, run_config, run_training
from tests.support.tiny import changed, tiny_config, write_corpus
from tests.support.traced import shared_steps
from tests.test_configs import config_of


@pytest.fixture
def config():
    return run_config(training__num_steps=2)


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
    needed, _ = memory_check.step_memory(mapped, state, np.zeros((devices, 1_000_000), np.float32))
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
    memory_check.step_memory(mapped, state, batch)
    assert compiled
    compiled.clear()
    state, _ = memory_check.with_memory_check(mapped, config)(state, batch)
    assert not compiled and state[0] == batch.size


@pytest.mark.parametrize("start", ["a training", "a dry run"])
def test_a_step_that_does_not_fit_is_refused_before_it_runs(config, tmp_path, monkeypatch, start):
    """The state fits, the activations do not."""
    monkeypatch.setattr(memory_check, "free_memory", lambda: 4_000)
    with pytest.raises(UserError) as refused, cheap_model(), shared_steps():
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
    monkeypatch.setattr(memory_check, "free_memory", lambda: 5_000)
    unexpected = lambda *_: pytest.fail("the state is made")  # noqa: E731
    monkeypatch.setattr("seq2seq.training.parts.init_state", unexpected)
    with pytest.raises(UserError, match="the parameters and the optimizer need"):
        run_training(tmp_path / "run", config)


def test_unknown_or_sufficient_memory_raises_no_error(config, monkeypatch):
    for free in (None, 10**9):
        monkeypatch.setattr(memory_check, "free_memory", lambda free=free: free)
        memory_check.check_step((10**9, 0), config)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 10**9 - 1)
    with pytest.raises(UserError, match="a step needs 1,000.0 MB on each of 4 devices"):
        memory_check.check_step((10**9, 0), config)


def test_the_memory_of_the_optimizer_is_that_of_its_state(config, monkeypatch):
    """Adam's moments have twice the size of the parameters, Adafactor's a few percent of it."""
    config = changed(
        config,
        model__d_model=128,
        model__d_ff=512,
        model__num_heads=4,
        model__source_vocab_size=1000,
        model__target_vocab_size=1000,
    )
    parameters = 4 * num_parameters(config.model)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 2 * parameters)
    for name in ("adafactor", "adam"):
        config = changed(config, training__optimizer=name)
        optimizer = make_optimizer(config.training, config.model.d_model)
        start = partial(init_state, Transformer(config.model), optimizer, config.training)
        state = jax.eval_shape(start)
        if name == "adafactor":
            memory_check.check_state(state, config)
            continue
        with pytest.raises(UserError, match="the parameters and the optimizer need") as refused:
            memory_check.check_state(state, config)
        advice = str(refused.value).rpartition(": ")[2]
        assert advice == (
            "set training.model_parallel=2, or start over with training.optimizer=adafactor or a "
            "smaller model"
        )
        # With four devices for a copy even less memory is enough.
        monkeypatch.setattr(memory_check, "free_memory", lambda: parameters)
        with pytest.raises(UserError, match="set training.model_parallel=4, or"):
            memory_check.check_state(state, config)
        memory_check.check_state(state, changed(config, training__model_parallel=4))


def test_a_dry_run_reads_all_lines(tmp_path, capsys):
    """The malformed line is after line 10,000."""
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 29))
    path = config.data.corpus.removeprefix("tsv:")
    lines = open(path, encoding="utf-8").read() * 362
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(lines.splitlines(keepends=True)[:10_483]) + "no tab\n")
    with pytest.raises(UserError, match=r"got 1 at \S+pairs.tsv:10484;") as refused:
        dry_run(config, tmp_path / "run", None, False, "off")
    assert refused.value.code == DATA
    assert "reads all data" in capsys.readouterr().err


# The recorded numbers of training pairs, and of entries of the joint vocabulary.
RECORDED = {
    "korean_english": (36_000, 3000),
    "multi30k": (29_000, 5000),
    "multi30k_published": (29_000, 10_000),
    "scan": (15_892, 60),
    "cmudict": (113_038, 64),
    "tatoeba_en_de": (156_867, 8000),
    "korean_english_docs": (82_895, 8000),
    "base": (4_500_000, 37_000),
    "big": (36_000_000, 37_000),
    "small": (20_000, 8000),
}


def with_vocabulary(name: str, size: int) -> Config:
    config = config_of(name)
    config.model.source_vocab_size = config.model.target_vocab_size = size
    return config


@pytest.mark.parametrize("name", RECORDED)
def test_a_config_that_fits_its_pairs_has_no_hint(name):
    pairs, size = RECORDED[name]
    assert size_hint(with_vocabulary(name, size), pairs) == ""


def test_the_base_model_fits_three_hundred_thousand_pairs():
    assert size_hint(with_vocabulary("base", 37_000), 300_000) == ""


@pytest.mark.parametrize(("name", "pairs"), [("base", 20_000), ("base", 200_000), ("big", 500_000)])
def test_a_large_model_with_few_pairs_has_the_hint(name, pairs):
    hint = size_hint(with_vocabulary(name, 37_000), pairs)
    assert "configs/small.py" in hint and f"{pairs:,} pairs" in hint and "\n" not in hint


@pytest.mark.parametrize("kind", ["rnn", "rnn_attention"])
def test_a_large_rnn_has_the_hint_of_a_narrower_model(kind):
    config = with_vocabulary("base", 37_000)
    config.model.kind = kind
    hint = size_hint(config, 20_000)
    assert "small.py" not in hint and hint.endswith("a lower --config.model.d_model is recommended")
    message = out_of_memory_message("", config)
    assert message.endswith("or a smaller model (a lower --config.model.d_model)")


def announced(config: Config, resumed: bool = False) -> list[str]:
    """The lines that `announce` logs for 30 pairs."""
    sides = ragged([[5, 2]] * 30), ragged([[6, 7, 2]] * 30)
    batches = Batches(MemoryPairs(Pairs(*sides)), 2, RowLayout(8, 8), 0)
    lines: list[str] = []
    announce(config, SimpleNamespace(resumed=resumed, log=lines.append), batches, DataPosition())
    batches.close()
    return lines


@pytest.mark.parametrize("resumed", [False, True])
def test_the_hint_is_logged_once_at_the_start_of_a_run(resumed):
    lines = announced(with_vocabulary("base", 8), resumed)
    assert sum(line.startswith("hint: 30 pairs") for line in lines) == (not resumed)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed", "bfloat16"])
def test_mixed_is_recommended_for_float32_on_an_accelerator(dtype, resumed, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = with_vocabulary("small", 8)
    config.model.dtype = dtype
    hints = [line for line in announced(config, resumed) if "model.dtype=mixed" in line]
    assert len(hints) == (dtype == "float32")


def test_a_fine_tuned_model_may_be_large():
    config = with_vocabulary("base", 37_000)
    config.training.init_from = "runs/other"
    assert size_hint(config, 1000) == ""


def test_micro_batches_have_at_least_one_row_for_each_device():
    config = tiny_config("x")
    for rows in (jax.device_count(), jax.device_count() + 1):
        config.training.tokens_per_batch = rows * config.data.target_length
        advice = out_of_memory_message("", config)
        assert ("accumulate=2" in advice) == (rows > jax.device_count())


def test_blocks_of_the_loss_are_shorter_than_the_rows():
    config = tiny_config("x")
    for length in (32, 33):
        config.data.target_length = length
        assert ("loss_block=32" in out_of_memory_message("", config)) == (length > 32)


def test_the_recommended_model_is_never_large_itself():
    """Also with two vocabularies of its size."""
    config = with_vocabulary("small", 8000)
    config.model.tied_embeddings = "none"
    assert num_parameters(config.model) < LARGE
    assert size_hint(config, 1000) == ""
    assert "configs/small.py" not in out_of_memory_message("", config)


def test_a_large_model_that_does_not_fit_into_memory_has_the_recommendation():
    message = out_of_memory_message("", with_vocabulary("base", 37_000))
    assert message.endswith("or a smaller model (--config=configs/small.py)")

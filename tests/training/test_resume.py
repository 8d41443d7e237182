"""Resuming: bit-exact at every step; which checkpoints are kept and averaged; errors."""

import json
import shutil
import signal
from copy import deepcopy
from pathlib import Path

import jax
import numpy as np
import pytest
from runs import run_training, state_bytes
from tiny import WORDS, tiny_config, write_corpus

from data.corpus_cache import CorpusCache
from data.part_reader import PartReader
from interop.models import find_params, load_params
from model.config import ModelConfig
from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, DIVERGED, OUTPUT, UserError
from runtime.signals import Stopped
from scripts.pages.run_records import training_seconds
from storage.checkpoint import steps
from storage.config import load_config
from storage.run import Run
from storage.saving import Checkpoints


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four batches of eight packed rows, and two rows left out: twelve steps are three epochs."""
    return write_corpus(tmp_path_factory.mktemp("data") / "pairs.tsv", 132)


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    run_training(path, tiny_config(corpus))
    return path


def test_twelve_steps_are_three_epochs(uninterrupted):
    _, data = state_bytes(uninterrupted)
    assert (data["epoch"], data["index"]) == (3, 0)


@pytest.mark.slow
def test_resume_after_every_step_is_bit_exact(corpus, uninterrupted, tmp_path):
    for _ in range(11):
        with pytest.raises(Stopped) as stopped:
            run_training(tmp_path / "run", tiny_config(corpus), stop_after=1)
        assert stopped.value.signal == signal.SIGTERM
    run_training(tmp_path / "run", tiny_config(corpus))
    assert state_bytes(tmp_path / "run") == state_bytes(uninterrupted)
    assert steps(tmp_path / "run") == steps(uninterrupted)


@pytest.mark.parametrize(
    "stop_after",
    [
        pytest.param(3, marks=pytest.mark.slow),
        4,
        pytest.param(5, marks=pytest.mark.slow),
        pytest.param(7, marks=pytest.mark.slow),
    ],
)
def test_one_interruption_is_bit_exact(corpus, uninterrupted, tmp_path, stop_after):
    with pytest.raises(Stopped):
        run_training(tmp_path / "run", tiny_config(corpus), stop_after=stop_after)
    assert steps(tmp_path / "run")[-1] == stop_after
    run_training(tmp_path / "run", tiny_config(corpus))
    assert state_bytes(tmp_path / "run") == state_bytes(uninterrupted)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    seen = [json.loads(line)["step"] for line in lines if "train_loss" in line]
    assert len(seen) == len(set(seen))


def test_the_last_k_checkpoints_are_kept_and_averaged(uninterrupted):
    assert steps(uninterrupted) == [8, 10, 12]
    kept = [load_params(uninterrupted, str(step)) for step in (8, 10, 12)]
    average = load_params(uninterrupted, "average")
    for mean, *parts in zip(*map(jax.tree.leaves, [average, *kept]), strict=True):
        np.testing.assert_allclose(mean, np.mean(parts, axis=0), rtol=1e-6, atol=1e-7)


def test_the_best_checkpoint_is_kept_in_addition_to_the_last(corpus, tmp_path):
    """The learning rate rises until the loss increases, so the best checkpoint is an early one."""
    config = tiny_config(corpus, valid=corpus)
    config.training.best_metric, config.training.num_steps = "loss", 24
    config.training.schedule, config.training.warmup_steps = "constant", 24
    config.training.learning_rate, config.training.clip_norm = 3.0, 0.0
    run_training(tmp_path / "run", config)
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    lines = list(lines)
    losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
    assert [line["step"] for line in lines if "average_loss" in line] == [24]
    assert best["checkpoint"] == min(losses, key=losses.get)
    assert best["checkpoint"] < 20 and best["checkpoint"] in steps(tmp_path / "run")
    assert steps(tmp_path / "run")[-3:] == [20, 22, 24]
    best_params = find_params(tmp_path / "run", "best")
    assert best_params == find_params(tmp_path / "run", str(best["checkpoint"]))


def test_patience_stops_early(corpus, tmp_path):
    config = tiny_config(corpus, valid=corpus)
    config.training.learning_rate = 0.0  # no improvement
    config.training.patience = 1
    run_training(tmp_path / "run", config)
    assert steps(tmp_path / "run")[-1] == 8


def save_as_before_windows(monkeypatch):
    """Save checkpoints as versions did whose epochs had no windows."""
    start_save = Checkpoints.start_save

    def without_window(self, state, data):
        start_save(self, state, {name: data[name] for name in data if name != "window"})

    monkeypatch.setattr(Checkpoints, "start_save", without_window)


def test_a_checkpoint_of_a_version_with_another_order_is_refused(corpus, tmp_path, monkeypatch):
    """Unless the change is allowed: then the epochs begin again, and the parameters are kept."""
    path, config = tmp_path / "run", tiny_config(corpus)
    config.training.checkpoint_every = config.training.eval_every = 12
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        save_as_before_windows(patch)
        run_training(path, config, stop_after=5)
    before = {file: file.read_bytes() for file in (path / "checkpoints").rglob("*")
              if file.is_file()}  # fmt: skip
    with pytest.raises(UserError, match="order, so the run cannot be resumed exactly") as refused:
        run_training(path, config)
    assert refused.value.code == CHECKPOINT and str(path) in str(refused.value)
    assert "resume with that version, or" in str(refused.value)
    assert str(refused.value).endswith(" --config.training.allow_data_change")
    assert before == {file: file.read_bytes() for file in before} and steps(path)[-1] == 5
    config.training.allow_data_change = True
    config.training.num_steps = 11
    run_training(path, config)
    assert steps(path)[-1] == 11
    log = (path / "train.log").read_text()
    assert "warning: the order of the training data has changed: reading restarts at epoch 0" in log
    _, data = state_bytes(path)  # 6 batches of 4 per epoch since
    assert (data["epoch"], data["window"], data["index"]) == (1, 0, 2)


def metrics(path):
    """The lines of metrics.jsonl without what depends on the time or the memory."""
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    names = ("step", "epoch", "loss", "norm", "tokens", "rate", "bleu", "chrf")
    return [{name: one for name, one in line.items() if name.endswith(names) and
             "per_second" not in name} for line in lines]  # fmt: skip


def data_lines(path):
    """The lines of train.log that describe the data, without the time before each."""
    lines = (path / "train.log").read_text().splitlines()
    first = [i for i, line in enumerate(lines) if "train: " in line][0]
    last = [i for i, line in enumerate(lines) if "vocabulary: " in line][0]
    return lines[first : last + 1]


@pytest.mark.slow
def test_training_from_a_cached_corpus_is_bit_exact(tmp_path, monkeypatch):
    """The text is read once: neither by a new run of the same data, nor to resume."""
    one, other = (write_corpus(tmp_path / f"{n}.tsv", n, seed=n) for n in (90, 70))
    path = Path(other.removeprefix("tsv:"))
    lines = [f"{line}\t{1.5 - i % 2}\n" for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join([*lines, f"\t{WORDS[0]}\t1\n", f"{'eins ' * 40}\tEINS\t1\n"]))
    config = tiny_config(f"2*tag:>>x<<:{one} + 0.5*weighted_{other}")
    config.training.num_steps = 6
    config.training.checkpoint_every = config.training.eval_every = 6
    config.data.deduplicate, config.data.user_defined = True, ">>x<<"
    cache = CorpusCache(tmp_path / "cache", 0)
    runs = {name: tmp_path / name for name in ("memory", "cached", "resumed")}
    run_training(runs["memory"], deepcopy(config))
    run_training(runs["cached"], deepcopy(config), cache=cache)
    assert len(list(cache.corpora.glob("*/store.json"))) == 2

    def refuse(*_):
        raise AssertionError("the text is read")

    monkeypatch.setattr(PartReader, "blocks", refuse)
    with pytest.raises(Stopped):
        run_training(runs["resumed"], deepcopy(config), stop_after=3, cache=cache)
    run_training(runs["resumed"], deepcopy(config), cache=cache)
    for name in ("cached", "resumed"):
        assert state_bytes(runs[name]) == state_bytes(runs["memory"])
        assert metrics(runs[name]) == metrics(runs["memory"])
    with_loss = [line for line in metrics(runs["memory"]) if "train_loss" in line]
    assert [line["step"] for line in with_loss] == list(range(1, 7))
    (log,) = {tuple(data_lines(runs[name])) for name in runs if name != "cached"}
    stored = [line for line in data_lines(runs["cached"]) if str(cache.directory) not in line]
    assert tuple(stored) == log
    assert "1 blank" in log[0] and "1 source longer than 15 tokens" in log[0]
    assert "duplicate" in log[0] and any("loss weights: 0.5 to 1.5" in line for line in log)


def test_a_different_configuration_is_refused_with_the_fields(corpus, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tiny_config(corpus)
    config.model.d_model, config.training.num_steps = 16, 13
    with pytest.raises(UserError) as refused:
        run_training(tmp_path / "run", config)
    assert refused.value.code == CONFIGURATION
    assert "model.d_model 8 → 16" in str(refused.value)
    assert "num_steps" not in str(refused.value)


def test_more_steps_resume_from_the_end(corpus, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tiny_config(corpus)
    config.training.num_steps = 14
    before = training_seconds(tmp_path / "run")
    run_training(tmp_path / "run", config)
    assert steps(tmp_path / "run") == [10, 12, 14]
    assert training_seconds(tmp_path / "run") > before > 0
    assert load_config(tmp_path / "run" / "config.json").training.num_steps == 14


def test_the_first_step_of_a_resumed_run_deletes_the_scores_of_its_end(
    corpus, uninterrupted, tmp_path
):
    run, config = tmp_path / "run", tiny_config(corpus)
    shutil.copytree(uninterrupted, run)
    (run / "scores.json").write_text("{}")
    config.training.num_steps = 14
    with pytest.raises(Stopped):
        run_training(run, config, stop_after=1)
    assert steps(run)[-1] == 13
    assert not (run / "scores.json").exists() and not (run / "average").exists()


def test_overwrite_starts_over_and_keeps_other_files(corpus, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    config = tiny_config(corpus)
    config.model.d_model = 16
    run_training(tmp_path / "run", config, overwrite=True)
    assert load_config(tmp_path / "run" / "config.json").model.d_model == 16
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_overwrite_deletes_all_files_that_a_run_writes(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    (tmp_path / "run" / "profile").mkdir()
    (tmp_path / "run" / "run.json.corrupt").touch()
    run = Run(tmp_path / "run")
    run.clear()
    run.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["LOCK"]


def test_a_training_of_one_step_is_evaluated(corpus, tmp_path):
    config = tiny_config(corpus, valid=corpus)
    config.training.num_steps = config.training.eval_every = config.training.checkpoint_every = 1
    run_training(tmp_path / "run", config)
    assert json.loads((tmp_path / "run" / "best.json").read_text())["checkpoint"] == 1


def test_a_run_in_use_is_refused(tmp_path):
    held = Run(tmp_path / "run")
    with pytest.raises(UserError, match="in use") as refused:
        Run(tmp_path / "run")
    assert refused.value.code == OUTPUT
    held.close()
    Run(tmp_path / "run").close()


def test_changed_data_is_refused_with_the_file_name(corpus, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tiny_config(corpus)
    path = corpus.removeprefix("tsv:")
    before = open(path, encoding="utf-8").read()
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write("eins\tEINS\n")
        with pytest.raises(UserError, match="pairs.tsv changed since") as refused:
            run_training(tmp_path / "run", config)
        assert refused.value.code == DATA
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(before)


def test_a_diverged_state_is_not_saved(corpus, tmp_path):
    config = tiny_config(corpus)
    config.training.learning_rate, config.training.clip_norm = 1e30, 0.0
    with pytest.raises(UserError, match="loss nan") as stopped:
        run_training(tmp_path / "run", config)
    assert stopped.value.code == DIVERGED
    for step in steps(tmp_path / "run"):
        leaves = jax.tree.leaves(load_params(tmp_path / "run", str(step)))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_the_error_for_an_unknown_checkpoint_lists_the_existing_ones(uninterrupted, tmp_path):
    for name in ("9", "012", "²"):
        with pytest.raises(UserError, match="8, 10, 12 and the average") as refused:
            find_params(uninterrupted, name)
        assert refused.value.code == CHECKPOINT
    for checkpoint in ("latest", "mean"):
        with pytest.raises(UserError, match="no checkpoint in"):
            find_params(tmp_path, checkpoint)
    for name in ("12", "mean", "old.tmp", "empty"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    for name in ("12", "mean", "old.tmp"):
        (tmp_path / "checkpoints" / name / "MANIFEST.sha256").touch()
    assert find_params(tmp_path, "mean") == tmp_path / "checkpoints" / "mean" / "params"
    for name in ("other", "old.tmp", "empty"):
        with pytest.raises(UserError, match=f"{name}' in .*: .* the steps 12, or mean"):
            find_params(tmp_path, name)


@pytest.mark.slow
def test_a_moving_average_is_kept_resumed_and_used(corpus, tmp_path):
    config = tiny_config(corpus)
    config.training.ema_decay = 0.9
    run_training(tmp_path / "whole", config)
    with pytest.raises(Stopped):
        run_training(tmp_path / "run", config, stop_after=5)
    run_training(tmp_path / "run", config)
    assert state_bytes(tmp_path / "run") == state_bytes(tmp_path / "whole")
    assert find_params(tmp_path / "run", "12").name == "ema"
    used, whole = (jax.tree.leaves(load_params(tmp_path / x, "12")) for x in ("run", "whole"))
    assert all((a == b).all() for a, b in zip(used, whole, strict=True))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "12" / "ema")
    with pytest.raises(UserError, match="12 is damaged: ema/"):  # no fallback to the parameters
        load_params(tmp_path / "run", "12")


def test_training_starts_from_another_run(corpus, uninterrupted, tmp_path):
    """With learning rate 0 the parameters and the vocabulary equal those of the other run."""
    config = tiny_config(corpus)
    config.training.init_from, config.training.learning_rate = str(uninterrupted), 0.0
    run_training(tmp_path / "run", config)
    for a, b in zip(
        *(
            jax.tree.leaves(load_params(path, "latest"))
            for path in (uninterrupted, tmp_path / "run")
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    joint = "vocab/joint.txt"
    assert (tmp_path / "run" / joint).read_bytes() == (uninterrupted / joint).read_bytes()
    again = tiny_config(corpus)
    again.model, again.training = ModelConfig(), config.training
    run = Run(tmp_path / "run")
    run.resume_config(again)  # as at the start, defaults are set from the other run
    run.close()
    assert again.model == load_config(tmp_path / "run" / "config.json").model
    config.model.d_ff = 32
    with pytest.raises(UserError, match="model.d_ff 16 → 32"):
        run_training(tmp_path / "other", config)

"""Resuming after an interruption is bit-exact; which checkpoints are kept and averaged; errors."""

import json
import shutil
import signal
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from seq2seq.config.tree import load_config
from seq2seq.data.corpora.part_reader import PartReader
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.models import find_params, load_params
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, DIVERGED, OUTPUT, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.scripts.pages.run_records import training_seconds
from seq2seq.storage.best_checkpoint import BestCheckpoint
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.storage.newest_step import stored_data
from seq2seq.storage.run import Run
from seq2seq.storage.run_files import steps
from seq2seq.training import trainer
from seq2seq.training.dry_run import dry_run
from seq2seq.training.resume import changed_files
from tests.support.runs import (
    change_metadata,
    run_config,
    run_training,
    shared_corpus,
    state_bytes,
    stopped_run,
    train_cheaply,
    whole_run,
)
from tests.support.tiny import WORDS, tiny_config, write_corpus

ONE_STEP = {f"training__{name}": 1 for name in ("num_steps", "eval_every", "checkpoint_every")}


def test_twelve_steps_are_three_epochs():
    _, data = state_bytes(whole_run())
    assert (data["epoch"], data["index"]) == (3, 0)


@pytest.mark.parametrize(
    "stop_after", [3, *(pytest.param(step, marks=pytest.mark.slow) for step in (4, 5, 7))]
)
def test_one_interruption_is_bit_exact(tmp_path, stop_after):
    """The shared run stopped after step 4, which ends an epoch, evaluates and saves."""
    with pytest.raises(Stopped):
        train_cheaply(tmp_path / "run", run_config(), stop_after=stop_after)
    assert steps(tmp_path / "run")[-1] == stop_after
    train_cheaply(tmp_path / "run", run_config())
    assert_equal_to_the_whole_run(tmp_path / "run")


def assert_equal_to_the_whole_run(run):
    assert state_bytes(run) == state_bytes(whole_run())
    lines = (run / "metrics.jsonl").read_text().splitlines()
    seen = [json.loads(line)["step"] for line in lines if "train_loss" in line]
    assert len(seen) == len(set(seen))


def test_the_last_k_checkpoints_are_kept_and_averaged():
    assert steps(whole_run())[-3:] == [8, 10, 12]
    kept = [load_params(whole_run(), str(step)) for step in (8, 10, 12)]
    average = load_params(whole_run(), "average")
    for mean, *parts in zip(*map(jax.tree.leaves, [average, *kept]), strict=True):
        np.testing.assert_allclose(mean, np.mean(parts, axis=0), rtol=1e-6, atol=1e-7)


def evaluate_as(monkeypatch, *losses):
    """Evaluations return these losses, in turn."""
    losses = iter(losses)
    results = {"valid_loss": 0.0, "valid_nll": 1.0, "valid_perplexity": 2.0, "valid_accuracy": 0.5}
    monkeypatch.setattr(
        "seq2seq.training.evaluate.held_out_loss", lambda *_: results | {"valid_loss": next(losses)}
    )


def test_the_best_checkpoint_is_kept_in_addition_to_the_last_and_patience_stops_early(
    tmp_path, monkeypatch
):
    """Evaluations after steps 4, 8 and 12, and of the average."""
    evaluate_as(monkeypatch, 1.0, 2.0, 1.0, 3.0)
    run = tmp_path / "run"
    train_cheaply(run, run_config(training__num_steps=24, training__patience=2))
    assert json.loads((run / "best.json").read_text()) == {"checkpoint": 4, "loss": 1.0}
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
    assert losses == {4: 1.0, 8: 2.0, 12: 1.0}
    assert [line["step"] for line in lines if "average_loss" in line] == [12]
    assert steps(run) == [4, 8, 10, 12]
    assert find_params(run, "best") == find_params(run, "4")


def test_scores_of_other_sentences_are_not_compared():
    """A checkpoint names the validation data, and the number of its sentences that were translated
    for its best score. Other training data does not change the score of a checkpoint."""
    assert stored_data(whole_run(), 12)["eval_sentences"] == run_config().training.eval_sentences
    files, lines = {"train": {"a.tsv": "45"}, "valid": {"dev.tsv": "0123"}}, []
    other_valid, other_train = (files | {part: {"b.tsv": "67"}} for part in ("valid", "train"))
    entry = {"checkpoint": 4, "chrf": 14.0, "loss": 3.0}
    stored = {"best": entry, "without_improvement": 1, "evaluated_step": 4, "files": files}
    for metric, before, changed in (
        ("chrf", {"eval_sentences": 7}, "training.eval_sentences"),
        ("chrf", {"eval_sentences": 0}, ""),
        ("chrf", {}, ""),  # of an earlier version
        ("loss", {"eval_sentences": 7}, ""),
        ("chrf", {"files": other_train, "eval_sentences": 0}, ""),
        ("loss", {"files": other_train}, ""),
        ("chrf", {"files": other_valid, "eval_sentences": 0}, "the validation data"),
        ("loss", {"files": other_valid}, "the validation data"),
    ):
        best = BestCheckpoint(metric)
        best.restore(stored | before, files, 0, lines.append)
        assert best.entry == ({} if changed else entry)
        assert (
            lines == [f"warning: {changed} has changed: the best score is reset"][: bool(changed)]
        )
        lines.clear()


def test_a_checkpoint_of_a_version_with_another_order_is_refused(tmp_path):
    """Unless the change is allowed: then the epochs begin again, and the parameters are kept."""
    path = tmp_path / "run"
    shutil.copytree(stopped_run(), path)
    change_metadata(path, lambda data: data.pop("window"))  # earlier epochs had no windows
    before = {file: file.read_bytes() for file in (path / "checkpoints").rglob("*")
              if file.is_file()}  # fmt: skip
    with pytest.raises(UserError, match="order, so the run cannot be resumed exactly") as refused:
        train_cheaply(path, run_config())
    assert refused.value.code == CHECKPOINT and str(path) in str(refused.value)
    assert "resume with that version, or" in str(refused.value)
    assert str(refused.value).endswith(" --config.training.allow_data_change")
    assert before == {file: file.read_bytes() for file in before} and steps(path)[-1] == 4
    train_cheaply(path, run_config(training__allow_data_change=True, training__num_steps=10))
    assert steps(path)[-1] == 10
    log = (path / "train.log").read_text()
    assert "warning: the order of the training data has changed: reading restarts at epoch 0" in log
    _, data = state_bytes(path)  # 6 batches of 4 per epoch since
    assert (data["epoch"], data["window"], data["index"]) == (1, 0, 2)


def metrics(path):
    """The lines of metrics.jsonl without the values that depend on time or memory."""
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    names = ("step", "epoch", "loss", "norm", "tokens", "rate", "bleu", "chrf")
    return [{name: value for name, value in line.items() if name.endswith(names) and
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
    first, second = (write_corpus(tmp_path / f"{n}.tsv", n, seed=n) for n in (90, 70))
    path = Path(second.removeprefix("tsv:"))
    lines = [f"{line}\t{1.5 - i % 2}\n" for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join([*lines, f"\t{WORDS[0]}\t1\n", f"{'eins ' * 40}\tEINS\t1\n"]))
    config = tiny_config(
        f"2*tag:>>x<<:{first} + 0.5*weighted_{second}",
        training__num_steps=6,
        training__checkpoint_every=6,
        training__eval_every=6,
        data__deduplicate=True,
        data__user_defined=">>x<<",
    )
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


def test_changed_files_are_those_that_were_added_removed_or_changed():
    stored = {"train": {"same": "1", "changed": "2", "removed": "3"}}
    current = {"train": {"same": "1", "changed": "4", "added": "5"}}
    assert changed_files(stored, current) == ["changed", "removed", "added"]


def test_a_different_configuration_is_refused_with_the_fields(tmp_path):
    shutil.copytree(whole_run(), tmp_path / "run")
    with pytest.raises(UserError) as refused:
        train_cheaply(tmp_path / "run", run_config(model__d_model=16, training__num_steps=13))
    assert refused.value.code == CONFIGURATION
    assert "model.d_model 8 → 16" in str(refused.value)
    assert "num_steps" not in str(refused.value)


def test_more_steps_resume_from_the_end_and_the_first_one_deletes_its_results(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole_run(), run)
    (run / "scores.json").write_text("{}")
    before = training_seconds(run)
    with pytest.raises(Stopped):
        train_cheaply(run, run_config(training__num_steps=14), stop_after=1)
    assert steps(run)[-1] == 13
    assert not (run / "scores.json").exists() and not (run / "average").exists()
    train_cheaply(run, run_config(training__num_steps=14))
    assert steps(run)[-3:] == [10, 12, 14]
    assert training_seconds(run) > before > 0
    assert load_config(run / "config.json").training.num_steps == 14


@pytest.mark.parametrize("last, part", [(11, "average"), (12, "save_average")])
def test_an_evaluation_that_is_repeated_is_recorded_once(tmp_path, monkeypatch, last, part):
    """The training is stopped before or after the evaluation of its average. Step 11 is evaluated
    after its checkpoint was saved, step 12 before."""
    run, config = tmp_path / "run", run_config(training__num_steps=last)
    shutil.copytree(stopped_run(), run)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Checkpoints, part, raise_stopped)
        train_cheaply(run, config)
    assert [line["step"] for line in metrics(run) if "valid_bleu" in line] == [4, 8, last]
    train_cheaply(run, config)
    expected = [(4, "valid_bleu"), (8, "valid_bleu"), (last, "valid_bleu"), (last, "average_bleu")]
    for _ in range(2):
        evaluations = [line for line in metrics(run) if not any(map(is_of_training, line))]
        names = [(line["step"], name) for line in evaluations for name in line if "bleu" in name]
        assert names == expected
        train_cheaply(run, config)  # complete: nothing changes


def raise_stopped(*arguments):
    raise Stopped(signal.SIGTERM)


def is_of_training(name):
    return name.startswith("train_")


def test_overwrite_starts_over_and_keeps_other_files(tmp_path):
    """The new training has one step, which is evaluated."""
    shutil.copytree(stopped_run(), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    config = run_config(training__seed=1, **ONE_STEP)
    train_cheaply(tmp_path / "run", config, overwrite=True)
    assert load_config(tmp_path / "run" / "config.json").training.seed == 1
    assert steps(tmp_path / "run") == [1]
    assert json.loads((tmp_path / "run" / "best.json").read_text())["checkpoint"] == 1
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_overwrite_deletes_all_files_that_a_run_writes(tmp_path):
    shutil.copytree(whole_run(), tmp_path / "run")
    (tmp_path / "run" / "profile").mkdir()
    for name in ("run.json.corrupt", "run.json.corrupt-2"):
        (tmp_path / "run" / name).touch()
    run = Run(tmp_path / "run")
    run.clear()
    run.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["LOCK"]


def test_a_run_in_use_is_refused(tmp_path):
    held = Run(tmp_path / "run")
    with pytest.raises(UserError, match="in use") as refused:
        Run(tmp_path / "run")
    assert refused.value.code == OUTPUT
    held.close()
    Run(tmp_path / "run").close()


def without_run_json(run):
    (run / "run.json").unlink()


def without_config(run):
    (run / "config.json").unlink()


def without_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


def with_damaged_checkpoints(run):
    for manifest in run.glob("checkpoints/*/MANIFEST.sha256"):
        manifest.write_text("damaged")


@pytest.mark.parametrize(
    ("fault", "data_changes", "code", "message"),
    [
        (lambda run: None, True, DATA, "pairs.tsv changed since"),
        (without_run_json, True, DATA, "pairs.tsv changed since"),
        (without_config, False, CHECKPOINT, "has checkpoints but no config.json"),
        (with_damaged_checkpoints, False, CHECKPOINT, "no checkpoint in .* does not match its own"),
        (
            without_checkpoints,
            False,
            CHECKPOINT,
            "can be used: it is empty; .* another --workdir and --config.training.init_from=.*run$",
        ),
        (shutil.rmtree, False, CONFIGURATION, "run is the run itself"),
    ],
)
def test_what_cannot_be_resumed_is_refused_by_a_dry_run_and_by_a_training(
    tmp_path, fault, data_changes, code, message
):
    path, config = tmp_path / "run", run_config()
    shutil.copytree(whole_run(), path)
    fault(path)
    if not path.exists():
        config = run_config(training__init_from=str(path))
    corpus = Path(shared_corpus().removeprefix("tsv:"))
    before, files = corpus.read_text(encoding="utf-8"), contents(tmp_path)
    corpus.write_text(before + "eins\tEINS\n" * data_changes, encoding="utf-8")
    try:
        with pytest.raises(UserError, match=message) as refused:
            dry_run(config, path, None, False, "off")
        assert refused.value.code == code and contents(tmp_path) == files
        with pytest.raises(UserError, match=message) as again:
            train_cheaply(path, config)
        assert (again.value.code, str(again.value)) == (code, str(refused.value))
    finally:
        corpus.write_text(before, encoding="utf-8")


def test_damaged_parameters_to_start_from_are_refused_by_a_dry_run_and_by_a_training(tmp_path):
    start = tmp_path / "start"
    shutil.copytree(whole_run(), start)
    (find_params(start, "best") / "_METADATA").write_text("{}")
    config = run_config(training__init_from=str(start))
    with pytest.raises(UserError, match="params/_METADATA") as refused:
        dry_run(config, tmp_path / "run", None, False, "off")
    with pytest.raises(UserError) as again:
        train_cheaply(tmp_path / "run", config)
    assert refused.value.code == again.value.code == CHECKPOINT
    assert str(refused.value) == str(again.value)


def test_a_dry_run_of_a_directory_that_overwrite_does_not_delete_is_refused(tmp_path):
    (tmp_path / "samples").mkdir()
    with pytest.raises(UserError, match="holds files but no run"):
        dry_run(run_config(), tmp_path, None, True, "off")


def contents(directory):
    """Path → bytes of all files, and None for directories."""
    return {x: x.read_bytes() if x.is_file() else None for x in directory.rglob("*")}


@pytest.mark.parametrize(
    ("last", "message"), [(3, "loss nan"), (4, r"step 4 is not saved: \.params.* has NaN")]
)
def test_a_diverged_state_is_not_saved(tmp_path, monkeypatch, last, message):
    """The parameters are not finite after the step `last`; step 4 is to be saved."""

    def diverging(step, *_):
        def diverging_step(state, batch):
            state, metrics = step(state, batch)
            if state.step == last:
                state = state._replace(params=jax.tree.map(lambda x: x * np.nan, state.params))
            return state, metrics

        return diverging_step

    monkeypatch.setattr("seq2seq.training.trainer.with_profile", diverging)
    with pytest.raises(UserError, match=message) as stopped:
        train_cheaply(tmp_path / "run", run_config(data__valid=""))
    assert stopped.value.code == DIVERGED
    assert steps(tmp_path / "run") == [2]
    leaves = jax.tree.leaves(load_params(tmp_path / "run", "2"))
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_the_error_for_an_unknown_checkpoint_lists_the_existing_ones(tmp_path):
    for name in ("9", "012", "²"):
        with pytest.raises(UserError, match="8, 10, 12 and the average") as refused:
            find_params(whole_run(), name)
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
def test_a_moving_average_is_kept_resumed_and_used(tmp_path):
    config = partial(run_config, training__ema_decay=0.9)
    train_cheaply(tmp_path / "whole", config())
    with pytest.raises(Stopped):
        train_cheaply(tmp_path / "run", config(), stop_after=5)
    train_cheaply(tmp_path / "run", config())
    assert state_bytes(tmp_path / "run") == state_bytes(tmp_path / "whole")
    assert find_params(tmp_path / "run", "12").name == "ema"
    used, whole = (jax.tree.leaves(load_params(tmp_path / x, "12")) for x in ("run", "whole"))
    assert all((a == b).all() for a, b in zip(used, whole, strict=True))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "12" / "ema")
    with pytest.raises(UserError, match="12 is damaged: ema/"):  # no fallback to the parameters
        load_params(tmp_path / "run", "12")


def test_training_starts_from_another_run(tmp_path, monkeypatch):
    """The first parameters and the vocabulary are those of the other run."""
    states, place = [], trainer.place_state

    def recorded(state):
        states.append(jax.device_get(state))
        return place(state)

    monkeypatch.setattr(trainer, "place_state", recorded)
    start = partial(run_config, training__init_from=str(whole_run()))
    train_cheaply(tmp_path / "run", start(**ONE_STEP))
    (state,), initial_params = states, load_params(whole_run(), "best")
    assert state.step == 0
    jax.tree.map(np.testing.assert_array_equal, state.params, initial_params)
    joint = "vocab/joint.txt"
    assert (tmp_path / "run" / joint).read_bytes() == (whole_run() / joint).read_bytes()
    again = replace(start(), model=ModelConfig())
    run = Run(tmp_path / "run")
    again = run.resume_config(again)  # as at the start, defaults are set from the other run
    run.close()
    assert again.model == load_config(tmp_path / "run" / "config.json").model
    with pytest.raises(UserError, match="model.d_ff 16 → 32"):
        train_cheaply(tmp_path / "other", start(model__d_ff=32))

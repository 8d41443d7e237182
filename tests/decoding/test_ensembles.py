"""Ensembles of runs and checkpoints: members, their order, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from seq2seq.config.tree import load_config, save_config
from seq2seq.decoding.ensembles import members_of, normalized_weights, open_ensemble
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.storage.best_checkpoint import write_best
from seq2seq.storage.manifest import write_manifest
from seq2seq.storage.run_files import params_directory, restore_params
from tests.support.models.tiny_tokenizers import write_multilingual_run
from tests.support.tiny import write_run


def add_checkpoint(run: Path, step: int, params) -> None:
    directory = run.absolute() / "checkpoints" / str(step)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory / "params", params)
    write_manifest(directory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs; the steps 2 and 4 of the first are scaled copies of its average."""
    path = tmp_path_factory.mktemp("ensembles")
    for seed, name in enumerate("ab"):
        write_run(path / name, seed)
    average = restore_params(path / "a", "average")
    for step in (2, 4):
        add_checkpoint(path / "a", step, jax.tree.map(lambda x, n=step: x * n, average))
    return path / "a", path / "b", average


def test_one_checkpoint_is_taken_of_each_run_and_several_checkpoints_of_one_run():
    assert members_of("a", "best") == [(Path("a"), "best")]
    assert members_of(["a", "b"], 7) == [(Path("a"), "7"), (Path("b"), "7")]
    for checkpoint in ("2000,2100", [2000, 2100], ("2000", 2100)):
        assert members_of(Path("a"), checkpoint) == [(Path("a"), "2000"), (Path("a"), "2100")]
    assert members_of("~/a,b", "best")[0].directory == Path.home() / "a,b"  # one path


def test_as_many_checkpoints_as_runs_are_taken_in_pairs():
    members = members_of(["a", "a", "b"], "2,4,average")
    assert members == [(Path("a"), "2"), (Path("a"), "4"), (Path("b"), "average")]


@pytest.mark.parametrize("run, checkpoint", [(["a", "b"], "1,2,3"), (["a", "b", "c"], [1, 2])])
def test_other_numbers_of_checkpoints_and_runs_are_refused(run, checkpoint):
    message = f"--checkpoint: expected one .* for each of {len(run)} runs, got {5 - len(run)} "
    with pytest.raises(UserError, match=message) as caught:
        members_of(run, checkpoint)
    assert caught.value.code == CONFIGURATION


@pytest.mark.parametrize(
    "run, checkpoint, part",
    [
        ([], "best", r"--workdir: expected the names of .*, got \[\]; give each name"),
        (["a", ""], "best", r"--workdir: expected the names of .*, got \['a', ''\]"),
        ("", "best", "--workdir: expected the names of"),  # not the current directory
        ("a", [], "--checkpoint: expected one .*, got 0 "),
        (["a", "b"], [], "--checkpoint: expected one .*, got 0 "),
    ],
    ids=str,
)
def test_no_run_no_checkpoint_and_an_empty_name_are_refused(run, checkpoint, part):
    with pytest.raises(UserError, match=part) as caught:
        members_of(run, checkpoint)
    assert caught.value.code == CONFIGURATION


def test_the_checkpoints_of_an_ensemble_are_loaded_in_the_given_order(runs):
    run, other_run, average = runs
    translator = Translator.load([run, run, other_run], checkpoint="4,2,average", beam_size=3)
    assert translator.decoding.beam_size == 3 and len(translator.engine.models) == 3
    first, second, third = translator.engine.params()
    for params, factor in ((first, 4), (second, 2)):
        jax.tree.map(
            lambda x, y, n=factor: np.testing.assert_array_equal(x, y * n), params, average
        )
    jax.tree.map(np.testing.assert_array_equal, third, restore_params(other_run, "best"))


def test_the_checkpoint_of_a_run_that_is_trained_meanwhile_is_that_of_the_call(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    write_best(run, {"checkpoint": 2})
    before = members_of(run, "best,latest,average")
    write_best(run, {"checkpoint": "average"})
    shutil.copytree(run / "checkpoints" / "4", run / "checkpoints" / "6")
    assert [member.checkpoint for member in before] == ["2", "4", "average"]
    now = members_of(run, "best,latest,average")
    assert [member.checkpoint for member in now] == ["average", "6", "average"]


def test_a_missing_checkpoint_of_an_ensemble_is_refused(runs):
    with pytest.raises(UserError, match="no checkpoint '3' in .*steps 2, 4 and the av") as caught:
        Translator.load(runs[0], checkpoint=[2, 3])
    assert caught.value.code == CHECKPOINT


def test_a_run_without_steps_names_its_averages(runs, tmp_path):
    _, run, _ = runs
    with pytest.raises(UserError, match="'latest' in .* no steps: .* --checkpoint=average") as no:
        Translator.load(run, checkpoint="latest")
    assert no.value.code == CHECKPOINT
    (tmp_path / "checkpoints" / "mean" / "params").mkdir(parents=True)
    with pytest.raises(UserError, match="'average' in .*: expected mean; set --checkpoint=mean"):
        params_directory(tmp_path, "average")
    with pytest.raises(UserError, match="train first: train.py --workdir='.*/none yet'$"):
        params_directory(tmp_path / "none yet", "latest")


def test_models_with_other_special_tokens_are_refused(runs, tmp_path):
    """The search begins and ends the translations of all members with the tokens of the first."""
    shutil.copytree(runs[1], tmp_path / "run")
    config = load_config(tmp_path / "run" / "config.json")
    config = replace(config, model=replace(config.model, start_id=5))
    save_config(config, tmp_path / "run" / "config.json")
    with pytest.raises(UserError, match="start=5.* differ from those of .*start=1") as caught:
        Translator.load([runs[0], tmp_path / "run"])
    assert caught.value.code == CHECKPOINT


def test_the_start_token_of_a_language_replaces_those_of_the_members(tmp_path):
    """A run stores the start token of the language that it was trained with."""
    directories = [tmp_path / name for name in "ab"]
    for directory, start in zip(directories, (6, 7), strict=True):
        write_multilingual_run(directory, target_start="{target}")
        config = load_config(directory / "config.json")
        config = replace(config, model=replace(config.model, start_id=start))
        save_config(config, directory / "config.json")
    configs, _ = open_ensemble(members_of(directories, "best"))
    assert [config.model.start_id for config in configs] == [6, 7]
    translator = Translator.load(directories, target_language="kor_Hang")
    first, second = (model.config.start_id for model in translator.engine.models)
    assert first == second == translator.target_tokenizer.languages["kor_Hang"]


def test_weights_are_divided_by_their_sum():
    assert normalized_weights("3,1", 2) == normalized_weights([3, 1], 2) == (0.75, 0.25)
    assert normalized_weights([1e308] * 4, 4) == (0.25,) * 4
    assert normalized_weights((1e-320, 1), 2)[1] == 1.0


@pytest.mark.parametrize(
    "weights, part",
    [
        ("0.7,x", "expected positive numbers such as 0.7,0.3; got '0.7,x'"),
        ([0.0, 1.0], "positive numbers"),
        ([-1.0, 2.0], "positive numbers"),
        (["nan", 1], "positive numbers"),
        ([1, float("inf")], "positive numbers"),
        ([None, 1], "positive numbers"),
        ("0.5", "as many weights as models, 2, got 1"),
        ([1, 1, 1], "as many weights as models, 2, got 3"),
    ],
    ids=str,
)
def test_invalid_weights_are_refused_before_parameters_are_read(runs, weights, part):
    with pytest.raises(UserError, match=f"^--weights: .*{part}") as caught:
        Translator.load(runs[:2], checkpoint="3", weights=weights)
    assert caught.value.code == CONFIGURATION


def test_a_translator_with_other_options_keeps_the_weights(runs):
    translator = Translator.load(runs[:2], weights=(1, 3))
    changed = translator.with_options(alpha=1.0)
    assert translator.weights == changed.weights == (0.25, 0.75)
    for engine in (translator.engine, changed.engine):
        assert engine.options.weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_members_of_an_ensemble_have_the_same_bits_on_several_devices(runs, dtype):
    """They are read onto their devices, and the host keeps no copy of them."""
    expected, divided = (
        Translator.load(list(runs[:2]), model_parallel=devices, dtype=dtype).engine.variables
        for devices in (1, 2)
    )
    assert all(x._npy_value is None for x in jax.tree.leaves(divided))
    assert any(len(x.sharding.spec) for x in jax.tree.leaves(divided))
    assert jax.tree.map(lambda x: x.dtype, divided) == jax.tree.map(lambda x: x.dtype, expected)
    jax.tree.map(np.testing.assert_array_equal, divided, expected)

"""Models in object storage: what is downloaded, once, and what is refused."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seq2seq.files import remote
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.paths import working_copy
from seq2seq.storage.manifest import write_manifest
from seq2seq.storage.replicas import remote_model as module
from seq2seq.storage.replicas.remote_model import _download_files, local_model
from seq2seq.training.vocabulary import initial_directory, initial_tokenizers, is_same_run
from tests.support.tiny import tiny_config, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with an average, and two steps that also have the state of the optimizer."""
    path = tmp_path_factory.mktemp("runs") / "run"
    write_run(path)
    for step in ("5", "10"):
        directory = path / "checkpoints" / step
        write_run(path.parent / step, seed=int(step))
        directory.parent.mkdir(exist_ok=True)
        (path.parent / step / "average").rename(directory)
        (directory / "rest").mkdir()
        (directory / "rest" / "moments").write_bytes(step.encode())
        write_manifest(directory)
    (path / "best.json").write_text(json.dumps({"checkpoint": 5}))
    (path / "train.log").write_text("a line")
    return path


def store(run, storage):
    for path in run.rglob("*"):
        if path.is_file():
            storage[f"run/{path.relative_to(run).as_posix()}"] = path.read_bytes()


def same(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def test_a_checkpoint_is_downloaded_once_without_what_decoding_does_not_read(
    run, storage, tmp_path, monkeypatch
):
    store(run, storage)
    url = f"{storage.url}/run"
    for checkpoint, name in (("best", "5"), ("latest", "10"), ("average", "average")):
        local = local_model(url, checkpoint, str(tmp_path))
        assert same(load_params(local, checkpoint), load_params(run, name))
        assert open_model(local, checkpoint)[0] == open_model(run, name)[0]
    names = {path.relative_to(local).parts[-1] for path in local.rglob("*")}
    assert {"MANIFEST.sha256", "5", "10", "average"} < names
    assert not names & {"moments", "train.log", "rest"}
    downloaded = []
    monkeypatch.setattr(remote, "download", lambda url, path: downloaded.append(url))
    assert model_directory(url, "5", str(tmp_path)) == local and not downloaded
    assert model_directory(str(run)) == run
    monkeypatch.undo()
    (local / "checkpoints" / "5" / "MANIFEST.sha256").unlink()  # its deletion was interrupted
    assert same(load_params(local_model(url, "5", str(tmp_path)), "5"), load_params(run, "5"))


def test_changes_and_damage_of_the_objects_are_noticed(run, storage, tmp_path):
    store(run, storage)
    url = f"{storage.url}/run"
    local_model(url, "best", str(tmp_path))
    storage["run/best.json"] = b'{"checkpoint": 10}'
    for name in storage.names():
        if name.startswith("run/checkpoints/5/"):
            remote.delete(f"{storage.url}/{name}")
    local = local_model(url, "best", str(tmp_path))
    assert same(load_params(local, "best"), load_params(run, "10"))
    assert [path.name for path in (local / "checkpoints").iterdir()] == ["10"]
    storage["run/average/params/_METADATA"] = b"{}"
    storage["run/checkpoints/10/MANIFEST.sha256"] = b"damaged"
    for checkpoint, message in (
        ("10", "checkpoints/10 is damaged: MANIFEST.sha256 does not match its own hash"),
        ("average", "average is damaged: params/_METADATA does not match"),
        ("7", "no checkpoint '7' in .* expected one of average, 10"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            local_model(url, checkpoint, str(tmp_path))
        assert caught.value.code == CHECKPOINT
    assert not (local / "average").exists()
    with pytest.raises(UserError, match="holds no model"):
        local_model(f"{storage.url}/other", "best", str(tmp_path))
    storage["adapter/adapter_config.json"] = b"{}"  # refused by name when it is opened
    adapter = local_model(f"{storage.url}/adapter", "best", str(tmp_path))
    assert (adapter / "adapter_config.json").exists()


def test_a_directory_of_another_project_is_downloaded_with_the_weights_that_are_read(
    storage, tmp_path
):
    others, index = {"config.json", "spiece.model"}, "pytorch_model.bin.index.json"
    shards = ["pytorch_model-00001-of-00002.bin", "part_b.bin"]  # the index may give any name
    for model, weights in (
        ("safe", ["model.safetensors"]), ("torch", ["pytorch_model.bin"]),
        ("shards", [index, *shards]), ("flax", ["flax_model.msgpack"]),
    ):  # fmt: skip
        less = ["flax_model.msgpack", "training_args.bin", "a.h5", "model.fp16.safetensors"]
        for name in (*others, *weights, *less, *(["pytorch_model.bin"] * (model == "safe"))):
            storage[f"{model}/{name}"] = name.encode()
        local = local_model(f"{storage.url}/{model}", "best", str(tmp_path))
        expected = working_copy(f"{storage.url}/{model}", str(tmp_path)).with_name(local.name)
        assert local == expected
        names = {path.name for path in local.iterdir()} - {".objects.json"}
        assert names == {*others, *weights}


def test_an_object_whose_name_leaves_the_directory_is_not_downloaded(tmp_path, monkeypatch):
    names = "config.json", "vocab/a.json", "../b.json", "vocab/../../c.json", "../vocab/d.json"
    downloaded = []
    monkeypatch.setattr(module, "download_file", lambda url, path: downloaded.append(url))
    _download_files("gs://b/m", tmp_path, {name: (1, "v") for name in names})
    assert downloaded == ["gs://b/m/config.json", "gs://b/m/vocab/a.json"]


def test_training_starts_from_a_model_in_object_storage(run, storage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store(run, storage)
    config = tiny_config("tsv:nowhere")
    config.training.init_from = f"{storage.url}/run"
    config.validate()
    _, tokenizers = initial_tokenizers(config, initial_directory(config))
    assert tokenizers[0].size == open_model(run, "best")[1][0].size


def test_a_run_is_recognised_by_its_path_or_url(tmp_path):
    local = SimpleNamespace(name=str(tmp_path), path=tmp_path)
    stored = SimpleNamespace(name="gs://b/run", path=tmp_path)
    assert is_same_run(f"{tmp_path}/x/..", local) and is_same_run("gs://b/run/", stored)
    assert not is_same_run("gs://b/other", stored) and not is_same_run("gs://b/run", local)

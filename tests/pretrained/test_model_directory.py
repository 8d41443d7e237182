"""Models by name on a small server: what is fetched, what is in the cache, and what is refused."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from seq2seq.cli import path_flags
from seq2seq.decoding.ensembles import Member, members_of
from seq2seq.decoding.stated_settings import stated_settings
from seq2seq.files import hub as hub_names
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.storage.run import Run
from seq2seq.train import prepare_data
from seq2seq.training.resume import initial_params
from tests.decoding.command.test_resumable_output import fingerprint_of
from tests.pretrained.test_adapters import MARIAN
from tests.pretrained.test_convert import ROOT, call, fine_tuning
from tests.pretrained.test_weight_files import sharded
from tests.support.adapters import write_adapter
from tests.support.hub_server import commit_of, running_hub, use_endpoint
from tests.support.models.tiny_marian import write_marian
from tests.support.models.tiny_pretrained import change_json, write_fairseq, write_t5

file_download = pytest.importorskip("huggingface_hub.file_download")
constants = pytest.importorskip("huggingface_hub.constants")

OTHERS = (
    ".gitattributes", "README.md", "tf_model.h5", "pytorch_model.bin", "rust_model.ot",
    "flax_model.msgpack", "training_args.bin", "optimizer.pt", "tokenizer_old.json",
)  # fmt: skip
TOKENIZER = {
    "marian": ["generation_config.json", "source.spm", "target.spm", "tokenizer_config.json",
               "vocab.json"],
    "t5": ["spiece.model", "tokenizer_config.json"],
    "m2m_100": ["sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer_config.json"],
    "pegasus": ["generation_config.json", "spiece.model", "tokenizer_config.json"],
}  # fmt: skip
SHARDS = [f"model-{part:05}-of-00003.safetensors" for part in (1, 2, 3)]


@pytest.fixture(scope="module")
def server():
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The server, with an empty cache and without requests so far."""
    use_endpoint(monkeypatch, server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    server.requests.clear()
    server.headers.clear()
    server.repositories.clear()
    return server


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory of each of some families, with files that are not read."""
    paths = {family: tmp_path_factory.mktemp("models") / family for family in TOKENIZER}
    write_marian(paths["marian"])
    single = tmp_path_factory.mktemp("single")
    write_t5(single)
    sharded(single, paths["t5"])
    (paths["t5"] / "model-00001-of-00002.safetensors").write_bytes(b"of another version")
    for family in ("m2m_100", "pegasus"):
        paths[family].mkdir()
        write_fairseq(paths[family], family)
    (paths["m2m_100"] / "special_tokens_map.json").write_text("{}")
    (paths["pegasus"] / "generation_config.json").write_text('{"num_beams": 3}')
    for path in paths.values():
        for name in OTHERS:
            (path / name).write_bytes(b"not read")
    return paths


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def unreachable():
    """The URL of a port that refuses connections."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def test_what_the_family_reads_is_fetched_once_and_nothing_else(hub, models):
    for family, path in models.items():
        name, commit = f"hf://o/{family}", hub.add(f"o/{family}", path)
        directory = model_directory(name)
        weights = ["model.safetensors"]
        if family == "t5":
            weights = [*SHARDS, "model.safetensors.index.json"]
        assert hub.fetched() == sorted(["config.json", *TOKENIZER[family], *weights])
        assert directory.name == commit
        (config, (tokenizer, _)), (expected, (original, _)) = (
            open_model(place, "best") for place in (directory, path)
        )
        assert config == expected and tokenizer.serialized() == original.serialized()
        assert equal(load_params(directory, "best"), load_params(path, "best"))
        hub.requests.clear()
        assert model_directory(name) == directory
        assert hub.requests == [f"GET /api/models/o/{family}/revision/main"]
        hub.requests.clear()
        assert model_directory(f"{name}@{commit}") == directory and not hub.requests


def test_the_base_model_of_an_adapter_is_fetched_once(hub, models, tmp_path):
    hub.add("o/base", models["marian"])
    local, adapter = tmp_path / "local", tmp_path / "adapter"
    write_adapter(local, models["marian"], MARIAN)
    write_adapter(adapter, models["marian"], MARIAN, base_model_name_or_path="o/base")
    (adapter / "optimizer.pt").write_bytes(b"not read")
    commit = hub.add("o/adapter", adapter, 3)
    directory = model_directory("hf://o/adapter")
    of_adapter = ["adapter_config.json", "adapter_model.safetensors"]
    of_base = ["config.json", "model.safetensors", *TOKENIZER["marian"]]
    assert hub.fetched() == sorted(of_adapter + of_base) and directory.name == commit
    assert open_model(directory, "best")[0] == open_model(local, "best")[0]
    assert equal(load_params(directory, "best"), load_params(local, "best"))
    assert model_directory("hf://o/adapter") == directory
    assert hub.requests == ["GET /api/models/o/adapter/revision/main"]
    hub.add("o/itself", adapter, 4)
    change_json(adapter / "adapter_config.json", base_model_name_or_path="o/itself")
    with pytest.raises(UserError, match="the base model .* is not supported"):
        open_model(model_directory("hf://o/itself"), "best")


def test_the_weights_of_a_revision_are_those_of_its_commit(hub, models, tmp_path):
    first, other = hub.add("o/n", models["marian"]), tmp_path / "other"
    write_marian(other, encoder_layers=2)
    second = hub.add("o/n", other, 2, "refs/pr/6")
    for revision, commit, path in (
        ("", first, models["marian"]),
        ("@main", first, models["marian"]),
        ("@refs/pr/6", second, other),
        (f"@{second}", second, other),
    ):
        directory = model_directory(f"hf://o/n{revision}")
        assert directory.name == commit
        assert equal(load_params(directory, "best"), load_params(path, "best"))
    config, _ = open_model(directory, "best")
    (line, *_) = stated_settings(directory, config, config.decoding, config.data)
    assert f"hf://o/n@{second} (MarianMT)" in line


def test_a_connection_that_is_cut_is_continued(hub, models, monkeypatch):
    hub.add("o/n", models["marian"])
    size = (models["marian"] / "model.safetensors").stat().st_size
    hub.cut["model.safetensors"] = size // 2
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", size // 4)  # what is written at once
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # before the next attempt
    threads, get = [], file_download.http_get
    monkeypatch.setattr(
        file_download,
        "http_get",
        lambda url, *rest, **options: (
            threads.append((url, threading.current_thread())) or get(url, *rest, **options)
        ),
    )
    directory = model_directory("hf://o/n")
    # A signal ends a download in the main thread only.
    assert {t for url, t in threads if "config" not in url} == {threading.main_thread()}
    assert hub.fetched().count("model.safetensors") == 2
    assert [h["range"] for h in hub.headers if "range" in h] == [f"bytes={size // 2}-"]
    assert equal(load_params(directory, "best"), load_params(models["marian"], "best"))


def test_the_cache_is_used_without_a_network(hub, models, monkeypatch):
    commit = hub.add("o/n", models["marian"])
    directory = model_directory("hf://o/n")
    use_endpoint(monkeypatch, unreachable())
    hub.requests.clear()
    for offline, reason in ((False, "the Hub cannot be reached"), (True, "HF_HUB_OFFLINE is set")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        for name in ("hf://o/n", f"hf://o/n@{commit}"):
            assert model_directory(name) == directory
        with pytest.raises(UserError, match=f"^hf://o/z is not .* in the cache .*{reason}.*: expe"):
            model_directory("hf://o/z")
    (directory / "model.safetensors").unlink()  # as after a download that was interrupted
    with pytest.raises(UserError, match="^hf://o/n is not or not completely in the cache"):
        model_directory("hf://o/n")
    assert not hub.requests


def test_what_cannot_be_fetched_is_refused_in_one_line(hub, models, tmp_path):
    hub.add("o/n", models["marian"])
    hub.add("o/gated", models["marian"])
    hub.gated.add("o/gated")
    for name, config in (("gpt2", {"model_type": "gpt2"}), ("run", {"format_version": 5})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "model.safetensors").write_bytes(b"never fetched")
        hub.add(f"o/{name}", tmp_path / name)
    (tmp_path / "h5").mkdir()
    (tmp_path / "h5" / "config.json").write_bytes((models["t5"] / "config.json").read_bytes())
    (tmp_path / "h5" / "tf_model.h5").write_bytes(bytes(1 << 20))
    hub.add("o/h5", tmp_path / "h5")
    (tmp_path / "adapter").mkdir()
    for file, content in (("config.json", "{}"), ("model.safetensors", "never fetched")):
        (tmp_path / "adapter" / f"adapter_{file}").write_text(content)
    hub.add("o/adapter", tmp_path / "adapter")
    hub.requests.clear()
    for name, code, message in (
        ("hf://o/x", CHECKPOINT, "hf://o/x does not exist or is private: expected .*; correct it"),
        ("hf://hidden/x", CHECKPOINT, "hf://hidden/x does not exist or is private"),
        ("hf://o/n@x", CHECKPOINT, "hf://o/n@x: the revision x does not exist: expected a branch"),
        (f"hf://o/n@{commit_of(9)}", CHECKPOINT, "the revision 0+9 does not exist"),
        ("hf://o/gated", CHECKPOINT, "hf://o/gated is gated .*: expected the token .* HF_TOKEN"),
        ("hf://o/gpt2", CHECKPOINT, "model_type='gpt2' is not supported: expected marian"),
        ("hf://o/run", CHECKPOINT, "is not a directory of transformers: expected a config.json"),
        ("hf://o/adapter", CHECKPOINT, "adapter_config.json"),
        ("hf://o/h5", CHECKPOINT, "hf://o/h5 has no weights .*: expected .*, got tf_model.h5; "),
        ("hf://n", CONFIGURATION, "hf://n is malformed: expected hf://OWNER/NAME or"),
        ("hf://o/n@", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://o/n/x.bin", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        # A revision becomes a path in the cache; the others are no names of the Hub.
        ("hf://o/n@../../../x", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://o/n@refs//pr", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://-o/n", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://o/x--y", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://o/n.git", CONFIGURATION, "is malformed: expected hf://OWNER/NAME or"),
        ("hf://user:secret@o/n", CONFIGURATION, "^hf://…@o/n is malformed.*, got 'hf://…@o/n'$"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_model(model_directory(name), "best")
        assert caught.value.code == code and "\n" not in str(caught.value)
    assert set(hub.fetched()) == {"config.json", "adapter_config.json"}


def test_without_the_extra_and_for_other_files_a_name_is_refused(monkeypatch):
    model = path_flags.PathParser("workdir", hub_names.check_model_name)
    assert model.parse("a,hf://o/n@v1") == "a,hf://o/n@v1"
    monkeypatch.setattr(hub_names, "find_spec", lambda name: None)
    for act, message in (
        (
            lambda: model.parse("hf://o/n"),
            "^--workdir: hf:// needs huggingface_hub, .*'.\\[hub\\]'",
        ),
        (lambda: model_directory("hf://o/n"), "^hf://o/n: hf:// needs huggingface_hub"),
        (
            lambda: path_flags.PathParser("input", path_flags.check_url).parse("hf://o/n"),
            "^--input: hf:// names only models",
        ),
    ):
        with pytest.raises(UserError, match=message) as caught:
            act()
        assert caught.value.code == CONFIGURATION


def test_commands_accept_a_name(hub, models, tmp_path):
    hub.add("o/n", models["marian"], revision="refs/pr/6")
    name = "hf://o/n@refs/pr/6"
    code, out, err = call("scripts/convert.py", f"--from_model={name}", f"--to={tmp_path / 'run'}")
    assert (code, out) == (0, "") and str(tmp_path / "run") in err
    assert equal(load_params(tmp_path / "run", "best"), load_params(models["marian"], "best"))
    code, out, err = call("scripts/check_model.py", name)
    assert code == 0 and f"hf://o/n@{commit_of(1)}" in out, out + err


@pytest.mark.parametrize(
    "script, flags",
    [
        ("decode.py", ["--workdir={}"]),
        ("scripts/attention_page.py", ["--workdir={}", "--source=a"]),
        ("scripts/export.py", ["--workdir={}", "--to=a"]),
        ("scripts/convert.py", ["--from_model={}", "--to=a"]),
        ("scripts/convert.py", ["--from_run={}", "--to_model=a"]),
        ("scripts/check_model.py", ["{}"]),
    ],
)
def test_a_command_that_loads_a_model_accepts_a_name(hub, script, flags):
    code, out, err = call(script, *(flag.format("hf://o/x") for flag in flags))
    assert (code, out, err.count("\n")) == (CHECKPOINT, "", 1)
    assert err.startswith("error: hf://o/x does not exist")


@pytest.mark.slow
def test_the_environment_of_a_process_applies(hub, models, tmp_path):
    """HF_ENDPOINT and HF_HOME; no telemetry, and nothing on stderr that is no terminal."""
    hub.add("o/n", models["marian"])
    module = "seq2seq.pretrained.model_directory"
    code = f"from {module} import model_directory; print(model_directory('hf://o/n'))"
    home = tmp_path / "home"
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    directory = home / "hub" / "models--o--n" / "snapshots" / commit_of(1)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{directory}\n", "")
    agents = {headers["user-agent"] for headers in hub.headers}
    assert agents and all(len(agent.split("; ")) == 3 for agent in agents), agents


def test_a_fingerprint_of_a_job_has_the_commit(hub, models):
    names = []
    for number in (1, 2):  # with the same files
        hub.add("o/n", models["marian"], number)
        names.append(fingerprint_of("hf://o/n"))
    assert names[0] != names[1] == fingerprint_of(f"hf://o/n@{commit_of(2)}")
    assert members_of("hf://o/n", "best") == [Member(model_directory("hf://o/n"), "best")]


def test_a_training_keeps_the_commit_and_resumes_without_a_network(
    hub, models, tmp_path, monkeypatch
):
    hub.add("o/n", models["marian"])
    config = fine_tuning(tmp_path / "run", "hf://o/n")

    def start():
        run = Run(tmp_path / "run")
        started, _ = prepare_data(config, run)
        params = initial_params(started, run)  # of a run without a checkpoint
        run.close()
        return params

    expected = load_params(models["marian"], "best")
    assert equal(start(), expected)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["init_from"] == f"hf://o/n@{commit_of(1)}"
    assert record["init_from"] in (tmp_path / "run" / "train.log").read_text()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["init_from"]
    write_marian(tmp_path / "moved", encoder_layers=2)
    hub.add("o/n", tmp_path / "moved", 2)
    hub.requests.clear()
    assert equal(start(), expected) and not hub.requests
    use_endpoint(monkeypatch, unreachable())
    assert equal(start(), expected)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["init_from"] == f"hf://o/n@{commit_of(1)}" and len(record["resumed"]) == 2

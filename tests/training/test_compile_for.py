"""The reports of --compile_for, with the memory of a made-up compiler."""

import json
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace

import jax
import pytest

from seq2seq.compilation.report import Report
from seq2seq.compilation.targets import TPUS, Target
from seq2seq.config.data_config import DataConfig
from seq2seq.config.flag import config_directory
from seq2seq.config.migration import FORMAT_VERSION
from seq2seq.config.tree import Config, DecodingConfig, load_config
from seq2seq.decoding import compile_for as decoding
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.translator import Translator
from seq2seq.files import remote
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.training import compile_for as training
from tests.support.runs import cheap_config, cheap_model
from tests.support.tiny import write_run

LIMIT = TPUS["v5e"].memory


def compiler(rows_of, row_bytes):
    """A `compiled_report` of programs that need `row_bytes` for each row."""

    def compiled_report(traced):
        rows = rows_of([aval.shape for aval in jax.tree.leaves(traced.in_avals)])
        return Report(row_bytes * rows, 0, 1e9, 10**9, 10**6, Counter(), 1.0)

    return compiled_report


def test_the_vocabularies_have_the_sizes_of_the_config():
    for data, model, expected in (
        ({"vocab_size": 70}, {}, (70, 70)),
        ({"vocab_size": 70, "target_vocab_size": 90}, {}, (70, 90)),
        ({"vocab_size": 70}, {"source_vocab_size": 50, "target_vocab_size": 60}, (50, 60)),
    ):
        config = Config(data=DataConfig(**data), model=ModelConfig(**model))
        sizes = training.with_vocabulary_sizes(config).model
        assert (sizes.source_vocab_size, sizes.target_vocab_size) == expected


def test_the_vocabularies_of_a_run_have_its_sizes(tmp_path):
    write_run(tmp_path / "run")
    expected = load_config(tmp_path / "run" / "config.json").model
    for run, model in ((tmp_path / "run", expected), (tmp_path / "new", ModelConfig())):
        sizes = training.with_sizes_of_run(Config(), run).model
        assert sizes == replace(
            ModelConfig(),
            source_vocab_size=model.source_vocab_size,
            target_vocab_size=model.target_vocab_size,
        )
    assert expected.source_vocab_size > 0


def test_the_vocabularies_of_a_run_in_object_storage_have_its_sizes(tmp_path, monkeypatch):
    """Without a working copy."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    url = f"memory://{tmp_path.name}/run"
    remote.upload(tmp_path / "run" / "config.json", f"{url}/config.json")
    directory = config_directory(SimpleNamespace(workdir=url, local_dir=""))
    expected = load_config(tmp_path / "run" / "config.json").model.source_vocab_size
    assert training.with_sizes_of_run(Config(), directory).model.source_vocab_size == expected > 0


def test_an_error_in_the_config_of_a_run_in_object_storage_names_its_url(tmp_path):
    url = f"memory://{tmp_path.name}/other"
    config = {"format_version": FORMAT_VERSION, **asdict(Config())}
    for change, message in ({"model": {"nope": 1}}, "unknown field model.nope"), (
        {"data": 3}, "is damaged: data must be a JSON object, got 3"
    ):  # fmt: skip
        remote.write(f"{url}/config.json", json.dumps(config | change).encode())
        with pytest.raises(UserError, match=f"^{url}/config.json.* {message}") as caught:
            config_directory(SimpleNamespace(workdir=f"{url}/", local_dir=""))
        assert caught.value.code == CHECKPOINT


@pytest.mark.parametrize(
    "accumulate, row_bytes",
    [
        pytest.param(1, LIMIT // 50, marks=pytest.mark.slow),
        (2, LIMIT // 3),
        (1, 2 * LIMIT),
    ],
)
def test_the_batch_that_fits_is_named_by_the_setting_that_gives_it(
    monkeypatch, row_bytes, accumulate
):
    config = cheap_config("text:absent", training__accumulate=accumulate)
    length = config.data.source_length

    def rows_of(shapes):  # of a device: ids are [devices, M, B, S], in evaluation [devices, B, S]
        return max(shape[-2] for shape in shapes if len(shape) > 2 and shape[-1] == length)

    monkeypatch.setattr(training, "compiled_report", compiler(rows_of, row_bytes))
    target = Target("v5e:2x2", TPUS["v5e"], jax.devices(), "tpu")
    with cheap_model():
        *_, last = training.training_lines(config, target)
    if row_bytes > LIMIT:
        assert "not even one row fits" in last
        return
    rows, tokens = int(last.split()[0]), int(last.split("tokens_per_batch=")[1])
    assert 0.85 < rows * row_bytes / LIMIT <= 1 or rows == LIMIT // row_bytes
    chosen = replace(config, training=replace(config.training, tokens_per_batch=tokens))
    assert chosen.rows_at_a_time == rows * len(target.devices)


@pytest.mark.parametrize("copies, heads, devices, named", [
    (1.5, 4, 4, 2), (3, 4, 4, 4), (3, 3, 6, 3), (5, 4, 4, 0), (3, 2, 4, 0),
])  # fmt: skip
def test_a_model_that_does_not_fit_names_the_smallest_model_parallel_that_does(
    monkeypatch, copies, heads, devices, named
):
    """`copies` is the memory of the model as a multiple of that of a device."""
    model = ModelConfig(d_model=48, num_heads=heads, d_ff=48, num_layers=1)
    tried = []

    def compiled_report(together):
        tried.append(together)
        return Report(int(copies * LIMIT / together), 0, 1e9, 10**9, 10**6, Counter(), 1.0)

    hosts = [SimpleNamespace(process_index=i // devices) for i in range(2 * devices)]
    target = Target("v5e:2x2", TPUS["v5e"], hosts, "tpu")
    for module in (training, decoding):
        monkeypatch.setattr(module, "compiled_report", compiled_report)
    monkeypatch.setattr(
        training, "step_program", lambda config, rows, _: config.training.model_parallel
    )
    monkeypatch.setattr(decoding, "search_program", lambda engine, *_: engine.model_parallel)
    line = training.too_large(Config(model), target)
    assert line.endswith(f"model_parallel={named}" if named else "data.target_length")
    monkeypatch.setattr(Engine, "params", lambda engine: [])
    engine = Engine([model], DecodingConfig())
    translator = SimpleNamespace(engine=engine, decoding=DecodingConfig())
    line = decoding.too_large(translator, 16, target)
    assert line.endswith(f"model_parallel={named}" if named else "--max_extra_length")
    assert not named or tried[-1] == named  # nothing larger is compiled
    assert 1 not in tried


def test_a_search_that_does_not_fit_names_the_batch_size_that_does(monkeypatch, tmp_path):
    write_run(tmp_path / "run", kind="rnn")  # its search is traced in half of the time
    translator = Translator.load(tmp_path / "run", batch_size=8)
    bucket = translator.engine.buckets[-1]

    def rows_of(shapes):  # sentences
        return max(shape[1] for shape in shapes if len(shape) == 3 and shape[2] in (16, bucket))

    sentences = translator.engine.sizes.lanes(bucket) * translator.engine.sizes.queue
    target = Target("v5e:1", TPUS["v5e"], jax.devices()[:1], "tpu")
    monkeypatch.setattr(decoding, "compiled_report", compiler(rows_of, LIMIT // sentences * 4))
    lines = list(decoding.search_lines(translator, target))
    (named, *_) = [line for line in lines if "--batch_size=" in line]
    assert named.endswith("=2")
    monkeypatch.setattr(decoding, "compiled_report", compiler(rows_of, 1))
    lines = list(decoding.search_lines(translator, target))
    assert not any("--batch_size" in line for line in lines)
    assert sum("at most" in line for line in lines) == len(translator.engine.buckets)
    assert sum("kernels" in line for line in lines) == len(translator.engine.buckets)

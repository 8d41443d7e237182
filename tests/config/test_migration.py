"""config.json and checkpoints of older formats are loaded, and those of newer ones are refused."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.config.migration import BEFORE_5, FORMAT_VERSION, migrate
from seq2seq.config.training_config import TrainingConfig
from seq2seq.config.tree import Config, load_config, save_config
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.run import Run
from tests.support.runs import change_metadata, run_config, stopped_run, train_cheaply

# config.json as it was written before it had a format_version.
WITHOUT_VERSION = Path(__file__).parent / "data" / "config_without_version.json"
CONFIG = Config(
    model=ModelConfig(
        source_vocab_size=64, target_vocab_size=64, d_model=32, d_ff=64, num_heads=4,
        num_layers=2, dropout=0.0, norm="pre", max_length=40,
    ),
    data=DataConfig(
        corpus="tsv:pairs.tsv", tokenizer="words", vocab_size=64, source_length=40,
        target_length=32, vocab_sha256="0a+0a", **BEFORE_5["data"],
    ),
    training=TrainingConfig(
        num_steps=12, tokens_per_batch=128, schedule="cosine", learning_rate=0.002,
        best_metric="loss", eval_every=4, checkpoint_every=2, seed=7,
    ),
    decoding=DecodingConfig(beam_size=2, nbest=2, alpha=1.0, suppress="a b", dtype="bfloat16",
                            **BEFORE_5["decoding"]),
)  # fmt: skip


def test_a_model_without_a_kind_is_a_transformer(tmp_path):
    """config.json of earlier versions has no model.kind."""
    path = tmp_path / "config.json"
    for kind in ("transformer", "rnn"):
        config = Config(model=ModelConfig(kind=kind))
        save_config(config, path)
        assert load_config(path).model.kind == kind
        content = json.loads(path.read_text())
        del content["model"]["kind"]
        path.write_text(json.dumps(content))
        assert load_config(path).model.kind == "transformer"


def test_a_config_without_a_version_is_loaded():
    assert load_config(WITHOUT_VERSION) == CONFIG


def test_a_removed_field_is_dropped_if_it_was_off_and_refused_if_it_was_on(tmp_path):
    path = tmp_path / "config.json"
    for value in (0.0, 0.1):
        tree = json.loads(WITHOUT_VERSION.read_text())
        tree["data"]["subword_sampling"] = value
        path.write_text(json.dumps(tree))
        if value == 0.0:
            assert load_config(path) == CONFIG
    with pytest.raises(UserError, match="unknown field data.subword_sampling"):
        load_config(path)


def test_a_saved_config_has_the_current_version_and_the_fields_of_the_old_form(tmp_path):
    save_config(load_config(WITHOUT_VERSION), tmp_path / "config.json")
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop("format_version") == FORMAT_VERSION
    old = json.loads(WITHOUT_VERSION.read_text())
    assert old["decoding"].pop("batch_size") == 32 and saved["decoding"]["batch_size"] == 0
    assert old["data"].pop("subword_sampling") == 0.0
    for name, section in old.items():
        assert section.items() <= saved[name].items()


def test_the_former_default_batch_size_becomes_automatic_and_other_sizes_are_kept():
    for version, size, expected in ((0, 32, 0), (2, 32, 0), (2, 64, 64), (2, 1, 1), (3, 32, 32)):
        content = {"decoding": {"batch_size": size, "beam_size": 32}, "format_version": version}
        expected_section = {"batch_size": expected, "beam_size": 32} | BEFORE_5["decoding"]
        assert migrate(content, Path("a")) == {"decoding": expected_section}
        assert content["decoding"]["batch_size"] == size  # the argument is not changed


@pytest.mark.parametrize(
    "version, message",
    [
        (
            FORMAT_VERSION + 1,
            f"expected format_version {FORMAT_VERSION} or lower, got {FORMAT_VERSION + 1}",
        ),
        ("1", "format_version must be an integer"),
        (True, "format_version must be an integer"),
        (-1, "format_version must be an integer"),
    ],
)
def test_a_newer_or_invalid_version_is_refused_in_one_line(tmp_path, version, message):
    tree = json.loads(WITHOUT_VERSION.read_text()) | {"format_version": version}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=message) as refused:
        load_config(path)
    assert refused.value.code == CHECKPOINT and str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_of_the_current_version_is_migrated_to_itself():
    content = {"model": {}, "data": {}}
    assert migrate(content | {"format_version": FORMAT_VERSION}, Path("a")) == content
    assert migrate(content, Path("a")) == content | {"data": BEFORE_5["data"]}


def test_a_run_keeps_the_earlier_form_of_texts_that_its_config_file_does_not_set(tmp_path):
    """A config file of an older run does not have the fields that a later version has added."""
    old = Config(data=DataConfig(**BEFORE_5["data"]), decoding=DecodingConfig(clean_source=False))
    with closing(Run(tmp_path)) as run:
        for previous in (old, Config()):
            save_config(previous, tmp_path / "config.json")
            assert run.resume_config(Config()) == previous
        save_config(old, tmp_path / "config.json")
        chosen = Config(data=DataConfig(normalization="nfkc"))
        with pytest.raises(UserError, match="data.normalization 'nmt_nfkc' → 'nfkc'; keep"):
            run.resume_config(chosen)


def set_version(run, version):
    """Replace the format_version of config.json and of all checkpoints; None removes it."""

    def change(content):
        assert content.pop("format_version") == FORMAT_VERSION
        if version is not None:
            content["format_version"] = version

    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))
    change_metadata(run, change)


@pytest.mark.parametrize("version", [None, 3])
def test_a_run_of_a_version_with_another_order_of_the_rows_is_refused(tmp_path, version):
    """Unless the change is allowed; test_resume.py checks that its epochs begin again."""
    shutil.copytree(stopped_run(), tmp_path / "run")
    set_version(tmp_path / "run", version)
    with pytest.raises(UserError, match="training data in another order") as refused:
        train_cheaply(tmp_path / "run", run_config())
    assert refused.value.code == CHECKPOINT


def test_a_checkpoint_of_a_newer_version_is_refused(tmp_path):
    shutil.copytree(stopped_run(), tmp_path / "run")
    config = (tmp_path / "run" / "config.json").read_text()
    set_version(tmp_path / "run", FORMAT_VERSION + 1)
    (tmp_path / "run" / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"checkpoints/4 was written by a newer version") as refused:
        train_cheaply(tmp_path / "run", run_config())
    assert refused.value.code == CHECKPOINT

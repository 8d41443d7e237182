"""configs/: each file returns a valid config and documents its command, on any machine."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from seq2seq.config.tree import Config
from seq2seq.data.corpora.registry import mixture
from seq2seq.model.config import num_parameters

ROOT = Path(__file__).parent.parent
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
SPECS = ("corpus", "valid", "test")


def config_of(name):
    return import_module(f"seq2seq.configs.{name}").get_config()


def documentation(name):
    return import_module(f"seq2seq.configs.{name}").__doc__


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_valid_and_new_in_each_call(name):
    config = config_of(name)
    assert type(config) is Config
    config.data.corpus = "changed"
    assert config_of(name).data.corpus != "changed"
    config_of(name).validate()


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_names_commands_that_exist(name):
    text = documentation(name)
    default = name == "korean_english"  # of train.py
    config_flag = "" if default else f" --config=configs/{name}.py"
    assert f"python train.py{config_flag}" in text
    for command in re.findall(r"python (\S+\.py)", text):
        assert (ROOT / command).is_file(), command


@pytest.mark.parametrize("name", NAMES)
def test_no_config_names_a_path_of_one_machine(name):
    source = (ROOT / "configs" / f"{name}.py").read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.])/\w\S*|~/\S*|\b[A-Z]:\\\S*", source)
    data = config_of(name).data
    for spec in filter(None, (getattr(data, part) for part in SPECS)):
        for part in mixture(spec):
            if part.corpus.name in ("text", "tsv"):
                variables = {re.match(r"\$(\w+)/", path)[1] for path in part.corpus.rest.split(",")}
                assert len(variables) == 1
                assert f"{variables.pop()}=DIRECTORY" in documentation(name)


@pytest.mark.parametrize("kind", ["rnn", "rnn_attention"])
def test_the_rnn_baselines_have_the_size_and_the_data_of_the_transformer(kind):
    transformer, rnn = config_of("korean_english"), config_of(f"korean_english_{kind}")
    assert rnn.model.kind == kind
    for config in (transformer, rnn):
        config.model.source_vocab_size = config.model.target_vocab_size = config.data.vocab_size
    ratio = num_parameters(rnn.model) / num_parameters(transformer.model)
    assert ratio == pytest.approx(1.0, abs=0.05)
    assert (rnn.data, rnn.decoding) == (transformer.data, transformer.decoding)
    rnn.training.num_steps = transformer.training.num_steps
    assert rnn.training == transformer.training

"""The flag --config: whose config a training has, and which flags change it. Compiles nothing."""

import json
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from absl import flags
from sacrebleu.tokenizers import tokenizer_ja_mecab

from seq2seq import train
from seq2seq.cli.path_flags import PathParser
from seq2seq.config.flag import (
    BUILT_IN,
    check_new_run,
    define_config,
    parsed_config,
    run_path,
    with_path_of_config,
)
from seq2seq.config.help import explain_config_error
from seq2seq.config.tree import Config, flat_values, load_config, save_config
from seq2seq.files.remote import check_url
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from seq2seq.storage.run import Run
from tests.support.in_process import call_in_process
from tests.support.tiny import tiny_config, tiny_flags, write_run
from tests.test_configs import config_of

ROOT = Path(__file__).parents[2]
SMALL = f"--config={ROOT / 'configs' / 'small.py'}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory with a vocabulary, whose config differs from all defaults of train.py."""
    path = tmp_path_factory.mktemp("config") / "run"
    write_run(path)
    return path


def parsed(*arguments):
    """The flags as train.py parses them, and the config that it trains with."""
    argv, values = ["train.py", *map(str, arguments)], flags.FlagValues()
    flags.DEFINE(PathParser("workdir", check_url), "workdir", "", "", flag_values=values)
    define_config(argv, values)
    assert values(argv)[1:] == []
    config = parsed_config(values)
    check_new_run(values)
    return values, config


def test_the_name_of_an_installed_config_stands_for_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named, config = parsed("--config=small", "--config.model.num_layers=2")
    separate, same = parsed("--config", "small", "--config.model.num_layers=2")
    assert (same, run_path(separate)) == (config, run_path(named))
    assert (config, run_path(named)) == (
        parsed(SMALL, "--config.model.num_layers=2")[1],
        tmp_path / "runs" / "small",
    )
    assert config.model.num_layers == 2
    argv = ["train.py", "--config=smal", "--config=configs/small.py", "--workdir=small", "small"]
    assert [with_path_of_config(argument) for argument in argv] == argv


def resumed(path, config):
    """The config with which a run is resumed, and the lines that it logs."""
    lines, run = [], Run(path)
    run.log = lines.append
    try:
        config = run.resume_config(config)
    finally:
        run.close()
    return config, lines


def differences(config, other):
    """The fields whose values differ, with the value in `config`."""
    old = flat_values(other)
    return {name: x for name, x in flat_values(config).items() if x != old[name]}


@pytest.mark.parametrize("argument", [["--workdir={}"], ["--workdir", "{}"], ["-workdir={}"]])
def test_a_run_is_resumed_with_its_own_config(run, argument):
    values, config = parsed(*(part.format(run) for part in argument))
    assert run_path(values) == run
    stored = load_config(run / "config.json")
    assert resumed(run, config) == (stored, [])  # nothing is changed


@pytest.mark.parametrize(
    "order",
    [
        lambda workdir, field: [workdir, field],
        lambda workdir, field: [field, workdir],
        lambda workdir, field: [*field.split("="), workdir],  # --field value
    ],
)
def test_a_flag_changes_one_field_of_the_config_of_the_run(run, order):
    _, config = parsed(*order(f"--workdir={run}", "--config.training.num_steps=77"))
    config, lines = resumed(run, config)
    assert lines == ["changed: training.num_steps 12 → 77"]
    stored = load_config(run / "config.json")
    assert differences(config, stored) == {"training.num_steps": 77}


def test_another_number_of_steps_is_a_warning_if_the_schedule_depends_on_it(tmp_path):
    for schedule in ("paper", "inverse_sqrt", "cosine", "linear", "constant"):
        path = tmp_path / schedule
        path.mkdir()
        config = Config(training=replace(Config().training, schedule=schedule))
        save_config(config, path / "config.json")
        for change, warned in ((dict(num_steps=7), schedule in ("cosine", "linear")),
                               (dict(max_epochs=7), False)):  # fmt: skip
            changed = replace(config, training=replace(config.training, **change))
            lines = resumed(path, changed)[1]
            assert lines[0].startswith("changed: training.")
            assert [line.split(",")[0] for line in lines[1:]] == warned * [
                "warning: the learning rate changes from the resumed step on"
            ]


def test_clipping_changes_when_a_run_is_resumed_but_neither_begins_nor_ends(tmp_path):
    """The optimizer has another state without clipping."""
    for limit, changes in ((1.0, {2.0: True, 0.0: False}), (0.0, {1.0: False})):
        path = tmp_path / str(limit)
        path.mkdir()
        config = Config(training=replace(Config().training, clip_norm=limit))
        save_config(config, path / "config.json")
        for new, is_allowed in changes.items():
            changed = replace(config, training=replace(config.training, clip_norm=new))
            if is_allowed:
                assert resumed(path, changed)[1] == [f"changed: training.clip_norm {limit} → {new}"]
                continue
            with pytest.raises(UserError, match=f"clip_norm {limit} → {new}; keep") as refused:
                resumed(path, changed)
            assert refused.value.code == CONFIGURATION


def test_a_run_does_not_need_the_package_with_which_its_first_parameters_were_read(
    tmp_path, monkeypatch
):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    config = Config(training=replace(Config().training, init_from="s3://bucket/run"))
    save_config(config, tmp_path / "config.json")
    assert load_config(tmp_path / "config.json").training.init_from == "s3://bucket/run"
    assert parsed(f"--workdir={tmp_path}")[1].training.init_from == "s3://bucket/run"
    with pytest.raises(UserError, match="init_from: s3:// needs a package") as refused:
        parsed(SMALL, "--config.training.init_from=s3://bucket/run")
    assert refused.value.code == CONFIGURATION


def test_the_flags_of_a_file_change_the_config_of_the_run(run, tmp_path):
    file = tmp_path / "flags"
    file.write_text(f"--workdir={run}\n--config.training.num_steps=77\n")
    _, config = parsed(f"--flagfile={file}")
    assert config.training.num_steps == 77 and config.model.d_model == 8


def test_a_flag_that_does_not_fit_the_run_is_refused_without_other_fields(run):
    _, config = parsed(f"--workdir={run}", "--config.model.d_ff=32", "--config.training.keep=9")
    with pytest.raises(UserError, match=r"configuration: model.d_ff 16 → 32; keep") as refused:
        resumed(run, config)
    assert refused.value.code == CONFIGURATION


def test_a_bleu_tokenizer_that_is_not_installed_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    flags = SMALL, f"--workdir={tmp_path / 'new'}", "--config.training.bleu_tokenizer=ja-mecab"
    done = call_in_process(train, *flags, devices=False)
    assert done.code == CONFIGURATION and not (tmp_path / "new").exists()
    (error,) = done.err
    assert "ja-mecab is not installed: " in error and "pip install 'sacrebleu" in error


def test_a_given_config_replaces_the_config_of_the_run(run):
    _, config = parsed(f"--workdir={run}", SMALL)
    assert config == config_of("small")
    with pytest.raises(UserError, match="model.d_model 8 → 192"):
        resumed(run, config)


def test_repeated_flags_and_no_flags_give_the_same_config(run):
    """A command with all flags, which was needed before, still resumes the run."""
    all_flags = tiny_flags()
    _, config = parsed(
        f"--config={ROOT / 'configs' / 'base.py'}",
        f"--workdir={run}",
        "--config.data.corpus=tsv:nowhere",
        "--config.training.clip_norm=1.0",
        *all_flags,
    )
    _, short = parsed(f"--workdir={run}")
    assert resumed(run, config) == resumed(run, short) == (load_config(run / "config.json"), [])


def test_the_vocabulary_fields_of_a_run_are_not_settings(run):
    """A run that is started over with its own config can have another vocabulary."""
    _, config = parsed(
        f"--workdir={run}",
        "--config.data.joint_vocab=false",
        "--config.model.tied_embeddings=none",
    )
    assert load_config(run / "config.json").model.source_vocab_size == 15
    sizes = config.model.source_vocab_size, config.model.target_vocab_size
    assert (*sizes, config.data.vocab_sha256) == (0, 0, "")


def test_changed_data_is_allowed_for_one_start_only(run, tmp_path):
    config = load_config(run / "config.json")
    training = replace(config.training, allow_data_change=True)
    old = tmp_path / "a,b"  # a comma in the name of a run of an earlier version
    old.mkdir()
    save_config(replace(config, training=training), old / "config.json")
    assert not parsed(f"--workdir={old}")[1].training.allow_data_change
    field = "--config.training.allow_data_change"
    assert parsed(f"--workdir={old}", field)[1].training.allow_data_change


def test_a_field_that_an_older_run_does_not_have_gets_its_default(run, tmp_path):
    tree = json.loads((run / "config.json").read_text())
    del tree["training"]["skip_nonfinite"], tree["decoding"]["beam_size"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    _, config = parsed(f"--workdir={tmp_path}")
    assert config.training.skip_nonfinite == 0 and config.decoding.beam_size == 4
    assert config.model.d_model == 8


def test_a_damaged_config_of_a_run_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json is damaged") as refused:
        parsed(f"--workdir={tmp_path}")
    assert refused.value.code == CHECKPOINT
    assert parsed(f"--workdir={tmp_path}", SMALL)[1] == config_of("small")  # for --overwrite


@pytest.mark.parametrize("flags", [[], ["--config.model.d_model=8"]])
def test_a_config_file_that_does_not_exist_is_named(flags):
    done = call_in_process(train, "--config=configs/none.py", *flags)
    expected = (
        "--config=configs/none.py does not exist: expected a Python file or a name in configs/"
    )
    assert (done.code, done.err) == (CONFIGURATION, [f"error: {expected}"])


@pytest.mark.parametrize("content", [None, '{"architectures": ["MarianMTModel"]}'])
@pytest.mark.parametrize("flag", [[], ["--config.training.num_steps=7"]])
def test_a_directory_without_a_run_is_refused_unless_the_corpus_is_named(tmp_path, content, flag):
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError) as refused:
        parsed(f"--workdir={tmp_path}", *flag)
    assert refused.value.code == CONFIGURATION
    assert str(refused.value) == (
        f"--workdir={tmp_path} holds no run to resume: expected its config.json; correct "
        "--workdir, or start a new run with --config=FILE or --config.data.corpus=SPEC"
    )
    default = config_of("korean_english")
    _, config = parsed(f"--workdir={tmp_path}", "--config.data.corpus=tsv:a")
    assert differences(config, default) == {"data.corpus": "tsv:a"}
    if content:
        with pytest.raises(UserError, match="config.json is not the config of a run") as refused:
            resumed(tmp_path, config)
        assert refused.value.code == OUTPUT
    assert parsed(SMALL, f"--workdir={tmp_path}", *flag)[1].model == config_of("small").model
    for name in ("x, y", "x/a,b"):  # decode.py would read two runs
        with pytest.raises(UserError, match=f"--workdir has a comma: .* got {name!r}; choose an"):
            parsed(SMALL, f"--workdir={name}")
    assert parsed(f"--config={BUILT_IN}", f"--workdir={tmp_path}")[1] == default


def test_without_a_workdir_the_name_of_the_config_file_is_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_config(tiny_config("tsv:a"), tmp_path / "config.json")  # not in a --workdir
    values, config = parsed()
    assert config == config_of("korean_english")
    assert run_path(values) == tmp_path / "runs" / "korean_english"
    assert run_path(parsed(SMALL)[0]) == tmp_path / "runs" / "small"


def test_a_relative_and_a_home_directory_are_found(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv("HOME", str(run.parent))
    monkeypatch.setenv("HERE", str(run.parent))
    for name in ("run", "./run", "~/run", "$HERE/run"):
        values, config = parsed(f"--workdir={name}")
        assert run_path(values) == run and config.model.d_model == 8
    monkeypatch.setenv("BUCKET", "memory://bucket")
    assert parsed("--workdir=$BUCKET/run", SMALL)[0].workdir == "memory://bucket/run"


def test_the_argument_of_a_config_file_is_not_part_of_the_name_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (
        "from seq2seq.configs import small\n\ndef get_config(_):\n    return small.get_config()\n"
    )
    (tmp_path / "mine.py").write_text(text)
    for argument in ("lr0.1", "a/b"):
        assert run_path(parsed(f"--config=~/mine.py:{argument}")[0]) == tmp_path / "runs" / "mine"


CONFIG_FILE = """
from seq2seq.configs import base
from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config
from seq2seq.config.training_config import TrainingConfig


def get_config():
    config = base.get_config()
    {line}
    return config
"""
WRONG_LINES = {
    "config.training.patiense = 2": (
        "unknown config field config.training.patiense; did you mean config.training.patience? "
    ),
    "config.training.lr = 2": "training.lr; did you mean config.training.learning_rate?",
    "config.trainin.num_steps = 2": "unknown config field config.trainin; ",
    "config.training = TrainingConfig(patiense=2)": "did you mean config.training.patience?",
    "config.training.num_steps = 1e1": "training.num_steps must be an integer, got 10.0",
    "config.training = TrainingConfig(num_steps=1e1)": "num_steps must be an integer, got 10.0",
    'config.data.reverse = "False"': "data.reverse must be true or false, got 'False'",
    "config.model.dropout = None": "model.dropout must be a number, got None",
    "config.model = config.training": "model must be a ModelConfig, got TrainingConfig(",
    'int("x")': "ValueError: invalid literal for int() with base 10: 'x'",
}


def error_of(file):
    """The message for a config file that cannot be used."""
    argv, values = ["train.py", f"--config={file}"], flags.FlagValues()
    with pytest.raises((AttributeError, flags.IllegalFlagValueError)) as caught:
        define_config(argv, values)
        values(argv)
    return explain_config_error(caught.value)


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_wrong_line_of_a_config_file_is_named(line, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CONFIG_FILE.format(line=line))
    message = error_of(path)
    assert message.startswith(f"--config: {path}:10: ") and WRONG_LINES[line] in message


UNUSABLE = {
    "def get_config(name): ...": "missing 1 required positional argument: 'name'",
    "get_config = lambda: Config(model=ModelConfig(num_layer=3))": "model.num_layers?",
}


@pytest.mark.parametrize("line", UNUSABLE)
def test_a_config_file_whose_function_cannot_be_used_is_an_error_with_its_reason(line, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from seq2seq.model.config import ModelConfig\n"
        f"from seq2seq.config.tree import Config\n{line}\n"
    )
    message = error_of(path)
    assert message.startswith("--config: ") and UNUSABLE[line] in message


def test_a_config_file_builds_on_another_and_flags_on_both(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        CONFIG_FILE.format(line="config.model.num_layers = 3; config.data = DataConfig()")
    )
    _, config = parsed(f"--config={path}", "--config.model.d_ff=64", "--config.model.dropout=0")
    assert config.data == Config().data
    expected = replace(Config().model, num_layers=3, d_ff=64, dropout=0.0)
    assert config.model == expected and type(config.model.dropout) is float


def test_no_field_changes_once_the_command_line_is_parsed(run):
    _, config = parsed(f"--workdir={run}", "--config.training.num_steps=77")
    for closed in (config, resumed(run, config)[0], load_config(run / "config.json")):
        for section in fields(Config):
            with pytest.raises(FrozenInstanceError):
                setattr(closed, section.name, getattr(Config(), section.name))
            part = getattr(closed, section.name)
            for field in fields(part):
                with pytest.raises(FrozenInstanceError):
                    setattr(part, field.name, getattr(part, field.name))

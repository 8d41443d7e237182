"""README.md, CONTRIBUTING.md and docs/: commands, flags, paths, links and code are correct.

tests/test_docs_commands.py runs the commands.
"""

import doctest
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from functools import cache, partial
from importlib import import_module
from unittest.mock import patch
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from absl import flags
from flax import linen as nn
from ml_collections import config_flags

from seq2seq.config.tree import Config
from seq2seq.storage.resume_policy import CHANGEABLE
from tests.support.documents import (
    ROOT,
    TEXTS,
    Command,
    anchors,
    commands,
    fenced,
    inline_code,
    links,
    parsed_line,
    sections,
    table_rows,
)
from tests.support.in_process import call_in_process, call_main

FOLDERS = (
    "seq2seq|runtime|compilation|model|data|storage|pretrained|training|decoding|configs|scripts|examples|"
    "benchmarks|docs|tests"
)
PATH = re.compile(rf"(?<![\w./$-])(?:{FOLDERS})/[\w.\-/]*")
TENSOR = re.compile(r"\.(weight|safetensors)$")  # names that begin like a config field
FROM_VOCABULARY = {  # fields that training sets
    "model": {"source_vocab_size", "target_vocab_size", "pad_id", "start_id", "end_id",
              "unknown_id"},
    "data": {"vocab_sha256"},
}  # fmt: skip
document = pytest.mark.parametrize("name", TEXTS)


@cache
def flags_of(script: str) -> set[str]:
    """The names of the flags of a script of the project, as its --help lists them."""
    path = ROOT / script
    if "import argparse" in path.read_text(encoding="utf-8"):
        shown = subprocess.run(
            [sys.executable, path, "--help"], capture_output=True, text=True, check=True
        )
        return set(re.findall(r"--([\w-]+)", shown.stdout))
    name = script.removesuffix(".py").replace("/", ".")
    module = import_module(name if name.startswith("benchmarks.") else f"seq2seq.{name}")
    run = partial(call_main, module.define_flags, module.main)  # benchmarks have no `run`
    with patch.object(module, "run", run, create=True):
        shown = call_in_process(module, "--helpxml")
    return {flag.findtext("name") for flag in ElementTree.fromstring(shown.out).iter("flag")}


@cache
def pytest_options() -> set[str]:
    """The options that the project's tests and pytest-testmon add to pytest."""
    source = (ROOT / "tests" / "support" / "plugins" / "acceptance_table.py").read_text(
        encoding="utf-8"
    )
    added = set(re.findall(r'addoption\(\s*"(--[\w-]+)"', source))
    return added | {"--testmon", "--testmon-forceselect"}


def is_field(path: str) -> bool:
    """Whether "PART.FIELD" is a field of the config."""
    part, _, name = path.partition(".")
    config = Config()
    return hasattr(config, part) and name in {field.name for field in fields(getattr(config, part))}


def check_flag(script: str, argument: str) -> None:
    """Assert that a script has the flag of an argument."""
    name = argument.removeprefix("--").split("=")[0]
    if name.startswith("config."):
        assert "config" in flags_of(script), f"{script} has no --config"
        assert is_field(name.removeprefix("config.")), f"there is no config field {name}"
    else:
        known = flags_of(script)
        negated = name.startswith("no") and name[2:] in known
        assert name in known or negated, f"{script} has no flag --{name}"


def check_config(words: list[str]) -> None:
    """Assert that the config of a command of train.py and its overrides are valid."""
    arguments = [word for word in words if word.startswith("--config")]
    if not any(word.startswith("--config=") for word in arguments):
        arguments.insert(0, f"--config={ROOT / 'configs' / 'korean_english.py'}")
    arguments = [word.replace("=configs/", f"={ROOT}/configs/") for word in arguments]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=["train.py", *arguments])
    values(["train.py", *arguments])
    values.config.validate()


def check_command(command: Command, made: set[str]) -> None:
    """Assert that the script, the flags and the values of a command exist.

    `made` are files that commands of the same document write.
    """
    program, *rest = command.words
    if program == "pytest":
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in pytest_options(), word
            elif "/" in word:
                assert (ROOT / word).exists(), word
        return
    if program == "pip" or rest[0].startswith("-"):
        return
    script, *arguments = rest
    if script in made:
        return
    assert (ROOT / script).is_file(), f"there is no {script}"
    for word in arguments:
        content = (ROOT / script).read_text(encoding="utf-8")
        if word.startswith("-"):
            check_flag(script, word)
        else:  # the name of a subcommand, or a directory
            assert f'"{word}":' in content or f"{script} DIR" in content, word
    if script == "train.py":
        check_config(arguments)


def checked_commands(text: str) -> int:
    """Check all commands of a document; returns how many there are."""
    all_commands = commands(text)
    made = {
        word.removeprefix("--to=")
        for command in all_commands
        for word in command.words
        if word.startswith("--to=")
    }
    for command in all_commands:
        try:
            check_command(command, made)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{command}: {error}") from error
    return len(all_commands)


@document
def test_the_scripts_flags_and_values_of_all_commands_exist(name):
    count = checked_commands(TEXTS[name])
    assert count or "python " not in TEXTS[name]


def test_commands_of_every_form_are_found():
    (train,) = parsed_line("gcloud ssh --command=\"cd project && python train.py --a='b c' -x\"")
    assert train.words == ["python", "train.py", "--a=b c", "-x"]
    (pipe,) = parsed_line("A=1 B=2 python decode.py --x=2*y < in > out  # a comment")
    assert pipe == Command(
        ["python", "decode.py", "--x=2*y"], {"A": "1", "B": "2"}, "in", None, "out"
    )
    (echo,) = parsed_line("echo 'a b' | python decode.py")
    assert echo.echoed == "a b\n" and echo.words == ["python", "decode.py"]
    assert [str(command) for command in parsed_line("pip install -e . && python train.py")] == [
        "pip install -e .",
        "python train.py",
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python trian.py", "there is no trian.py"),
        ("python decode.py --beamsize=3", "no flag --beamsize"),
        ("python train.py --config.model.layers=3", "no config field config.model.layers"),
        ("python train.py --config.model.num_layers=three", "num_layers"),
        ("python train.py --config.model.num_heads=3", "d_model must be a multiple"),
        ("python train.py --config=configs/none.py", "none.py"),
        ("python scripts/checkpoints.py lits --workdir=x", "lits"),
        ("pytest --soka", "--soka"),
    ],
)
def test_a_wrong_command_is_reported(command, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        checked_commands(f"```\n{command}\n```\n")


def test_pip_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        extra
        for text in TEXTS.values()
        for group in re.findall(r"'?\.\[([\w,]+)\]'", text)
        for extra in group.split(",")
    }
    assert named and named <= project["optional-dependencies"].keys()


@document
def test_the_files_that_a_document_names_exist(name):
    text = TEXTS[name]
    for path in PATH.findall(text):
        assert (ROOT / path.rstrip(".")).exists(), path
    files = {path.name for path in ROOT.rglob("*.py") if "build" not in path.parts}
    for code in inline_code(text):
        for file in re.findall(r"(?:^|\s)(\w+\.py)\b", code):
            assert file in files, file


@document
def test_the_fields_and_flags_that_a_document_names_exist(name):
    scripts = ["train.py", "decode.py"]
    scripts += [
        f"scripts/{name}.py"
        for name in ("checkpoints", "convert", "export", "report", "attention_page")
    ]
    known = set().union(*map(flags_of, scripts)) | {option[2:] for option in pytest_options()}
    for code in inline_code(TEXTS[name]):
        flag = re.match(r"--([\w.]+)(?:=|$)", code)
        if flag and not flag[1].startswith(("config.", "xla_")):
            assert flag[1] in known or flag[1] == "config", code
        field = re.match(
            r"(?:--)?(?:config\.)?((model|data|training|decoding)\.([a-z]\w*))\b", code
        )
        if field and field[3] != "py":
            module = ROOT / "model" / f"{field[3]}.py"
            assert is_field(field[1]) or module.exists() or TENSOR.search(code), code


@document
def test_the_links_of_a_document_resolve(name):
    for link in links(TEXTS[name]):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("part", ["model", "data", "training", "decoding"])
def test_the_tables_list_every_config_field_with_its_default(part):
    document, heading = (
        ("docs/DECODING.md", "Search options")
        if part == "decoding"
        else ("docs/TRAINING.md", f"config.{part}")
    )
    listed = {}
    for names, defaults, *_ in table_rows(sections(TEXTS[document])[heading]):
        listed |= zip(names.split(", "), defaults.split(", "), strict=True)
    section = getattr(Config(), part)
    expected = {
        field.name: str(getattr(section, field.name)) or "empty"
        for field in fields(section)
        if field.name not in FROM_VOCABULARY.get(part, ())
    }
    assert listed == expected


@pytest.mark.parametrize(
    ("script", "name"), [("train.py", "docs/TRAINING.md"), ("decode.py", "docs/DECODING.md")]
)
def test_the_tables_list_every_flag(script, name):
    """Flags of libraries and search options, which have their own table, are not included."""
    options = {field.name for field in fields(Config().decoding)}
    files = [script, "seq2seq/cli/command.py", "seq2seq/cli/connection.py"]
    files.append(
        "seq2seq/decoding/command/flags.py"
        if script == "decode.py"
        else "seq2seq/data/tokens/corpus_cache.py"
    )
    source = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    defined = set(re.findall(r'(?:DEFINE_\w+|define_path)\(\s*"(\w+)"', source)) - options
    assert len(defined) > 5
    rows = table_rows(sections(TEXTS[name])[f"Flags of {script}"])
    listed = {flag for row in rows for flag in re.findall(r"--(\w+)", row[0])}
    assert defined <= listed


def test_the_fields_that_a_resumed_run_may_change_are_listed():
    listed = set(inline_code(sections(TEXTS["docs/TRAINING.md"])["Start and resume"]))
    names = {name.removeprefix("training.") for name in CHANGEABLE if "decoding." not in name}
    names = names - {"allow_data_change"} | {"training.allow_data_change", "config.decoding"}
    assert names <= listed
    unchangeable = {f"training.{field.name}" for field in fields(Config().training)} - CHANGEABLE
    assert not {name.removeprefix("training.") for name in unchangeable} & listed


def test_the_readme_is_short():
    assert TEXTS["README.md"].count("\n") <= 150


@pytest.mark.parametrize("name", [n for n, text in TEXTS.items() if fenced(text, "python")])
def test_python_code_compiles(name):
    for code in fenced(TEXTS[name], "python"):
        compile(code, name, "exec")


@pytest.mark.slow
def test_the_results_of_the_tour_are_those_that_it_shows():
    """All blocks in one namespace; the tour links every claim."""
    text = TEXTS["docs/TOUR.md"]
    blocks = "\n".join(fenced(text, "pycon"))
    example = doctest.DocTestParser().get_doctest(blocks, {}, "docs/TOUR.md", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    headings = re.findall(r"^## \d+\. .*$", TEXTS["docs/CLAIMS.md"], re.MULTILINE)
    claims = {target for target in links(text) if target.startswith("CLAIMS.md#")}
    assert len(claims) == len(headings) == 16


def compiled(method):
    """A method of a module whose arguments without names are arrays, compiled."""
    return lambda self, *arrays, **options: jax.jit(partial(method, self, **options))(*arrays)


def test_the_code_of_reuse_computes_a_decoder_layer_and_plots_its_attention(tmp_path, monkeypatch):
    """Cross-attention is not masked; the layer is causal, so later positions change nothing."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    for name in ("init", "apply"):  # faster than operation by operation
        monkeypatch.setattr(nn.Module, name, compiled(getattr(nn.Module, name)))
    names = {}
    for code in fenced(TEXTS["docs/REUSE.md"], "python"):
        exec(code, names)
    assert names["weights"].shape == (2, 4, 5, 6)
    np.testing.assert_allclose(names["weights"].sum(axis=-1), 1.0, atol=1e-5)
    x = np.where(np.arange(5)[:, None] < 3, names["x"], 0.0)
    output = names["layer"].apply(
        names["variables"], x, names["encoded"], method=names["decoder_layer"]
    )
    changed = np.abs(np.asarray(output) - names["output"]).max(axis=(0, 2)) > 1e-5
    assert changed.tolist() == [False] * 3 + [True] * 2
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")

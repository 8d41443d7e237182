"""An installed wheel works in a folder that has its own model.py, data/, train.py and decode.py."""

import ast
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.documents import ROOT, TEXTS, fenced
from tests.support.tiny import tiny_flags, write_corpus

COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "runs")
FOREIGN = "raise ImportError('this module is the user's')\n"
# The page runs in test_docs_python.py, with the modules of the clone; here all that it imports.
IMPORTS = """
import sys
from pathlib import Path
import seq2seq
assert Path(seq2seq.__file__).is_relative_to(sys.prefix), seq2seq.__file__
"""
# The help of all commands is tested in scripts/test_console_commands.py.
ENTRY_POINTS = """
from importlib.metadata import distribution
points = distribution("jax-transformer").entry_points
print(sorted(point.name for point in points if callable(point.load())))
"""


def pip(*arguments):
    """Run pip with the test environment's setuptools and without a network."""
    subprocess.run([sys.executable, "-m", "pip", "-q", *map(str, arguments)], check=True)


def new_environment(path, *installed):
    """The folder of the commands of a new virtual environment with one project, and with the
    packages of the test environment except its own copy of the project."""
    venv.create(path, symlinks=True)
    python = path / "bin" / "python"
    packages = next((path / "lib").glob("python*")) / "site-packages"
    # A path in a .pth file is searched, but the .pth files in it are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    offline = "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"
    pip("--python", python, "install", *offline, *installed)
    return python.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the project, where builds leave their files."""
    path = tmp_path_factory.mktemp("source") / "project"
    return shutil.copytree(ROOT, path, symlinks=True, ignore=IGNORED)


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", path, source)
    (file,) = path.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A research repository whose modules have the names of our top level."""
    path = tmp_path_factory.mktemp("research")
    for name in ("model.py", "train.py", "decode.py", "data/__init__.py", "configs/__init__.py"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(FOREIGN)
    return path


@pytest.mark.slow
def test_a_wheel_has_one_top_level_name_and_all_files(wheel):
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"seq2seq", "jax_transformer"}
    packaged = {Path(name) for name in names}
    for folder in ("model", "configs", "scripts"):
        files = {
            Path("seq2seq") / path.relative_to(ROOT)
            for path in (ROOT / folder).rglob("*.*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert files and files <= packaged
    assert {Path("seq2seq/train.py"), Path("seq2seq/decode.py")} <= packaged


@pytest.mark.slow
def test_an_editable_installation_has_one_top_level_name(source, folder, tmp_path):
    python = new_environment(tmp_path / "env", "-e", source) / "python"
    script = (
        "from importlib.util import find_spec\n"
        "names = 'runtime', 'storage', 'pretrained', 'training', 'decoding', 'examples'\n"
        "print([name for name in names if find_spec(name)])\n"
        "import seq2seq.model.attention, seq2seq.configs.base\n"
        "print(seq2seq.model.attention.__file__)"
    )
    run = subprocess.run([python, "-c", script], cwd=folder, capture_output=True, text=True)
    assert run.stdout.split("\n") == [
        "[]", str(source / "seq2seq" / "model" / "attention.py"), ""
    ], run.stderr  # fmt: skip


@pytest.mark.slow
def test_the_pages_and_the_commands_run_in_a_folder_with_modules_of_the_same_names(
    wheel, folder, tmp_path
):
    commands = new_environment(tmp_path / "env", wheel)

    def run(*command, stdin=None):
        done = subprocess.run(
            list(map(str, command)), cwd=folder, input=stdin, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    page = ast.parse("\n".join(fenced(TEXTS["docs/PYTHON.md"], "python")))
    imports = [x for x in ast.walk(page) if isinstance(x, ast.Import | ast.ImportFrom)]
    assert len(imports) > 5
    script = [IMPORTS, *map(ast.unparse, imports), *fenced(TEXTS["docs/REUSE.md"], "python")]
    printed = run(commands / "python", "-c", "\n".join([*script, ENTRY_POINTS]))
    assert printed.endswith(f"{sorted(COMMANDS)}\n")
    assert {path.name for path in commands.glob("seq2seq-*")} == COMMANDS.keys()
    module = ast.parse((ROOT / "scripts" / "checkpoints.py").read_text(encoding="utf-8"))
    description = ast.get_docstring(module).split("\n")[0]
    assert run(commands / "seq2seq-checkpoints", "--help").startswith(description)
    corpus = write_corpus(folder / "pairs.tsv", 60)  # its specification
    fields = tiny_flags()
    run(commands / "seq2seq-train", "--config=small", "--workdir=run", *fields,
        f"--config.data.corpus={corpus}", f"--config.data.valid={corpus}")  # fmt: skip
    assert run(commands / "seq2seq-decode", "--workdir=run", stdin="eins zwei\n\n").count("\n") == 2

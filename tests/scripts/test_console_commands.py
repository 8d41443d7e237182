"""Each script is a file that Python runs and a module whose `run` a console command calls."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from seq2seq.scripts import report
from tests.support.forked import call_forked
from tests.support.in_process import call_in_process

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "load_exported")


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_imported_without_a_change_of_the_path_and_run_as_a_file(name):
    content = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert content.endswith('\n\nif __name__ == "__main__":\n    run()\n')
    before = list(sys.path)
    assert callable(import_module(f"{report.__package__}.{name}").run)
    assert sys.path == before


@pytest.mark.parametrize("name", ["train", "decode", *(f"scripts.{name}" for name in NAMES)])
def test_the_help_of_a_command_begins_with_its_docstring_and_lists_its_flags(name):
    command = import_module(f"seq2seq.{name}")
    done = call_in_process(command, "--help")
    assert (done.code, done.err) == (0, [])
    assert done.out.startswith(command.__doc__.splitlines()[0])
    assert "\n  --" in done.out


@pytest.mark.parametrize(
    "arguments",
    [["scripts/report", "--help"], ["decode", "--help"], ["scripts/checkpoints", "list", "--x=1"]],
)
def test_a_console_command_prints_what_the_file_prints(arguments, tmp_path):
    name, *flags = arguments
    file, module = ROOT / f"{name}.py", f"seq2seq.{name.replace('/', '.')}"
    console = tmp_path / "console"
    console.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from {module} import run\nsys.exit(run())\n"
    )
    expected = call_forked([file, *flags], devices=0)
    done = call_forked([console, *flags], devices=0)
    assert (done.code, done.err) == (expected.code, expected.err)
    assert done.out.replace(f"{console}:", f"{file}:") == expected.out
    if "--help" in flags:
        assert done.out.startswith(import_module(module).__doc__.splitlines()[0])
        assert "\n  --workdir: " in done.out
    else:
        assert done.code == 1

"""The mutation test: which expressions are mutated, and how the outcomes are determined."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import mutation_test  # noqa: E402
from mutants import draw, mutants, source_files  # noqa: E402

CODE = '''"""A docstring of 3 words."""

def at_most(x: int = 3, name: "str" = "short"):
    """Another, with 5."""
    if x < 3 and not name:
        raise ValueError("a message", f"of {x + 1}")
    log("text", x)
    return call(x, name, key=True) + 1.5

__all__ = ["at_most"]
if __name__ == "__main__":
    at_most(7)
'''


def test_every_kind_of_change_is_made_and_no_message_is_changed():
    found = {
        (one.kind, one.original, one.mutated) for each in mutants("a.py", CODE) for one in each
    }
    assert found == {
        ("constant", "3", "(4)"),
        ("constant", "3", "(2)"),
        ("constant", '"short"', "('short_')"),
        ("operator", "x < 3 and not name", "(x < 3 or not name)"),
        ("comparison", "x < 3", "(x <= 3)"),
        ("operator", "not name", "(name)"),
        ("operator", "call(x, name, key=True) + 1.5", "(call(x, name, key=True) - 1.5)"),
        ("argument", "call(x, name, key=True)", "(call(name, x, key=True))"),
        ("argument", "call(x, name, key=True)", "(call(x, name))"),
        (
            "argument",
            'ValueError("a message", f"of {x + 1}")',
            "(ValueError(f'of {x + 1}', 'a message'))",
        ),
        ("constant", "True", "(False)"),
        ("constant", "1.5", "(3.0)"),
        ("constant", "1.5", "(0.75)"),
    }


@pytest.mark.slow
def test_mutants_of_this_project_parse_and_differ_from_it_in_one_place():
    sources = source_files(ROOT)
    assert {"train.py", "decode.py", "model/attention.py"} <= sources.keys()
    for mutant in draw(sources, 200, seed=0):
        source = sources[mutant.path]
        changed = mutant.apply(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutant
        assert changed.startswith(source[: mutant.start])
        assert changed.endswith(source[mutant.end :])


@pytest.mark.slow
def test_a_draw_depends_on_the_seed_and_reaches_every_file():
    sources = source_files(ROOT)
    first, repeated, other = (draw(sources, 200, seed) for seed in (0, 0, 1))
    assert first == repeated != other
    with_mutants = {path for path, source in sources.items() if mutants(path, source)}
    assert {mutant.path for mutant in first} == with_mutants
    assert len(first) == len({(m.path, m.start, m.end, m.mutated) for m in first}) == 200
    low = draw(sources, 400, 0, lambda path: 0.1 if "korean" in path else 1.0)
    share = [sum("korean" in m.path for m in some) for some in (draw(sources, 400, 0), low)]
    assert share[1] < share[0] / 3


def test_every_source_file_has_existing_test_files():
    files, equivalent = mutation_test.read_tables(ROOT)
    sources = source_files(ROOT)
    with_mutants = {path for path, source in sources.items() if mutants(path, source)}
    assert with_mutants <= files.keys() <= sources.keys()
    for path, names in files.items():
        assert names and len(set(names)) == len(names), path
        assert all((ROOT / name).is_file() for name in names), path
    for (path, code, *_), reason in equivalent.items():
        line = code.rpartition(" @")[0]
        assert line in (one.strip() for one in sources[path].split("\n")), (path, code)
        assert reason


# A toy project: one function with a test and one without.

TOY = """
def at_most(x):
    return x if x < 3.0 else 3.0

def double(x):
    return x * 2.0
"""
TOY_TEST = """
import sys; from pathlib import Path
sys.path.insert(0, str(Path(__file__).parents[2]))
from model import toy

def test_toy():
    assert [toy.at_most(x) for x in (1.0, 2.5, 4.0, 7.0)] == [1.0, 2.5, 3.0, 3.0]
"""


@pytest.fixture
def toy(tmp_path):
    """A git repository with the toy project."""
    for name, text in {
        "model/toy.py": TOY,
        "tests/test_toy.py": TOY_TEST,
        "tests/mutation/test_files.json": json.dumps({"model/toy.py": ["tests/test_toy.py"]}),
        "tests/mutation/equivalent.json": json.dumps(
            [
                {
                    "path": "model/toy.py",
                    "code": "return x if x < 3.0 else 3.0 @16",
                    "original": "x < 3.0",
                    "mutated": "(x <= 3.0)",
                    "reason": "both give 3.0",
                }
            ]
        ),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.slow
def test_killed_survived_and_equivalent_mutants_are_reported(toy, monkeypatch):
    report = mutation_test.mutation_test(toy, seed=0, count=100, jobs=2)
    lines = report.split("\n")
    survived = lines[lines.index("Survived:") + 1 : lines.index("Equivalent:") - 1]
    assert any("x * 2.0 → (x / 2.0)" in line for line in survived)
    assert not any(":3: " in line for line in survived)  # at_most has a test
    assert "| model/toy.py | " in report and "both give 3.0" in report
    assert (toy / "model" / "toy.py").read_text() == TOY

    monkeypatch.setattr(mutation_test, "run_tests", None)  # all results are in the file
    assert mutation_test.mutation_test(toy, seed=0, count=100, jobs=1) == report
    monkeypatch.undo()
    (toy / "tests" / "test_toy.py").write_text(TOY_TEST + "    assert toy.double(3.0) == 6.0\n")
    retried = mutation_test.mutation_test(toy, seed=0, count=100, jobs=2, retry=True)
    assert "x * 2.0" not in retried.split("Survived:")[1].split("Equivalent:")[0]


def test_a_run_without_output_is_stopped_and_has_failed(toy):
    endless = toy / "tests" / "test_endless.py"
    endless.write_text("import time\n\ndef test_endless():\n    time.sleep(10_000)\n")
    passed, failure, _ = mutation_test.run_tests(toy, str(endless), dict(os.environ), patience=1.0)
    assert not passed and failure == "no output for 1 s"


def test_a_test_that_fails_on_unchanged_code_ends_the_program(toy):
    (toy / "tests" / "test_toy.py").write_text("def test_toy():\n    assert False\n")
    with pytest.raises(SystemExit, match="fails on the unchanged code"):
        mutation_test.mutation_test(toy, seed=0, count=100, jobs=1)

"""The tools of the acceptance tests: the table and the injection points."""

import re
from pathlib import Path

import pytest
from pytest import TestReport

from tests.acceptance.injection import POINTS, find, replace
from tests.acceptance.processes import at
from tests.support.plugins.acceptance_table import ROWS, missing, table, write_table


def report(number, outcome, seen="", when="call"):
    properties = [("row", [number, "a fault", "a | b"]), *([("seen", seen)] if seen else [])]
    return TestReport("x", ("x", 0, "x"), {}, outcome, "E\n why", when, user_properties=properties)


def test_a_row_passes_if_all_its_tests_pass():
    lines = table(
        [
            report(2, "passed", "1 of 1"),
            report(2, "passed", when="setup"),
            report(1, "passed", "x"),
            report(1, "failed"),
            report(3, "skipped", when="setup"),
            report(2, "passed", "1 of 1"),
        ]
    )
    assert lines[2:5] == [
        "| 1 | a fault | a \\| b | x; E why | no |",
        "| 2 | a fault | a \\| b | 1 of 1 | yes |",
        "| 3 | a fault | a \\| b | E why | not run |",
    ]
    assert lines[-1] == "1 of 3 rows pass."


def test_a_row_that_did_not_run_is_missing():
    reports = [report(number, "passed") for number in range(1, ROWS + 1)]
    assert missing(table(reports)) == []
    assert missing(table([*reports[:6], *reports[8:]])) == [7, 8]
    assert missing(table([*reports, report(3, "failed")])) == [3]
    assert missing(table([*reports[1:], report(1, "skipped", when="setup")])) == [1]


def test_every_row_of_the_table_has_a_test():
    marks = re.findall(
        r"\brow\(\s*(\d+),",
        "".join(
            path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
        ),
    )
    assert set(map(int, marks)) == set(range(1, ROWS + 1))


def test_the_table_is_written_between_its_marks_or_into_a_new_file(tmp_path):
    lines = table([report(1, "passed", "x")])
    write_table(tmp_path / "new.md", lines, "pytest")
    (tmp_path / "old.md").write_text("above\n" + (tmp_path / "new.md").read_text() + "below\n")
    write_table(tmp_path / "old.md", lines, "pytest -n 2")
    text = (tmp_path / "old.md").read_text()
    assert text.startswith("above\n<!-- table -->\n") and text.endswith("-->\nbelow\n")
    assert text.count("| 1 |") == 1 and "`pytest -n 2`" in text and "`pytest`" not in text


def test_without_rows_the_table_is_empty():
    assert table([TestReport("x", ("x", 0, "x"), {}, "passed", None, "call")]) == []


@pytest.mark.parametrize("point", POINTS)
def test_every_injection_point_exists(point):
    owner, name = find(point)
    assert callable(getattr(owner, name))


@pytest.mark.parametrize("gone", ["train:renamed", "train:Trainer.renamed", "train:no.renamed"])
def test_an_injection_point_that_does_not_exist_is_an_error(monkeypatch, gone):
    monkeypatch.setitem(POINTS, "save", gone)
    with pytest.raises(LookupError, match=f"'save': {gone} does not exist"):
        replace("save", lambda original: original)
    with pytest.raises(AssertionError, match="'report' is not in"):
        at("report", 1, "TERM")

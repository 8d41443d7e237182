"""The frame itself: what tests tell becomes one line a row."""

from acceptance_table import table
from pytest import TestReport


def report(number, outcome, seen="", when="call"):
    properties = [("row", [number, "a fault", "a | b"]), *([("seen", seen)] if seen else [])]
    return TestReport("x", ("x", 0, "x"), {}, outcome, "E\n why", when, user_properties=properties)


def test_a_row_passes_if_all_its_tests_do():
    lines = table([
        report(2, "passed", "1 of 1"), report(2, "passed", when="setup"), report(1, "passed", "x"),
        report(1, "failed"), report(3, "skipped", when="setup"), report(2, "passed", "1 of 1"),
    ])
    assert lines[2:5] == [
        "| 1 | a fault | a \\| b | x; E why | no |",
        "| 2 | a fault | a \\| b | 1 of 1 | yes |",
        "| 3 | a fault | a \\| b | E why | not run |",
    ]
    assert lines[-1] == "1 of 3 rows pass."


def test_no_rows_no_table():
    assert table([TestReport("x", ("x", 0, "x"), {}, "passed", None, "call")]) == []

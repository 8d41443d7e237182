"""The pytest plugin of tests/acceptance: a table with columns #, fault, expected, seen, pass.

A test is marked `@pytest.mark.row(number, fault, expected)` and reports its observation with
`record_property("seen", text)`. Tests of the same row share a line, which passes if all pass.

    pytest tests/acceptance -m ""                   all rows (slow tests)
    pytest tests/acceptance -m "" --soak            with many more kills and flips
    pytest tests/acceptance -m "" --all-rows        fail unless rows 1 to 42 ran and passed
    pytest tests/acceptance -m "" --table=docs/RELIABILITY.md      write the table to a file
"""

import re
import shlex
import sys
from datetime import date
from pathlib import Path

import pytest

ROWS = 42
MARKS = "<!-- table -->\n", "<!-- end of table -->\n"  # around the table in a file


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="acceptance: 500 kills, 1,000 flips")
    parser.addoption(
        "--all-rows", action="store_true", help="acceptance: fail unless every row ran and passed"
    )
    parser.addoption("--table", help="acceptance: write the table into this Markdown file")


def pytest_configure(config):
    config.addinivalue_line("markers", "row(number, fault, expected): a line of the table")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Mark rows as slow, and attach the row to the reports, which xdist sends."""
    for item in items:
        if mark := item.get_closest_marker("row"):
            item.user_properties.append(("row", list(mark.args)))
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter, config):
    lines = table_of(terminalreporter)
    absent = missing(lines) if config.option.all_rows else []
    if not lines and not absent:
        return
    terminalreporter.section("acceptance")
    for line in lines:
        terminalreporter.write_line(line)
    if absent:
        terminalreporter.write_line(f"error: --all-rows: rows {absent} did not run or did not pass")
    if config.option.table:
        command = shlex.join(["pytest", *config.invocation_params.args])
        write_table(Path(config.option.table), lines, command)


def pytest_sessionfinish(session):
    """With --all-rows, a row that did not run fails the session."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.option.all_rows and reporter and missing(table_of(reporter)):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def table_of(terminalreporter) -> list[str]:
    """The table of all reports of a session."""
    return table(
        [
            report
            for reports in terminalreporter.stats.values()
            for report in reports
            if isinstance(report, pytest.TestReport)
        ]
    )


def missing(lines: list[str]) -> list[int]:
    """The rows from 1 to ROWS that did not pass."""
    passed = {int(line.split("|")[1]) for line in lines if line.endswith("| yes |")}
    return sorted(set(range(1, ROWS + 1)) - passed)


def table(reports: list[pytest.TestReport]) -> list[str]:
    """The lines of a Markdown table, one per row; empty if no test belongs to a row."""
    rows = {}
    for report in reports:
        properties = dict(report.user_properties)
        # The call of a test that ran; the setup of a test that was skipped or failed before.
        if "row" in properties and (report.when == "call" or report.outcome != "passed"):
            number, fault, expected = properties["row"]
            _, _, seen, results = rows.setdefault(number, (fault, expected, {}, []))
            text = properties.get("seen", "") if report.passed else reason(report)
            seen.update({text: None} if text else {})
            results.append(report.outcome)
    if not rows:
        return []
    lines = ["| # | fault | expected | seen | pass |", "|---|---|---|---|---|"]
    for number, (fault, expected, seen, results) in sorted(rows.items()):
        passed = "no" if "failed" in results else "yes" if "passed" in results else "not run"
        cells = (cell.replace("|", "\\|") for cell in (fault, expected, "; ".join(seen), passed))
        lines.append(f"| {number} | {' | '.join(cells)} |")
    passes = sum(line.endswith("| yes |") for line in lines)
    return [*lines, "", f"{passes} of {len(rows)} rows pass."]


def reason(report: pytest.TestReport) -> str:
    """The reason of a failed or skipped test, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    what = crash.message if crash else report.longrepr
    if isinstance(what, tuple):  # file, line, reason of a skipped test
        what = what[-1]
    return " ".join(str(what).split())[:200]


def write_table(path: Path, lines: list[str], command: str) -> None:
    """Replace the text between the marks of a file, or write a new file."""
    text = path.read_text(encoding="utf-8") if path.exists() else "".join(MARKS)
    stamp = f"{date.today()}, Python {sys.version.split()[0]}: `{command}`"
    inside = "\n".join([MARKS[0], stamp, "", *lines, "", MARKS[1]])
    pattern = ".*?".join(map(re.escape, MARKS))
    path.write_text(re.sub(pattern, lambda _: inside, text, flags=re.DOTALL), encoding="utf-8")

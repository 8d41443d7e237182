"""The plugin behind tests/acceptance: rows of a table `# · fault · expected · seen · pass`.

A test is marked `@pytest.mark.row(number, fault, expected)` and tells what it saw with
`record_property("seen", text)`. Several tests of one row share its line; it passes if all do.

    pytest tests/acceptance -m ""                   all rows, the slow ones too
    pytest tests/acceptance -m "" --soak            and with many more kills and flips
    pytest tests/acceptance -m "" --table=docs/RELIABILITY.md      writes the table there
"""

import re
import shlex
import sys
from datetime import date
from pathlib import Path

import pytest

MARKS = "<!-- table -->\n", "<!-- end of table -->\n"  # around the table in a file


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="acceptance: 500 kills, 1,000 flips")
    parser.addoption("--table", help="acceptance: write the table into this Markdown file")


def pytest_configure(config):
    config.addinivalue_line("markers", "row(number, fault, expected): a line of the table")


def pytest_collection_modifyitems(items):
    """What a row is travels with its reports, as xdist sends them."""
    for item in items:
        if mark := item.get_closest_marker("row"):
            item.user_properties.append(("row", list(mark.args)))


def pytest_terminal_summary(terminalreporter, config):
    lines = table([r for reports in terminalreporter.stats.values() for r in reports
                   if isinstance(r, pytest.TestReport)])
    if not lines:
        return
    terminalreporter.section("acceptance")
    for line in lines:
        terminalreporter.write_line(line)
    if config.option.table:
        command = shlex.join(["pytest", *config.invocation_params.args])
        write_table(Path(config.option.table), lines, command)


def table(reports: list[pytest.TestReport]) -> list[str]:
    """The lines of a Markdown table, a row each; empty where no test belongs to a row."""
    rows = {}
    for report in reports:
        told = dict(report.user_properties)
        # A test that ran is its call; one that was skipped or broke before it, its setup.
        if "row" in told and (report.when == "call" or report.outcome != "passed"):
            number, fault, expected = told["row"]
            _, _, seen, results = rows.setdefault(number, (fault, expected, {}, []))
            text = told.get("seen", "") if report.passed else reason(report)
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
    """Why a test failed or was skipped, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    what = crash.message if crash else report.longrepr
    if isinstance(what, tuple):  # file, line, why it was skipped
        what = what[-1]
    return " ".join(str(what).split())[:200]


def write_table(path: Path, lines: list[str], command: str) -> None:
    """Replace what is between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    stamp = f"{date.today()}, Python {sys.version.split()[0]}: `{command}`"
    inside = "\n".join([MARKS[0], stamp, "", *lines, "", MARKS[1]])
    pattern = ".*?".join(map(re.escape, MARKS))
    path.write_text(re.sub(pattern, lambda _: inside, text, flags=re.DOTALL), encoding="utf-8")

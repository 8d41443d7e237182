"""Write a screenshot of an HTML page as PNG, with the system's Chromium.

    python scripts/screenshot.py --page=a.html --output=a.png [--dark] [--width=1280] [--height=800]
--click=TEXT,TEXT clicks on elements first: the text of a choice, or the label of a head such as
"layer 1; head 2". --point=ROW,COLUMN points at a cell of the first large map.
Needs pip install -e '.[test]'.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.files.output_files import check_outputs, open_atomic
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.paths import expand_path
from seq2seq.scripts.pages.browser import chromium

PATIENCE = 2000  # milliseconds to wait for an element


def check_flags(f: flags.FlagValues) -> None:
    """UserError for flags that are invalid for any page; no browser is started yet."""
    if not Path(expand_path(f.page)).is_file():
        raise UserError(
            DATA, f"--page is invalid: expected an existing HTML file, got {f.page!r}; check it"
        )
    if f.point and (len(f.point) != 2 or not all(map(str.isdecimal, f.point))):
        raise UserError(
            CONFIGURATION,
            f"--point is invalid: expected ROW,COLUMN, got {','.join(f.point)!r}; "
            "count both from 0",
        )
    if not f.output.endswith(".png"):
        raise UserError(
            CONFIGURATION,
            f"--output is invalid: expected FILE.png, got {f.output!r}; rename the file",
        )
    check_outputs([f.output], f.overwrite, [f.page])


def click(page: Any, name: str) -> None:
    """Click on the first button of this name or element of this text of a Playwright page.

    UserError(CONFIGURATION) if there is no visible one.
    """
    from playwright.sync_api import TimeoutError

    button = page.get_by_role("button", name=name, exact=True)
    try:
        button.or_(page.get_by_text(name, exact=True)).first.click(timeout=PATIENCE)
    except TimeoutError:
        raise UserError(
            CONFIGURATION,
            f"--click is invalid: expected the text or label of a visible element, got {name!r}; "
            "check the page, and write ; for a comma in a name",
        ) from None


def point_at(page: Any, cell: Sequence[int]) -> None:
    """Move the pointer to a cell [row, column] of the first large map of a Playwright page.

    UserError(CONFIGURATION) if there is no map or no such cell.
    """
    cursors, frame = page.locator(".stage .cursor"), page.locator(".stage .frame").first
    shape = (0, 0)
    if cursors.count():
        size = float(cursors.first.get_attribute("width"))
        height, width = (float(frame.get_attribute(side)) for side in ("height", "width"))
        shape = int(height / size), int(width / size)
    if not all(index < count for index, count in zip(cell, shape, strict=True)):
        expected = f"a cell of {shape[0]} rows and {shape[1]} columns" if cursors.count() else ""
        raise UserError(
            CONFIGURATION,
            f"--point is invalid: expected {expected or 'a page with a map'}, got "
            f"{cell[0]},{cell[1]}; count both from 0, or leave --point out",
        )
    row, column = cell
    frame.hover(position={"x": (column + 0.5) * size, "y": (row + 0.5) * size}, force=True)


def main() -> None:
    f = flags.FLAGS
    check_flags(f)
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": f.width, "height": f.height},
            color_scheme="dark" if f.dark else "light",
        )
        page.goto(Path(expand_path(f.page)).absolute().as_uri())
        for name in f.click:
            click(page, name.replace(";", ","))
        if f.point:
            point_at(page, [*map(int, f.point)])
        content = page.screenshot(full_page=f.full)
    with open_atomic(f.output, f.overwrite) as file:
        file.write(content)


def define_flags() -> None:
    define_path("page", None, "The HTML file.", required=True)
    define_path("output", None, "The PNG file to write.", required=True)
    flags.DEFINE_integer("width", 1280, "Width of the window in pixels.", lower_bound=100)
    flags.DEFINE_integer("height", 800, "Height of the window in pixels.", lower_bound=100)
    flags.DEFINE_bool("dark", False, "Dark mode.")
    flags.DEFINE_bool("full", False, "The whole page instead of the window.")
    flags.DEFINE_list("click", [], "Elements to click first; ; stands for a comma in a name.")
    flags.DEFINE_list("point", [], "ROW,COLUMN: the cell of the large map under the pointer.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()

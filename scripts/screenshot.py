"""Write a screenshot of an HTML page as PNG, with the system's Chromium.

    python scripts/screenshot.py --page=a.html --output=a.png [--dark] [--width=1280] [--height=800]
--click=TEXT,TEXT clicks on elements first: the text of a choice, or the label of a head such as
"layer 1; head 2". --point=ROW,COLUMN points at a cell of the large map.
Needs pip install -e '.[test]'.
"""

import sys
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime.command import run_command
from runtime.path_flags import define_path
from scripts.pages.browser import chromium


def main() -> None:
    f = flags.FLAGS
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": f.width, "height": f.height},
            color_scheme="dark" if f.dark else "light",
        )
        page.goto(Path(f.page).expanduser().absolute().as_uri())
        for name in f.click:
            name = name.replace(";", ",")
            page.get_by_role("button", name=name, exact=True).or_(
                page.get_by_text(name, exact=True)
            ).first.click()
        if f.point:
            row, column = map(int, f.point)
            size = float(page.locator(".cursor").get_attribute("width"))
            place = {"x": (column + 0.5) * size, "y": (row + 0.5) * size}
            page.locator(".frame").hover(position=place, force=True)
        page.screenshot(path=f.output, full_page=f.full)


def define_flags() -> None:
    define_path("page", None, "The HTML file.", required=True)
    define_path("output", None, "The PNG file to write.", required=True)
    flags.DEFINE_integer("width", 1280, "Width of the window in pixels.", lower_bound=100)
    flags.DEFINE_integer("height", 800, "Height of the window in pixels.", lower_bound=100)
    flags.DEFINE_bool("dark", False, "Dark mode.")
    flags.DEFINE_bool("full", False, "The whole page instead of the window.")
    flags.DEFINE_list("click", [], "Elements to click first; ; stands for a comma in a name.")
    flags.DEFINE_list("point", [], "ROW,COLUMN: the cell of the large map under the pointer.")


if __name__ == "__main__":
    run_command(define_flags, main)

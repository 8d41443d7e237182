"""Pages in headless Chromium through Playwright: for tests and screenshots.

The browser is the system's (Debian: apt-get install chromium), not one that Playwright downloads.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seq2seq.runtime.errors import CONFIGURATION, UserError

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str | None:
    """The path of the system's Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A Playwright browser. UserError(CONFIGURATION) if Chromium or Playwright is missing."""
    path = chromium_path()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError(CONFIGURATION, "Playwright is missing; pip install -e '.[test]'") from None
    if path is None:
        raise UserError(
            CONFIGURATION, f"no browser: expected one of {', '.join(NAMES)} in PATH; install one"
        )
    with sync_playwright() as playwright:
        # A container often runs as root and has a small /dev/shm.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()

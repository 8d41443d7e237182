"""HTML pages in one file: the skeleton, embedded data, styles and scripts of this directory.

A page loads nothing: its Content-Security-Policy forbids every request.
"""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Characters that could end a script element or a line of JavaScript, as JSON escapes.
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page(title: str, body: str, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The HTML of a page. `body` is HTML; styles and scripts are names of files of this directory,
    which are embedded in this order."""
    css = "\n".join(map(_asset, styles))
    elements = "".join(f"<script>\n{_asset(name)}</script>\n" for name in scripts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>
{css}</style>
</head>
<body>
<main>
{body}
</main>
{elements}</body>
</html>
"""


def text(value: Any) -> str:
    """A value as HTML text, also within an attribute."""
    return html.escape(without_surrogates(str(value)))


def json_element(data: Any, kind: str) -> str:
    """A script element of class `kind` that holds data as JSON."""
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    encoded = without_surrogates(encoded).translate(ESCAPES)
    return f'<script type="application/json" class="{kind}">{encoded}</script>'


def without_surrogates(value: str) -> str:
    """A text with U+FFFD for each lone surrogate, which cannot be written as UTF-8."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")

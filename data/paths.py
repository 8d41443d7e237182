"""Paths that users give: local ones only."""

import re

from data.errors import CONFIGURATION, UserError

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check_local(name: str, path: str) -> None:
    """UserError(CONFIGURATION) if the path called `name` is a URL, as in gs://bucket/runs."""
    if REMOTE.match(path):
        raise UserError(CONFIGURATION, f"{name} is remote: expected a local path, got {path!r}; "
                        "copy the files or mount the file system")

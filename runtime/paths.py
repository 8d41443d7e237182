"""Paths that users give: ~ and environment variables are replaced; URLs are refused."""

import os
import re

from runtime.errors import CONFIGURATION, UserError

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expanded(path: str) -> str:
    """The path with ~ and environment variables replaced."""
    return os.path.expanduser(os.path.expandvars(path))


def check_local(name: str, path: str) -> None:
    """UserError(CONFIGURATION) if the path called `name` is a URL, as in gs://bucket/runs."""
    if REMOTE.match(path):
        raise UserError(
            CONFIGURATION,
            f"{name} is remote: expected a local path, got {path!r}; "
            "copy the files or mount the file system",
        )

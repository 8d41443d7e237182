"""Paths given by users: ~ and environment variables are expanded, URLs are refused."""

import os
import re

from runtime.errors import CONFIGURATION, UserError

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expand_path(path: str) -> str:
    """The path with ~ and environment variables expanded."""
    return os.path.expanduser(os.path.expandvars(path))


def check_local_path(name: str, path: str) -> None:
    """Raise UserError(CONFIGURATION) if the path is a URL such as gs://bucket/runs.

    `name` is the flag, field or file that the message names.
    """
    if REMOTE.match(path):
        raise UserError(
            CONFIGURATION,
            f"{name} is remote: expected a local path, got {path!r}; "
            "copy the files or mount the file system",
        )

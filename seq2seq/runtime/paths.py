"""Paths of users are expanded, and URLs refused where a path is expected; the cache directory."""

import hashlib
import os
import re
from functools import cache
from pathlib import Path

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.streams import note

STANDARD = "stdin", "stdout", "stderr"
DESCRIPTOR = re.compile(
    rf"/dev/(?P<name>{'|'.join(STANDARD)})|(/dev|/proc/self)/fd/(?P<number>\d+)"
)
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expand_path(path: str) -> str:
    """The path with ~ and environment variables expanded."""
    return os.path.expanduser(os.path.expandvars(path))


def is_replaceable(path: str) -> bool:
    """Whether `path` can be replaced by a file: False for a pipe, a device, a directory or an open
    file of this process. A URL can be replaced by an object."""
    if descriptor_of(path) is not None:
        return False
    return bool(REMOTE.match(path)) or os.path.isfile(path) or not os.path.exists(path)


def descriptor_of(path: str) -> int | None:
    """The number of the open file of this process that a path such as /dev/stdout or /dev/fd/63
    names; None for another path."""
    if match := DESCRIPTOR.fullmatch(path):
        return STANDARD.index(match["name"]) if match["name"] else int(match["number"])
    return None


def cache_directory() -> Path | None:
    """The directory of this project in the user's cache directory. None, with a warning, if the
    user has no home directory, as in a container with another user id."""
    directory = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if directory.startswith("~"):
        _note_no_home()
        return None
    return Path(directory) / "jax-transformer"


@cache
def _note_no_home() -> None:
    note(
        "warning: there is no home directory: nothing is cached; set HOME or XDG_CACHE_HOME, or "
        "directories with --compilation_cache and --corpus_cache"
    )


def working_copy(url: str, local_dir: str) -> Path:
    """The local directory of what has this URL: below --local_dir, or in the user's cache
    directory. UserError(CONFIGURATION) if there is neither."""
    directory = None if local_dir else cache_directory()
    if not local_dir and directory is None:
        raise UserError(
            CONFIGURATION,
            f"there is no directory for a copy of {url}: expected a home directory; set "
            "--local_dir, HOME or XDG_CACHE_HOME",
        )
    parent = Path(local_dir).expanduser() if directory is None else directory / "remote"
    url = url.rstrip("/")
    name, digest = url.rpartition("/")[2], hashlib.sha256(url.encode()).hexdigest()
    return parent.absolute() / f"{name}-{digest[:12]}"


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

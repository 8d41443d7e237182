"""Flags of paths and URLs: a flag declares itself as a path where it is defined."""

import os
from collections.abc import Callable

from absl import flags

from seq2seq.files.hub import check_model_name
from seq2seq.files.remote import check_url, is_remote
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.paths import check_local_path, expand_path

# --help lists the flags of the main module. Flags count as defined by the caller of `define_path`.
flags.disclaim_key_flags()


def define_path(
    name: str, default: str | None, help: str, required: bool = False, remote: bool = False
) -> None:
    """Define a flag of a path, or of several separated by commas.

    ~ and environment variables in its value are expanded. Parsing a URL raises
    UserError(CONFIGURATION), if `remote` only one that is not supported.
    """
    check = check_url if remote else check_local_path
    _define(name, default, help, required, PathParser(name, check))


def define_model(name: str, default: str | None, help: str, required: bool = False) -> None:
    """Define a flag of a model that is loaded, or of several separated by commas: paths as those of
    `define_path`, URLs of object storage, and names on the Hub (`files/hub.py`)."""
    _define(name, default, help, required, PathParser(name, check_model_name))


def _define(
    name: str, default: str | None, help: str, required: bool, parser: "PathParser"
) -> None:
    serializer: flags.ArgumentSerializer[str] = flags.ArgumentSerializer()
    flags.DEFINE(parser, name, default, help, serializer=serializer, required=required)


def check_no_comma(flag: str, path: str) -> None:
    """UserError(CONFIGURATION) for the path of a new run that other commands could not name."""
    if "," in path:
        raise UserError(
            CONFIGURATION,
            f"{flag} has a comma: expected a name without one, because commas separate the runs "
            f"of a flag, got {path!r}; choose another name",
        )


def define_local_dir() -> None:
    define_path(
        "local_dir",
        "",
        "Directory of the working copies of remote runs; default: in the user's cache directory.",
    )


class PathParser(flags.ArgumentParser):
    """Parses the value of a flag of `define_path`. `check` is called with the flag and each URL."""

    def __init__(self, flag: str, check: Callable[[str, str], None]):
        super().__init__()
        self._flag, self._check = flag, check

    def parse(self, argument: str) -> str:
        paths = list(map(expand_path, argument.split(",")))
        for path in paths:
            if path.startswith("~") and not os.path.lexists(path):
                raise UserError(
                    CONFIGURATION,
                    f"--{self._flag}={path}: this user has no home directory; write the path "
                    "without ~",
                )
            if is_remote(path):
                self._check(f"--{self._flag}", path)
        return ",".join(paths)

    def flag_type(self) -> str:
        return "string"

"""Exit codes, and the exception that ends a command with one line instead of a traceback."""

import copyreg
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERNAL, CONFIGURATION, DATA, CHECKPOINT, DIVERGED, OUTPUT = 1, 2, 3, 4, 5, 6


# What a URL can hold besides its path: user:password@ and the query of a signed one. The @ of
# hf://OWNER/NAME@REVISION precedes a revision.
SECRETS = re.compile(
    r"(?<=://)(?!(?<=hf://)[\w.-]+/[\w.-]+@)[^\s,;]*@|(?<=://)([^\s,;?]*)\?[^\s,;]*"
)


def masked(text: str) -> str:
    """A message without the secrets in its URLs."""
    return SECRETS.sub(lambda match: f"{match[1]}?…" if match[1] is not None else "…@", text)


class UserError(Exception):
    """An error that a user can cause and fix: one line on stderr and the exit code `code`.

    Codes: CONFIGURATION 2, DATA 3, CHECKPOINT 4, DIVERGED 5, OUTPUT 6 (output file or disk).
    """

    def __init__(self, code: int, message: str):
        super().__init__(masked(" ".join(message.split())))
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without a call of `__init__`: an error in a worker is raised in its parent."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give an OSError of the body that has no path this one: writing to an open file has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise

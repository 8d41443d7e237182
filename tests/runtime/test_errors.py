"""Exit codes: one number per kind of error, on which scripts around the commands rely."""

import pytest

from seq2seq.cli import command
from seq2seq.runtime import errors
from seq2seq.runtime.errors import UserError


@pytest.mark.parametrize(
    "name, code",
    [("CONFIGURATION", 2), ("DATA", 3), ("CHECKPOINT", 4), ("DIVERGED", 5), ("OUTPUT", 6)],
)
def test_every_kind_of_error_has_its_exit_code(name, code):
    assert getattr(errors, name) == code
    error = UserError(code, "a message")
    assert error.code == code and "a message" in str(error)


def test_an_internal_error_is_1():
    assert command.INTERNAL == 1

"""The one error a user can cause: a line that says what, where and what to do, and an exit code."""

INTERNAL, CONFIGURATION, DATA, CHECKPOINT, DIVERGED, OUTPUT = 1, 2, 3, 4, 5, 6


class UserError(Exception):
    """Ends a command with `message` on one line of stderr and the exit code `code`, no traceback.

    Codes (they are also the exit codes): CONFIGURATION 2, DATA 3, CHECKPOINT 4, DIVERGED 5,
    OUTPUT 6 (output or disk).
    """

    def __init__(self, code: int, message: str):
        super().__init__(" ".join(message.split()))
        self.code = code

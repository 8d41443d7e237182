"""Commands of scripts/ in the process of a test: flags, results and errors, without a new process.

For commands that use no device. That a script runs as a process, and its exit, are tested with
tests/forked.py.
"""

import contextlib
import io
import sys
from types import ModuleType
from unittest.mock import patch

from absl import app, flags
from forked import Done

from seq2seq.runtime.command import code_and_message, parse_flags


def call_in_process(script: ModuleType, *arguments) -> Done:
    """The result of `run` of a script; an error is its line on stderr."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    app.define_help_flags()  # once in a process
    known = set(flags.FLAGS)
    command = [f"{script.__name__}.py", *map(str, arguments)]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", command),
        patch(f"{script.__name__}.run_command", call_main),
    ):
        try:
            script.run()
        except SystemExit as end:  # --help was printed
            code = end.code
        except Exception as error:
            code, message = code_and_message(error)
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
        finally:
            for name in set(flags.FLAGS) - known:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
    return Done(code, out.getvalue(), err.getvalue().splitlines(), 0)


def call_main(define_flags, main, explain=lambda error: None) -> None:
    """What `run_command` does between the settings of the process and its exit."""
    parse_flags(define_flags, main, explain)
    main()

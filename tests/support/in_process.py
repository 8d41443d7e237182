"""Commands in the process of a test: flags, results and errors, without a new process.

Trainings share their programs with those of other tests and run on the devices of the tests. What a
process has of its own (its exit, signals, environment, number of devices) is tested with
tests/support/forked.py.
"""

import contextlib
import io
import os
import sys
import tempfile
from types import ModuleType
from unittest.mock import Mock, patch

import jax
from absl import app, flags

from seq2seq.cli import interruption
from seq2seq.cli.command import code_and_message, parse_flags
from seq2seq.runtime.signals import StopFlag
from seq2seq.training import dry_run
from tests.support.forked import Done
from tests.support.traced import shared_steps

# The functions that modules of this project call first when they use devices.
USES = "devices local_devices local_device_count device_count default_backend device_put".split()


def with_defaults(arguments, **defaults) -> list[str]:
    """The flags with those of the `defaults` whose names they do not have: none may be repeated."""
    names = {str(argument).partition("=")[0] for argument in arguments}
    others = [f"--{name}={value}" for name, value in defaults.items() if f"--{name}" not in names]
    return [*others, *map(str, arguments)]


def call_in_process(
    script: ModuleType, *arguments, stdin: bytes = b"", cwd=os.curdir, devices: bool = True
) -> Done:
    """The result of `run` of a command's module; an error is its line on stderr. Without `devices`,
    any use of one is an error."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    app.define_help_flags()  # once in a process
    known = set(flags.FLAGS)
    command = [f"{script.__name__}.py", *map(str, arguments)]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd),
        standard_input(stdin),
        patch.object(sys, "argv", command),
        replaced_settings(script),
        shared_steps(),
        contextlib.nullcontext() if devices else no_devices(),
    ):
        try:
            script.run()
        except SystemExit as end:  # --help was printed, or a training was stopped
            code = end.code
        except Exception as error:
            code, message = code_and_message(error)
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
        finally:
            for name in set(flags.FLAGS) - known:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
            sys.modules.pop("config_config", None)  # of --config: another one would extend it
    return Done(code, out.getvalue(), err.getvalue().splitlines(), 0)


@contextlib.contextmanager
def standard_input(content: bytes):
    """A context in which sys.stdin is a file with this content."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        with open(file.fileno(), encoding="utf-8", closefd=False) as text:
            with patch.object(sys, "stdin", text):
                yield


@contextlib.contextmanager
def no_devices():
    """A context in which the functions of USES raise."""
    with contextlib.ExitStack() as stack:
        for name in USES:
            refuse = Mock(side_effect=AssertionError("a device is used"))
            stack.enter_context(patch.object(jax, name, refuse))
        yield


@contextlib.contextmanager
def replaced_settings(script: ModuleType):
    """A context in which a command keeps the signal handlers of its process, and the XLA flags,
    which change the rounding of later tests."""
    replacements = {
        "run_command": call_main,
        "handle_signals": StopFlag,
        "prepare_jax": lambda *arguments, **options: None,
    }
    with contextlib.ExitStack() as stack:
        for module in (script, dry_run, interruption):
            for name in set(replacements) & set(vars(module)):
                stack.enter_context(patch.object(module, name, replacements[name]))
        yield


def call_main(define_flags, main, explain=lambda error: None, arguments=0, leave=None) -> None:
    """What `run_command` does between the settings of the process and its exit."""
    main(*parse_flags(define_flags, main, explain, arguments))

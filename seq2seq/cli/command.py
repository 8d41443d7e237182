"""The entry point shared by all commands: flags, one-line errors and exit codes, log levels."""

import errno
import gc
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import TextIOWrapper
from logging import getLogger
from typing import NoReturn

from absl import app, flags, logging

from seq2seq.cli.path_flags import PathParser, define_path
from seq2seq.runtime.errors import (
    CHECKPOINT,
    CONFIGURATION,
    INTERNAL,
    OUTPUT,
    UserError,
    masked,
    naming,
)
from seq2seq.runtime.streams import open_closed_streams, stdout_lost_its_reader, write_stderr

# Messages of Python and absl for a value of another type than that of the flag, and what to print.
WRONG_TYPES = {
    r"invalid literal for int\(\) with base 10:": "expected an integer, got",
    r"could not convert string to float:": "expected a number, got",
    r"\('Non-boolean argument to boolean flag', (.*)\)": r"expected true or false, got \1",
    r"flag (--\S+?)=(.*): already defined as (.*)": r"\1 is given twice: \3 and \2; remove one",
}
SURROGATE = re.compile("[\udc80-\udcff]")  # a byte that is not UTF-8, see PEP 383
RUNS = {"workdir", "to"}  # flags of run directories, whose path Orbax reads as UTF-8
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS
FLAX_ERRORS = ("ScopeParamShapeError", "ScopeParamNotFoundError")  # parameters do not fit


def run_command(
    define_flags: Callable[[], None],
    main: Callable[..., None],
    explain: Callable[[Exception], str | None] = lambda error: None,
    arguments: int = 0,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> None:
    """Define and parse the absl flags, call `main` with the at most `arguments` arguments that are
    no flags, and exit with the exit code of its result.

    An error is printed as one line on stderr; with --debug its traceback precedes that line.
    `explain` returns a message for an error of a config file or field or an unknown flag, or None.
    `leave` exits after an error, and if the reader of stdout has ended.
    """
    open_closed_streams()
    logging.set_verbosity(logging.ERROR)  # Orbax and TFDS log details at INFO and WARNING
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    gc.freeze()  # a collection takes 0.14 s for the 170,000 objects of the modules imported so far
    try:
        positional = parse_flags(define_flags, main, explain, arguments)
        if not flags.FLAGS.debug:
            silence_threads()
        main(*positional)
        with naming("stdout"):
            sys.stdout.flush()
    except BrokenPipeError as error:
        if not stdout_lost_its_reader():
            exit_with_error(*code_and_message(error), error, leave)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no message at exit
        leave(0)
    except KeyboardInterrupt:
        exit_with_error(128 + signal.SIGINT, "interrupted", leave=leave)
    except Exception as error:  # noqa: BLE001 – every error is printed as one line
        exit_with_error(*code_and_message(error), error, leave)


def code_and_message(error: Exception) -> tuple[int, str]:
    """The exit code and the one-line message of an error."""
    if isinstance(error, flags.Error):
        text = " ".join(str(error).split())
        for cause, printed in WRONG_TYPES.items():
            text = re.sub(cause, printed, text)
        return INTERNAL, f"{text} (--help lists the flags)"
    if isinstance(error, UserError):
        return error.code, str(error)
    if isinstance(error, OSError):
        return OUTPUT, os_error_message(error)
    from seq2seq.runtime.processes import is_lost_process

    if is_lost_process(error):
        return INTERNAL, (
            f"connection to another process lost ({str(error)[:200]}); restart all processes "
            "with the same command to resume"
        )
    if type(error).__name__ in FLAX_ERRORS:
        return CHECKPOINT, f"the checkpoint does not fit config.json's model: {error}"
    notes = "".join(
        f", {note}" for note in getattr(error, "__notes__", ()) if note.startswith("while ")
    )
    return INTERNAL, f"{type(error).__name__}: {error}{notes} (--debug prints the traceback)"


def os_error_message(error: OSError) -> str:
    """The message of an OSError; if a disk is full, what to do."""
    if error.errno not in FULL:
        return f"{type(error).__name__}: {error}"
    return (
        f"{error.filename or 'stdout or a file'} cannot be written: {error.strerror}; free space "
        "there, raise the limit, or choose another place, and run the same command again"
    )


def silence_threads() -> None:
    """Print no traceback of errors in Orbax's threads: they are raised again in the main thread.

    After a save that failed, those of orbax 0.12.8 also raise "Event loop is closed".
    """
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    logging.set_verbosity(logging.FATAL)
    getLogger("asyncio").disabled = True


def parse_flags(
    define_flags: Callable[[], None],
    main: Callable[..., None],
    explain: Callable[[Exception], str | None],
    arguments: int = 0,
) -> list[str]:
    """Define and parse the flags; --config executes its file. Returns the other arguments, at most
    `arguments`. Raises flags.Error and UserError."""
    flags.DEFINE_bool("debug", False, "Print the traceback of every error.")
    define_path(
        "compilation_cache",
        "",
        "Directory of compiled programs; off: none; empty: the user's cache directory.",
    )
    app.define_help_flags()
    try:
        define_flags()
        describe_command(define_flags, main)
        for name in flags.FLAGS:  # fields of the config may be overridden again
            flags.FLAGS[name].allow_overwrite = name.startswith("config.")
        rest = flags.FLAGS(sys.argv)[1:]
        check_encoding(flags.FLAGS)
    except SystemExit:
        sys.exit(0)  # --help was printed, after which absl exits with 1
    except flags.UnrecognizedFlagError as error:
        raise flags.Error(explain(error) or str(error)) from error
    except (UserError, BrokenPipeError):  # BrokenPipeError: --help | head
        raise
    except Exception as error:
        hint = explain(error)
        if isinstance(error, flags.Error) and not hint:
            raise
        hint = hint or f"--config: {type(error).__name__}: {error}"
        raise UserError(CONFIGURATION, hint) from error
    if len(rest) > arguments:
        unexpected = rest[arguments]
        raise flags.Error(f"unexpected argument {unexpected!r}; every option is a --flag=value")
    return rest


def check_encoding(f: flags.FlagValues) -> None:
    """UserError(CONFIGURATION) for a text that is not UTF-8, and for arguments beyond ASCII if
    Python reads them in another encoding. The path of a file may have any bytes."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and not all(map(str.isascii, sys.argv)):
        raise UserError(
            CONFIGURATION,
            f"the encoding of the locale is {encoding}: expected utf-8 for flags with characters "
            "beyond ASCII; set PYTHONUTF8=1 in the environment",
        )
    for name in f:
        value, is_path = f[name].value, isinstance(f[name].parser, PathParser)
        if not isinstance(value, str) or (is_path and name not in RUNS):
            continue
        if SURROGATE.search(value):
            raise UserError(
                CONFIGURATION,
                f"--{name} is not UTF-8: expected text in UTF-8, got {os.fsencode(value)!r}",
            )


def refuse_flags(names: Iterable[str], reason: str) -> None:
    """UserError(CONFIGURATION), with the reason, if one of these flags is given: it has no
    effect."""
    for name in names:
        if flags.FLAGS[name].present:
            raise UserError(CONFIGURATION, f"--{name} has no effect {reason}")


def describe_command(define_flags: Callable[[], None], main: Callable[..., None]) -> None:
    """Make --help print the docstring of main's module and the flags of define_flags' module.

    By default absl prints those of the module that Python runs. The file of an installed console
    command only imports the command's modules.
    """
    sys.modules["__main__"].__doc__ = main.__globals__["__doc__"]
    if define_flags.__module__ != "__main__":
        for flag in flags.FLAGS.get_key_flags_for_module(define_flags.__module__):
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def exit_at_once(code: int) -> NoReturn:
    """Exit without waiting for threads, which may be in compiled calls that take minutes."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def exit_with_error(
    code: int,
    message: str,
    error: Exception | None = None,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> NoReturn:
    """Print one line on stderr and exit with `leave`; the other processes of the same job exit as
    well.

    With --debug, the traceback of `error` precedes the line.
    """
    # Imports jax: not before flags are parsed.
    from seq2seq.cli.connection import stop_all_processes

    if error is not None and not isinstance(error, flags.Error) and debugging():
        with suppress(OSError):
            traceback.print_exception(error)
    write_error(message)
    stop_all_processes(code, message)
    leave(code)


def write_error(message: str) -> None:
    """Print an error as one line on stderr."""
    write_stderr(f"error: {masked(' '.join(message.split()))[:2000]}\n")


def debugging() -> bool:
    """Whether --debug is set."""
    return flags.FLAGS.is_parsed() and flags.FLAGS.debug

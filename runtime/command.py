"""What the command lines share: flags, one-line errors and exit codes, devices, caches."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from logging import getLogger

from absl import app, flags, logging

from runtime.devices import keep_freed_memory
from runtime.errors import CHECKPOINT, CONFIGURATION, INTERNAL, OUTPUT, UserError
from runtime.paths import check_local

# Flags of all commands that name a file or a directory, some of them several with commas between.
PATH_FLAGS = (
    "workdir",
    "input",
    "output",
    "target",
    "reference",
    "compilation_cache",
    "to",
    "from_run",
    "from_marian",
    "to_marian",
    "valid",
    "without",
    "score",
    "model",
)


def run_command(
    define_flags: Callable[[], None],
    main: Callable[[], None],
    explain: Callable[[Exception], str | None] = lambda error: None,
) -> None:
    """Define and parse the absl flags, call `main`, and exit with the code of what happened.

    A UserError is one line on stderr; with --debug every error keeps its traceback. `explain`
    returns the message for an error of a config file or field, or None.
    """
    keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # Orbax and TFDS narrate at INFO and WARNING
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parse_flags(define_flags, explain)
        if not flags.FLAGS.debug:
            silence_threads()
        main()
        sys.stdout.flush()
    except flags.Error as error:
        stop(INTERNAL, f"{' '.join(str(error).split())} (--help lists the flags)")
    except UserError as error:
        stop(error.code, str(error), error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # quiet at exit, too
        sys.exit(0)
    except KeyboardInterrupt:
        stop(128 + signal.SIGINT, "interrupted")
    except OSError as error:
        stop(OUTPUT, f"{type(error).__name__}: {error}", error)
    except Exception as error:  # noqa: BLE001 – the last resort: a line, not a page
        from runtime.processes import lost_another

        if lost_another(error):
            stop(
                INTERNAL,
                f"lost another process ({str(error)[:200]}); start all of them again "
                "with the same command to go on",
                error,
            )
        if type(error).__name__ in ("ScopeParamShapeError", "ScopeParamNotFoundError"):  # Flax's
            stop(CHECKPOINT, f"the checkpoint does not fit config.json's model: {error}", error)
        notes = "".join(
            f", {note}" for note in getattr(error, "__notes__", ()) if note.startswith("while ")
        )
        stop(INTERNAL, f"{type(error).__name__}: {error}{notes} (--debug shows where)", error)


def silence_threads() -> None:
    """No traceback of what fails in a thread of Orbax's: who waits for the thread raises it."""
    threading.excepthook = sys.unraisablehook = lambda _: None
    logging.set_verbosity(logging.FATAL)
    getLogger("asyncio").disabled = True


def parse_flags(
    define_flags: Callable[[], None], explain: Callable[[Exception], str | None]
) -> None:
    """Define and parse the flags; --config runs its file. Raises flags.Error and UserError."""
    flags.DEFINE_bool("debug", False, "Show the traceback of every error.")
    flags.DEFINE_string("compilation_cache", "", "Directory that keeps compiled programs, or off.")
    app.define_help_flags()
    try:
        define_flags()
        rest = flags.FLAGS(sys.argv)[1:]
    except SystemExit:
        sys.exit(0)  # --help was printed; absl would exit with 1
    except (flags.Error, BrokenPipeError):  # --help | head
        raise
    except Exception as error:
        hint = explain(error) or f"--config: {type(error).__name__}: {error}"
        raise UserError(CONFIGURATION, hint) from error
    for name in PATH_FLAGS:
        for path in str(getattr(flags.FLAGS, name, None) or "").split(","):
            check_local(f"--{name}", path)
    if rest:
        raise flags.Error(f"unexpected argument {rest[0]!r}; every option is a --flag=value")


def stop(code: int, message: str, error: BaseException | None = None) -> None:
    """One line on stderr, then exit, and so do other processes of the same job.

    Raises `error` itself under --debug.
    """
    from runtime.processes import leave  # jax: not before the flags are read

    if error is not None and flags.FLAGS.is_parsed() and flags.FLAGS.debug:
        raise error
    clear = "\r\033[K" if sys.stderr.isatty() else ""  # of the live progress line
    print(f"{clear}error: {' '.join(message.split())[:2000]}", file=sys.stderr)
    leave(code, message)
    sys.exit(code)

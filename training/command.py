"""What the command lines share: flags, one-line errors and exit codes, devices, caches."""

import ctypes
import difflib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from logging import getLogger
from pathlib import Path

from absl import app, flags, logging

from data.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from data.paths import check_local

INTERNAL = 1
DEVICE_COUNT = "xla_force_host_platform_device_count"  # in XLA_FLAGS
CACHE_BYTES = 2_000_000_000
CACHE_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")  # a name that jax gives
# Flags of all commands that name a file or a directory, some of them several with commas between.
PATH_FLAGS = ("workdir", "input", "output", "target", "reference", "compilation_cache", "to",
              "from_run", "from_marian", "to_marian", "valid", "without", "score", "model")


def run_command(define_flags: Callable[[], None], main: Callable[[], None]) -> None:
    """Define and parse the absl flags, call `main`, and exit with the code of what happened.

    A UserError is one line on stderr; with --debug every error keeps its traceback.
    """
    keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # Orbax and TFDS narrate at INFO and WARNING
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        parse_flags(define_flags)
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
        from training.hosts import lost_another

        if lost_another(error):
            stop(INTERNAL, f"lost another process ({str(error)[:200]}); start all of them again "
                 "with the same command to go on", error)
        if type(error).__name__ in ("ScopeParamShapeError", "ScopeParamNotFoundError"):  # Flax's
            stop(CHECKPOINT, f"the checkpoint does not fit config.json's model: {error}", error)
        notes = "".join(f", {note}" for note in getattr(error, "__notes__", ())
                        if note.startswith("while "))
        stop(INTERNAL, f"{type(error).__name__}: {error}{notes} (--debug shows where)", error)


def silence_threads() -> None:
    """No traceback of what fails in a thread of Orbax's: who waits for the thread raises it."""
    threading.excepthook = sys.unraisablehook = lambda _: None
    logging.set_verbosity(logging.FATAL)
    getLogger("asyncio").disabled = True


def parse_flags(define_flags: Callable[[], None]) -> None:
    """Define and parse the flags; --config runs its file. Raises flags.Error and UserError."""
    flags.DEFINE_bool("debug", False, "Show the traceback of every error.")
    flags.DEFINE_string(
        "compilation_cache", "", "Directory that keeps compiled programs, or off."
    )
    app.define_help_flags()
    try:
        define_flags()
        rest = flags.FLAGS(sys.argv)[1:]
    except SystemExit:
        sys.exit(0)  # --help was printed; absl would exit with 1
    except (flags.Error, BrokenPipeError):  # --help | head
        raise
    except Exception as error:
        hint = nearest_field(error) or f"--config: {type(error).__name__}: {error}"
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
    from training.hosts import leave  # jax: not before the flags are read

    if error is not None and flags.FLAGS.is_parsed() and flags.FLAGS.debug:
        raise error
    clear = "\r\033[K" if sys.stderr.isatty() else ""  # of the live progress line
    print(f"{clear}error: {' '.join(message.split())[:2000]}", file=sys.stderr)
    leave(code, message)
    sys.exit(code)


def nearest_field(error: Exception) -> str | None:
    """What ml_collections says of an unknown --config field, with the nearest name."""
    found = re.search(r"(?:Field |\.)(\w+) (?:not found on|does not exist)", str(error))
    if not found:
        return None
    # Imported here: only a mistake needs to know all names.
    from training.config import Config

    tree = Config()
    names = [f.name for f in fields(tree)]
    names += [f"{p.name}.{f.name}" for p in fields(tree) for f in fields(getattr(tree, p.name))]
    typed = next((a for a in sys.argv if found[1] in a and "config." in a), f"config.{found[1]}")
    typed = typed.lstrip("-").split("=")[0].removeprefix("no").removeprefix("config.")
    close = difflib.get_close_matches(typed, names, n=1, cutoff=0.5)
    hint = f"; did you mean config.{close[0]}?" if close else f"; there are {', '.join(names[:4])}"
    return f"unknown config field config.{typed}{hint}"


def prepare_jax(compilation_cache: str, devices: int = 0, deterministic: bool = False) -> None:
    """Set, before the backend starts, one CPU device per core and the persistent compilation cache.

    `devices` overrides the number of CPU devices; GPU and TPU devices are as they are. The cache is
    a directory, "off", or "" for the user's cache directory; at start its least recently used
    programs beyond CACHE_BYTES are deleted. With `deterministic`, GPUs add in one order.
    """
    if deterministic:
        os.environ["XLA_FLAGS"] = (
            os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true")
    import jax

    if DEVICE_COUNT not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", devices or min(usable_cores(), 8))
    if compilation_cache != "off":
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = Path(compilation_cache or f"{home}/jax-transformer").expanduser()
        shrink_cache(path)
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def prepare_jax_by_default() -> None:
    """`prepare_jax` for Python programs, where neither they nor XLA_FLAGS have set up the devices
    and no backend is initialised yet. A compilation cache that is configured already is kept."""
    import jax

    if DEVICE_COUNT in os.environ.get("XLA_FLAGS", "") or jax.config.jax_num_cpu_devices > 0:
        return
    try:
        prepare_jax(jax.config.jax_compilation_cache_dir or "")
    except RuntimeError:  # jax's answer after a backend is initialised; it has changed nothing
        pass


def usable_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shrink_cache(path: Path, limit: int = CACHE_BYTES) -> None:
    """Delete the least recently used programs of a compilation cache until `limit` bytes are left.

    jax's own limit (jax_compilation_cache_max_size) needs another package and fails on the entries
    that were written without it.
    """
    entries = []
    for entry in path.glob("*-cache"):
        if CACHE_ENTRY.fullmatch(entry.name):
            with suppress(OSError):  # another process may delete it, too
                facts = entry.stat()
                entries.append((max(facts.st_atime, facts.st_mtime), facts.st_size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= limit:
            return
        with suppress(OSError):
            entry.unlink()
        total -= size


def keep_freed_memory() -> None:
    """Tell glibc, where there is glibc, to keep freed memory.

    XLA's CPU buffers are allocated anew in each step; handing them back to the system between
    steps costs a page fault for every 4 KiB (benchmarks/train_speed.md). To be called before other
    threads allocate: what glibc has made for them by then (arenas) would be used on and do not heed
    these settings.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in ((mmap_max, 0), (arena_max, 1), (top_pad, 64 << 20),
                             (trim_threshold, 2**31 - 1)):
        mallopt(parameter, value)

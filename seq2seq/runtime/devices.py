"""Devices, compilation cache and memory allocator, which are set up before jax starts."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from seq2seq.runtime.errors import INTERNAL, UserError
from seq2seq.runtime.jax_settings import check_settings, fix_settings
from seq2seq.runtime.paths import cache_directory
from seq2seq.runtime.streams import note

DEVICE_COUNT = "xla_force_host_platform_device_count"  # in XLA_FLAGS
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
# XLA's CPU back end (jax 0.10.2 to 0.12) computes some fusions of products and reductions wrongly.
# Without them training is slower, decoding is not. docs/REUSE.md describes which; the programs of
# this project have none.
FUSIONS = "xla_cpu_experimental_ynn_fusion_type"
CACHE_BYTES = 2_000_000_000
PROGRAM_BYTES = 100_000  # about the size of a small program in the cache
MOST_CPU_DEVICES = 256
MOST_CORES = 8  # that are used at once: each needs memory of its own
CACHE_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")  # names of jax's entries


def prepare_jax(
    compilation_cache: str,
    devices: int = 0,
    deterministic: bool = False,
    decoding_only: bool = False,
) -> None:
    """Fix JAX's settings, and configure CPU devices, one per usable core, and the persistent
    compilation cache.

    To be called before the backend starts. `devices` overrides the number of CPU devices; GPU and
    TPU devices are not affected. `compilation_cache` is a directory, "off", or "" for the user's
    cache directory; the least recently used programs beyond CACHE_BYTES are deleted.
    `deterministic` makes GPUs add in a fixed order. `decoding_only` fuses no reductions on a CPU;
    without it such fusions make training faster (see FUSIONS).
    """
    import jax

    fix_settings()
    if DEVICE_COUNT not in os.environ.get("XLA_FLAGS", ""):
        # First, because it raises RuntimeError after a backend has started.
        jax.config.update("jax_num_cpu_devices", devices or usable_cores())
    if deterministic:
        _add_xla_flag(DETERMINISTIC)
    if decoding_only and FUSIONS not in os.environ.get("XLA_FLAGS", ""):
        _add_xla_flag(f"--{FUSIONS}=-reduce")
    # On a GPU, jax's random numbers from a kernel instead of 20 unrolled rounds: the same bits. The
    # initialisation of configs/multi30k.py compiles in 1 instead of 15 s.
    jax.config.update("jax_threefry_gpu_kernel_lowering", True)
    if compilation_cache == "off":
        return
    path = Path(compilation_cache).expanduser() if compilation_cache else cache_directory()
    if path is not None and is_cache(path):
        shrink_cache(path)
        jax.config.update("jax_compilation_cache_dir", str(path))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def is_cache(path: Path) -> bool:
    """Whether `path` is a directory, which is created if it is missing, with a warning if it cannot
    be written: programs in it are used, and jax does not warn about each one that it cannot add."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path) as file:
            file.write(bytes(PROGRAM_BYTES))
        return True
    except OSError as error:
        note(
            f"warning: the cache of compiled programs {path} cannot be written: {error.strerror}; "
            "set another --compilation_cache=DIR, or off"
        )
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache")
    return path.is_dir()


def _add_xla_flag(flag: str) -> None:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"


def is_deterministic() -> bool:
    """Whether GPUs add in a fixed order: `prepare_jax` or XLA_FLAGS asks for it."""
    return DETERMINISTIC in os.environ.get("XLA_FLAGS", "").split()


def prepare_jax_by_default(cpu_devices: int = 1) -> None:
    """`prepare_jax` as in decode.py, for Python programs that decode, with so many CPU devices:
    only if the devices are not configured yet and no backend has started. A configured compilation
    cache is kept. UserError as `check_settings` and `check_not_forked`."""
    import jax

    check_settings()
    check_not_forked()
    devices: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    cache: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if DEVICE_COUNT in os.environ.get("XLA_FLAGS", "") or devices > 0:
        return
    try:
        prepare_jax(cache or "", cpu_devices_for(cpu_devices), decoding_only=True)
    except RuntimeError:  # before any change, after a backend has started
        pass


def cpu_devices_for(model_parallel: Any) -> int:
    """The CPU devices on which a model can be divided so; 1 for a value that is invalid."""
    valid = isinstance(model_parallel, int) and 1 <= model_parallel <= MOST_CPU_DEVICES
    return model_parallel if valid else 1


def _note_fork() -> None:
    """In a child of os.fork: note whether the devices were started before."""
    global _forked_from
    bridge = sys.modules.get("jax._src.xla_bridge")  # jax has no public API for it
    if bridge is not None and bridge.backends_are_initialized():
        _forked_from = os.getppid()


_forked_from = 0  # the process id of a parent that had started the devices, or 0
os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """UserError(INTERNAL) in a fork of a process that had started the devices: the threads of JAX
    do not exist in it, so its calls would never return."""
    if _forked_from:
        raise UserError(
            INTERNAL,
            f"process {os.getpid()} is a fork of process {_forked_from}, which uses JAX: expected "
            "a process without JAX's threads; use multiprocessing.get_context('spawn'), or fork "
            "before JAX is used",
        )


def usable_cores() -> int:
    """The number of cores that this process may use, at most MOST_CORES."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return min(MOST_CORES, len(os.sched_getaffinity(0)))
    return min(MOST_CORES, os.cpu_count() or 1)


def shrink_cache(path: Path, limit: int = CACHE_BYTES) -> None:
    """Delete the least recently used programs of a compilation cache beyond `limit` bytes.

    jax's own limit (jax_compilation_cache_max_size) needs another package and fails on entries
    that were written without it.
    """
    entries = []
    for entry in path.glob("*-cache"):
        if CACHE_ENTRY.fullmatch(entry.name):
            with suppress(OSError):  # another process may delete it
                stat = entry.stat()
                entries.append((max(stat.st_atime, stat.st_mtime), stat.st_size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= limit:
            return
        with suppress(OSError):
            entry.unlink()
        total -= size


def keep_freed_memory() -> None:
    """Configure glibc, if present, to keep freed memory instead of returning it to the system.

    For training: XLA allocates its CPU buffers in each step; returning them between steps costs a
    page fault per 4 KiB (benchmarks/train_speed.md). A compiled search runs for seconds, so
    decoding does not gain, and would need half as much memory again. To be called before other
    threads allocate, as existing arenas of glibc ignore these settings.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in (
        (mmap_max, 0),
        (arena_max, 1),
        (top_pad, 64 << 20),
        (trim_threshold, 2**31 - 1),
    ):
        mallopt(parameter, value)


def return_freed_memory() -> None:
    """Return freed memory to the system, with glibc. A compilation frees some hundred MB, which
    the memory of the compiled program would otherwise be added to."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def wait_on_cpu(arrays: Any) -> None:
    """Wait for a tree of arrays on CPU devices, before another program is started.

    CPU devices share threads: two programs with collectives at once can wait for each other. Other
    devices run programs in the order in which they are started.
    """
    import jax

    if jax.default_backend() == "cpu":
        jax.block_until_ready(arrays)

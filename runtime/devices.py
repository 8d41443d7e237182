"""Devices, the cache of compiled programs and the allocator: set up before jax starts."""

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

DEVICE_COUNT = "xla_force_host_platform_device_count"  # in XLA_FLAGS
CACHE_BYTES = 2_000_000_000
CACHE_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")  # a name that jax gives


def prepare_jax(compilation_cache: str, devices: int = 0, deterministic: bool = False) -> None:
    """Set, before the backend starts, one CPU device per core and the persistent compilation cache.

    `devices` overrides the number of CPU devices; GPU and TPU devices are as they are. The cache is
    a directory, "off", or "" for the user's cache directory; at start its least recently used
    programs beyond CACHE_BYTES are deleted. With `deterministic`, GPUs add in one order.
    """
    if deterministic:
        os.environ["XLA_FLAGS"] = (
            os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
        )
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
    for parameter, value in (
        (mmap_max, 0),
        (arena_max, 1),
        (top_pad, 64 << 20),
        (trim_threshold, 2**31 - 1),
    ):
        mallopt(parameter, value)


def replicated() -> "jax.sharding.NamedSharding":  # noqa: F821 – jax is imported below
    """The sharding of a value that every local device holds whole."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.local_devices()), ("devices",))
    return NamedSharding(mesh, PartitionSpec())

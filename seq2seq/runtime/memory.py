"""Memory of the devices, total and free. CPU devices share the memory of the host."""

import ctypes
from pathlib import Path

import jax


def free_memory() -> int | None:
    """Bytes that each local device can still allocate; None if unknown."""
    devices = jax.local_devices()
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in stat for stat in stats):
        return min(stat["bytes_limit"] - stat.get("bytes_in_use", 0) for stat in stats)
    if devices[0].platform != "cpu":
        return None
    free = free_host_memory()
    return None if free is None else free // len(devices)


def device_memory() -> int | None:
    """Bytes of each local device that JAX may use, free or not; None if unknown (CPU)."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("bytes_limit" in stat for stat in stats):
        return None
    return min(stat["bytes_limit"] for stat in stats)


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still allocate; None without /proc (not Linux).

    The sum of available memory, free swap and the memory that this process has freed but not
    returned (`keep_freed_memory`), limited by its control groups (version 2).
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        free = 1024 * (kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0))
    except (OSError, ValueError, LookupError):
        return None
    return min(free, *_cgroup_limits(root), free) + _freed()


def _cgroup_limits(root: Path) -> list[int]:
    """Free bytes of each limited control group of this process; page cache counts as free."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        path = next(line[3:] for line in groups if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    top = root / "sys/fs/cgroup"
    group = top / path.strip("/")
    limits = []
    for directory in (group, *group.parents[: len(group.parts) - len(top.parts)]):
        try:
            limit = int((directory / "memory.max").read_text())  # "max" without a limit
            used = int((directory / "memory.current").read_text())
            lines = (directory / "memory.stat").read_text().splitlines()
            stat = {name: int(value) for name, value in map(str.split, lines)}
            limits.append(limit - used + stat["inactive_file"] + stat["active_file"])
        except (OSError, ValueError, KeyError):
            continue
    return limits


def _freed() -> int:
    """Bytes that glibc holds for this process and that are not in use."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(name, ctypes.c_size_t) for name in names.split()]
    mallinfo.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    return mallinfo().fordblks

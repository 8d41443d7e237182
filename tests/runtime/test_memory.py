"""Free memory of hosts, control groups and devices."""

from types import SimpleNamespace

import jax
import pytest

from seq2seq.runtime import memory


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  300 kB\nSwapFree: 50 kB\nHugePages: 0\n"
GROUP = {"memory.current": "90000", "memory.stat": "anon 5\nactive_file 3000\ninactive_file 7000\n"}


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({}, 350 * 1024),
        ({"a/b": "max", "a": "max"}, 350 * 1024),
        ({"a/b": "100000", "a": "max"}, 20_000),
        ({"a/b": "max", "a": "110000"}, 30_000),
        ({"a/b": "99999999999"}, 350 * 1024),
    ],
    ids=str,
)
def test_free_memory_is_limited_by_kernel_and_control_groups(tmp_path, monkeypatch, limits, free):
    monkeypatch.setattr(memory, "_freed", lambda: 0)
    write_tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "1:x:/y\n0::/a/b\n"})
    for group, limit in limits.items():
        files = GROUP | {"memory.max": limit}
        write_tree(tmp_path / "sys/fs/cgroup" / group, files)
    assert memory.free_host_memory(tmp_path) == free
    monkeypatch.setattr(memory, "_freed", lambda: 17)
    assert memory.free_host_memory(tmp_path) == free + 17


def test_without_proc_free_memory_is_unknown(tmp_path):
    assert memory.free_host_memory(tmp_path) is None


def test_free_memory_of_accelerators_is_the_minimum_over_the_devices(monkeypatch):
    def devices(*stats):
        return lambda: [SimpleNamespace(platform="gpu", memory_stats=lambda s=s: s) for s in stats]

    full = {"bytes_limit": 1000, "bytes_in_use": 300}
    for stats, free in (
        ((full,), 700),
        (({"bytes_limit": 900}, full), 700),
        (({"bytes_limit": 600}, full), 600),
        ((None, full), None),
    ):
        monkeypatch.setattr(jax, "local_devices", devices(*stats))
        assert memory.free_memory() == free


def test_the_devices_of_a_cpu_share_its_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_host_memory", lambda: 1003)
    assert jax.local_device_count() == 4 and memory.free_memory() == 250


def test_this_machine_has_free_memory_that_its_devices_share():
    host = memory.free_host_memory()
    assert host is None or 0 < memory.free_memory() <= host

"""Accelerators that programs are compiled for on a host that has none.

The compilers of TPUs (libtpu) and GPUs (XLA's CUDA plugin) run without the devices.
"""

import importlib.util
import os
import re
from typing import Any, NamedTuple

from absl import flags

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.jax_settings import fix_settings

GIB = 1 << 30


class Hardware(NamedTuple):
    """One device, with the figures of its vendor."""

    memory: int  # bytes
    flops: float  # per second, of dense products in bfloat16
    bandwidth: float  # bytes per second, of the memory
    interconnect: float  # bytes per second, of all links of a device, in each direction


TPUS = {
    "v4": Hardware(32 * GIB, 275e12, 1228e9, 150e9),
    "v5e": Hardware(16 * GIB, 197e12, 819e9, 100e9),
    "v5p": Hardware(95 * GIB, 459e12, 2765e9, 300e9),
    "v6e": Hardware(32 * GIB, 918e12, 1640e9, 224e9),
}
SMALLEST = {"v4": "2x2x1", "v5p": "2x2x1", "v5e": "2x2", "v6e": "2x2"}  # topologies
MEGACORE = ("v4", "v5p")  # the two cores of a chip are one device
GPUS = {
    "a100": Hardware(80 * 10**9, 312e12, 2039e9, 300e9),
    "h100": Hardware(80 * 10**9, 989e12, 3350e9, 450e9),
}
# XLA's description of a GPU. Of the figures that differ, the memory only is used by this project.
GPU_FIELDS = {
    "a100": dict(
        cores=108, units=64, shared=167936, optin=166912, cache=41943040, clock=1.41, major=8
    ),
    "h100": dict(
        cores=132, units=128, shared=233472, optin=232448, cache=52428800, clock=1.98, major=9
    ),
}
GPU_TEXT = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {optin} core_count: {cores} fpus_per_core: {units}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth} device_memory_size: {memory} l2_cache_size: {cache}
  clock_rate_ghz: {clock} registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability {{ major: {major} }}
}}
platform_name: "CUDA" device_description_str: "{name}"
"""
LIBTPU = {  # the environment of a host without a TPU
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
NAME = re.compile(r"(v\d\w?|[a-z]+\d+)(?::(\d+(?:x\d+)*))?")


class Target(NamedTuple):
    """Devices of one kind that are described but not present."""

    name: str
    hardware: Hardware
    devices: list[Any]
    platform: str  # as in jax.default_backend()

    @property
    def devices_of_host(self) -> int:
        """The devices of each host."""
        hosts = {device.process_index for device in self.devices}
        return len(self.devices) // len(hosts)


def define_compile_for() -> None:
    """Define the flag --compile_for."""
    flags.DEFINE_string(
        "compile_for",
        "",
        "Compile the programs for hardware that need not be present, such as v5e:4x4 (a TPU "
        "topology), v6e:1 (one chip), h100 or h100:8, print what they need of it, and exit.",
    )


def target_of(name: str) -> Target:
    """The target of a name such as v5e:4x4 (a TPU topology), v6e:1 (one chip), h100 or h100:8.

    Must be called before JAX starts a backend. UserError(CONFIGURATION) if the name is unknown or
    the compiler is not installed.
    """
    kind, _, size = name.partition(":")
    match = NAME.fullmatch(name)
    if match and kind in TPUS and size:
        _require("libtpu", "compile-tpu")
        return _tpu(name, kind, size)
    if match and kind in GPUS and "x" not in size:
        _require("jax_cuda12_plugin", "compile-gpu")
        return _gpu(name, kind, int(size or 1))
    raise UserError(
        CONFIGURATION,
        f"--compile_for={name} is unknown: expected a TPU topology such as v5e:4x4 or v6e:1 "
        f"({', '.join(TPUS)}) or GPUs such as h100 or h100:8 ({', '.join(GPUS)})",
    )


def _tpu(name: str, kind: str, size: str) -> Target:
    for variable, value in LIBTPU.items():
        os.environ.setdefault(variable, value)
    options = {"chip_config_name": "megacore"} if kind in MEGACORE else {}
    one_chip = size == "1"
    topology = f"{kind}:{SMALLEST[kind] if one_chip else size}"
    devices = _devices(name, "tpu", topology, **options)
    return Target(name, TPUS[kind], devices[:1] if one_chip else devices, "tpu")


def _gpu(name: str, kind: str, count: int) -> Target:
    hardware = GPUS[kind]
    text = GPU_TEXT.format(
        name=kind, memory=hardware.memory, bandwidth=int(hardware.bandwidth), **GPU_FIELDS[kind]
    )
    devices = _devices(name, "cuda", "", topology=f"1x1x{count}", target_config=text)
    return Target(name, hardware, devices, "cuda")


def _devices(name: str, platform: str, topology_name: str, **options: str) -> list[Any]:
    """The devices of a topology. No backend but that of the CPU is started."""
    import jax
    from jax.experimental import topologies

    fix_settings()
    jax.config.update("jax_platforms", "cpu")
    try:
        return list(topologies.get_topology_desc(topology_name, platform, **options).devices)
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            CONFIGURATION, f"--compile_for={name} is not a known topology: {reason}"
        ) from None


def _require(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(
            CONFIGURATION,
            f"--compile_for needs {package}, which is not installed: pip install -e '.[{extra}]'",
        )

"""Time of one all-reduce over the devices of all processes, beside what bytes and bandwidth say.

    python benchmarks/all_reduce.py --processes=2 --megabytes=4,64,252

starts so many local processes on one CPU device each (Gloo over loopback). On a cluster, start it
once for each process with the flags of train.py instead:

    srun python benchmarks/all_reduce.py --distributed --megabytes=252,857

Ring: each device sends and receives 2 (n − 1) / n of the bytes (docs/SCALING.md).
"""

import socket
import subprocess
import sys
import time

import jax
import numpy as np
from absl import flags

from runtime import processes
from runtime.command import run_command
from runtime.devices import prepare_jax

REPEATS = 25


def milliseconds(megabytes: float) -> float:
    """The fastest of a few all-reduces of so many float32 megabytes on each device."""
    add = jax.pmap(lambda x: jax.lax.psum(x, "devices"), "devices", donate_argnums=0)
    shape = jax.local_device_count(), int(megabytes * 1e6 / 4)
    x, times = add(np.zeros(shape, np.float32)), []
    for _ in range(REPEATS):
        jax.block_until_ready(x)
        processes.barrier("the next all-reduce")
        start = time.perf_counter()
        x = jax.block_until_ready(add(x))
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def start_others(processes: int) -> None:
    """This command again as processes 1, 2, …; this one becomes process 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    f = flags.FLAGS
    f.coordinator, f.num_processes, f.process_id = coordinator, processes, 0
    for i in range(1, processes):
        place = f"--num_processes={processes}", f"--process_id={i}"
        subprocess.Popen(
            [sys.executable, *sys.argv, "--processes=1", *place, f"--coordinator={coordinator}"]
        )


def main() -> None:
    f = flags.FLAGS
    if f.processes > 1:
        start_others(f.processes)
    prepare_jax(f.compilation_cache, 1)
    processes.connect(f)
    n = jax.device_count()
    if processes.is_first():
        print(
            f"{n} × {jax.devices()[0].device_kind}, {processes.count()} processes\n"
            "megabytes · ms · Gbit/s each way and device"
        )
    for megabytes in map(float, f.megabytes):
        took = milliseconds(megabytes)
        rate = 2 * (n - 1) / n * megabytes * 8e-3 / (took * 1e-3)
        if processes.is_first():
            print(f"{megabytes:g} · {took:.1f} · {rate:.1f}", flush=True)
    processes.barrier("the end")


def define_flags() -> None:
    flags.DEFINE_integer("processes", 1, "Local processes that this one starts and is one of.")
    flags.DEFINE_list("megabytes", "4,64,252", "Sizes; 252 are the gradients of base in float32.")
    processes.define_flags()


if __name__ == "__main__":
    run_command(define_flags, main)

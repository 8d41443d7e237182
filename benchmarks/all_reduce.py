"""Benchmark: time of one all-reduce over the devices of all processes, and the bandwidth.

    python benchmarks/all_reduce.py --processes=2 --megabytes=4,64,252

starts two local processes with one CPU device each (Gloo over loopback). On a cluster, start it
once per process with the flags of train.py:

    srun python benchmarks/all_reduce.py --distributed --megabytes=252,857

Ring: each device sends and receives 2 (n − 1) / n of the bytes (docs/SCALING.md).
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.runtime import connection, processes
from seq2seq.runtime.command import run_command
from seq2seq.runtime.devices import keep_freed_memory, prepare_jax

REPEATS = 25


def milliseconds(megabytes: float) -> float:
    """The time of the fastest of REPEATS all-reduces of `megabytes` of float32 per device."""
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


def start_local_processes(count: int) -> None:
    """Start this command as processes 1, 2, …; the current process becomes process 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    f = flags.FLAGS
    f.coordinator, f.num_processes, f.process_id = coordinator, count, 0
    for i in range(1, count):
        place = f"--num_processes={count}", f"--process_id={i}"
        subprocess.Popen(
            [sys.executable, *sys.argv, "--processes=1", *place, f"--coordinator={coordinator}"]
        )


def main() -> None:
    f = flags.FLAGS
    if f.processes > 1:
        start_local_processes(f.processes)
    prepare_jax(f.compilation_cache, 1)
    connection.connect(f)
    n = jax.device_count()
    if processes.is_first():
        print(
            f"{n} × {jax.devices()[0].device_kind}, {processes.count()} processes\n"
            "megabytes · ms · Gbit/s per direction and device"
        )
    for megabytes in map(float, f.megabytes):
        took = milliseconds(megabytes)
        rate = 2 * (n - 1) / n * megabytes * 8e-3 / (took * 1e-3)
        if processes.is_first():
            print(f"{megabytes:g} · {took:.1f} · {rate:.1f}", flush=True)
    processes.barrier("the end")


def define_flags() -> None:
    flags.DEFINE_integer("processes", 1, "Number of local processes, this one included.")
    flags.DEFINE_list(
        "megabytes", "4,64,252", "Sizes; 252 is the size of the gradients of base in float32."
    )
    connection.define_flags()


if __name__ == "__main__":
    keep_freed_memory()
    run_command(define_flags, main)

"""Several processes of one job: they connect, synchronise, compare settings and stop together.

Each process runs the same command on its own devices and sees the same files. Values of a batch are
summed by the devices (training/step.py); text is exchanged through the coordinator in process 0,
which can name a missing process. With a single process these functions start no service and return
at once.
"""

import atexit
import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NoReturn

import jax
import numpy as np
from absl import flags

# Private: jax has no public API for the process index before the backend starts (jax.process_index
# starts it), nor for the key-value store of the coordinator. The names used here are those of jax
# 0.10.2 to 0.12; pyproject.toml excludes later versions.
from jax._src import distributed

from runtime.devices import wait_on_cpu
from runtime.errors import CONFIGURATION, INTERNAL, UserError
from runtime.workers import close_workers

START_FACTOR = 5  # × --process_timeout: until all processes have started
WAIT_FACTOR = 60  # × --process_timeout: until a live process arrives at a synchronisation point
LOST = re.compile("gloo|nccl|connection|socket|unavailable|peer", re.IGNORECASE)
_rounds = itertools.count()  # of all_gather: the same in all processes
_timeout = 0  # milliseconds that `all_gather` waits for another process


def define_flags() -> None:
    """Define --distributed, or --coordinator with --num_processes and --process_id."""
    flags.DEFINE_bool(
        "distributed",
        False,
        "Run as one of several processes of a TPU pod, Slurm or Open MPI job; their number is read "
        "from the cluster.",
    )
    flags.DEFINE_string(
        "coordinator", "", "HOST:PORT of process 0 on other clusters; the same in all processes."
    )
    flags.DEFINE_integer("num_processes", None, "Number of processes, with --coordinator.")
    flags.DEFINE_integer("process_id", None, "Index of this process from 0, with --coordinator.")
    flags.DEFINE_integer(
        "process_timeout",
        60,
        "Seconds without a heartbeat after which a process is lost and all stop.",
        lower_bound=1,
    )


def connect(f: flags.FlagValues) -> None:
    """Connect to the other processes, if the flags name any, before any device is used.

    Raises UserError(CONFIGURATION) for inconsistent flags or if the processes cannot connect.
    """
    check_process_flags(f)
    if not (f.distributed or f.coordinator):
        return
    global _timeout
    _timeout = WAIT_FACTOR * f.process_timeout * 1000
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would intercept SIGTERM
    redirect_native_stdout()
    limit = START_FACTOR * f.process_timeout
    address = f.coordinator or "the coordinator of the cluster"
    message = (
        f"not all processes connected to {address} within {limit} s; start all of them with the "
        "same flags"
    )
    timer = threading.Timer(limit, _exit_unconnected, [message])
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            f.coordinator or None,
            f.num_processes,
            f.process_id,
            initialization_timeout=2 * limit,  # jax aborts after it; the timer above prints a line
            heartbeat_timeout_seconds=f.process_timeout,
            shutdown_timeout_seconds=f.process_timeout,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(CONFIGURATION, f"the processes could not connect: {error}") from error
    finally:
        timer.cancel()
    (listener := threading.Thread(target=_await_stop, daemon=True)).start()
    atexit.register(_end_listener, listener)  # runs before jax's handler, registered earlier


def _exit_unconnected(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(INTERNAL)


def check_process_flags(f: flags.FlagValues) -> None:
    """Raise UserError(CONFIGURATION) for incomplete or invalid flags of `define_flags`."""
    given = f.num_processes is not None, f.process_id is not None
    if any(given) and not f.coordinator or f.coordinator and not all(given):
        raise UserError(
            CONFIGURATION,
            "--coordinator=HOST:PORT, --num_processes and --process_id "
            "belong together; set all three, or --distributed alone on a known cluster",
        )
    if f.coordinator and not re.fullmatch(r".+:\d+", f.coordinator):
        raise UserError(CONFIGURATION, f"--coordinator must be HOST:PORT, got {f.coordinator!r}")
    if f.coordinator and not 0 <= f.process_id < f.num_processes:
        raise UserError(
            CONFIGURATION,
            "--process_id must be from 0 to --num_processes − 1, got "
            f"{f.process_id} of {f.num_processes}",
        )


def redirect_native_stdout() -> None:
    """Send file descriptor 1 to stderr and keep stdout for Python: Gloo prints a banner to it."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(stdout, "w", encoding="utf-8", errors="backslashreplace")


def index() -> int:
    """The index of this process, from 0."""
    return distributed.global_state.process_id


def count() -> int:
    """The number of processes."""
    return distributed.global_state.num_processes


def is_first() -> bool:
    """Whether this is process 0, which writes."""
    return index() == 0


def _client() -> Any:
    """The connection to the key-value store of the coordinator; None in a single process."""
    return distributed.global_state.client


def all_gather(name: str, value: Any) -> list[Any]:
    """The JSON `value` of every process, in their order; waits for all of them.

    Raises UserError(INTERNAL) with the process that did not reach the synchronisation `name`.
    """
    if count() == 1:
        return [value]
    client, current, values = _client(), next(_rounds), []
    client.key_value_set(f"{current}/{index()}", json.dumps(value))
    for process in range(count()):
        try:
            text = client.blocking_key_value_get(f"{current}/{process}", _timeout)
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                INTERNAL,
                f"process {process} of {count()} did not reach {name}: {str(error)[:300]}",
            ) from None
        values.append(json.loads(text))
    if current:  # all processes are in this round, so all have read the values of the last one
        client.key_value_delete(f"{current - 1}/{index()}")
    return values


def barrier(name: str) -> None:
    """Wait until all processes have reached this call."""
    all_gather(name, None)


def run_on_first(name: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function` in process 0 while the others wait; a UserError of it is raised in all."""
    failure = None
    if is_first():
        try:
            function(*arguments)
        except UserError as error:
            failure = error.code, str(error)
    if failure := all_gather(name, failure)[0]:
        raise UserError(*failure)


@contextmanager
def first_process_first(name: str) -> Iterator[None]:
    """Run the block in process 0 before the others, which find the files that it has written."""
    if not is_first():
        barrier(name)
    yield
    if is_first():
        barrier(name)


def check_agreement(facts: dict[str, Any]) -> None:
    """Raise UserError(CONFIGURATION) with the facts that differ between processes."""
    own = json.loads(json.dumps(facts))
    for process, other in enumerate(all_gather("the comparison of settings", own)):
        if different := [name for name in own if other.get(name) != own[name]]:
            values = ", ".join(
                f"{name}: {other.get(name)!r} and {own[name]!r}" for name in different[:3]
            )
            raise UserError(
                CONFIGURATION,
                f"processes {process} and {index()} differ in {values}; start all with the same "
                "command, files and run directory",
            )


def max_over_processes(*values: int) -> np.ndarray | jax.Array:
    """The largest of each value in any process; the same in all.

    With several processes a program on the devices computes it, in the order of all programs:
    reading the result waits for the programs before it and not for those after it.
    """
    if count() == 1:
        return np.array(values, np.int32)
    own = np.full((jax.local_device_count(), len(values)), values, np.int32)
    largest = _device_max()(own)
    wait_on_cpu(largest)
    return largest


@cache
def _device_max() -> Callable[[np.ndarray], jax.Array]:
    """The elementwise maximum over all devices of all processes."""
    return jax.pmap(partial(jax.lax.pmax, axis_name="devices"), "devices", out_axes=None)


def local_part(batch: Any) -> Any:
    """The slice of this process's devices of arrays [devices of all processes, …]."""
    devices = jax.local_device_count()
    start = index() * devices
    return jax.tree.map(lambda x: x[start : start + devices], batch)


def is_lost_process(error: Exception) -> bool:
    """Whether a computation failed because another process has ended."""
    # pmap raises some of these errors as ValueError.
    return (
        count() > 1
        and isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        and bool(LOST.search(str(error)))
    )


def stop_all_processes(code: int, message: str) -> None:
    """Exit with `code`, and make the other processes print `message` and exit with the same code.

    Returns if this is the only process.
    """
    client = _client()
    if client is None:
        return
    for process in range(count()):
        try:
            client.key_value_set(f"stop/{process}", json.dumps([code, index(), message]))
        except jax.errors.JaxRuntimeError:
            pass  # another process was faster, or the coordinator and all others have ended
    _exit(code)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    close_workers()
    if is_first():
        time.sleep(1)  # the coordinator ends with this process: the others read the reason first
    os._exit(code)  # exit handlers would wait for the other processes


def _await_stop() -> None:
    """Exit when another process has called `stop_all_processes`."""
    own, client = index(), _client()
    try:
        text = client.blocking_key_value_get(f"stop/{own}", 2**31 - 1)
    except jax.errors.JaxRuntimeError:
        return
    code, process, message = json.loads(text)
    if code is not None and process != own:
        print(f"error: process {process} stopped: {message}", file=sys.stderr)
        _exit(code)


def _end_listener(listener: threading.Thread) -> None:
    """At a normal exit, end the thread of `_await_stop`, which must not outlive jax's client."""
    try:
        _client().key_value_set(f"stop/{index()}", "[null, 0, null]")
    except jax.errors.JaxRuntimeError:
        return
    listener.join()

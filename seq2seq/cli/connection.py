"""The connection of several processes to one job: flags, start, and an end of all together.

With a single process no service is started. A process that fails makes the others print its
message and exit with its code.
"""

import atexit
import json
import os
import re
import sys
import threading
import time
from typing import NoReturn

import jax
from absl import flags

from seq2seq.files.remote_lock import release_all
from seq2seq.runtime.errors import CONFIGURATION, INTERNAL, UserError
from seq2seq.runtime.processes import NO_LIMIT, count, index, is_first, set_timeout, store
from seq2seq.runtime.streams import write_stderr

ONE_PROCESS = ("compile_for", "dry_run")  # flags of commands that run in one process
START_FACTOR = 5  # × --process_timeout: until all processes have started
WAIT_FACTOR = 60  # × --process_timeout: until a live process arrives at a synchronisation point
RELEASE_SECONDS = 5.0  # to give locks in object storage back


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
    set_timeout(WAIT_FACTOR * f.process_timeout)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its handler of SIGTERM (jax 0.10.2 to 0.12) replaces the default and any installed before.
    jax.config.update("jax_enable_preemption_service", False)
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
    write_stderr(f"error: {message}\n")
    os._exit(INTERNAL)


def check_process_flags(f: flags.FlagValues) -> None:
    """Raise UserError(CONFIGURATION) for incomplete or invalid flags of `define_flags`, and for
    several processes of a command that runs in one."""
    for name in ONE_PROCESS:
        if getattr(f, name, False) and (f.distributed or f.coordinator):
            raise UserError(
                CONFIGURATION,
                f"--{name} runs in one process; remove --distributed and --coordinator, and for "
                "the memory of one of N hosts divide training.tokens_per_batch by N",
            )
    numbers = f.num_processes is not None, f.process_id is not None
    if any(numbers) and not f.coordinator or f.coordinator and not all(numbers):
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


def stop_all_processes(code: int, message: str) -> None:
    """Exit with `code`, and make the other processes print `message` and exit with the same code.

    Returns if this is the only process.
    """
    client = store()
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
    release_all(RELEASE_SECONDS)
    if is_first():
        time.sleep(1)  # the coordinator ends with this process: the others read the reason first
    os._exit(code)  # exit handlers would wait for the other processes


def _await_stop() -> None:
    """Exit when another process has called `stop_all_processes`."""
    this_process, client = index(), store()
    try:
        text = client.blocking_key_value_get(f"stop/{this_process}", NO_LIMIT)
    except jax.errors.JaxRuntimeError:
        return
    code, process, message = json.loads(text)
    if code is not None and process != this_process:
        write_stderr(f"error: process {process} stopped: {message}\n")
        _exit(code)


def _end_listener(listener: threading.Thread) -> None:
    """At a normal exit, end the thread of `_await_stop`, which must not outlive jax's client."""
    try:
        store().key_value_set(f"stop/{index()}", "[null, 0, null]")
    except jax.errors.JaxRuntimeError:
        return
    listener.join()

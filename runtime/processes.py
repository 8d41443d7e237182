"""Several processes, one job: they find each other, meet, agree, and stop together.

Each runs the same command on its own devices and sees the same files. Values of the batch are
added by the devices themselves (step.py); text goes through process 0's coordinator, which can say
who is missing. A process on its own is the case of one: nothing here then costs or starts anything.
"""

import atexit
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from absl import flags

# Process numbers before any device is started: jax has no public name for them.
from jax._src import distributed

from runtime.errors import CONFIGURATION, INTERNAL, UserError

TO_START = 5  # × --process_timeout: until all have started
TO_ARRIVE = 60  # × --process_timeout: until one that lives arrives where the others wait
LOST = re.compile("gloo|nccl|connection|socket|unavailable|peer", re.IGNORECASE)
_turns = itertools.count()
_patience = 0  # milliseconds that `exchange` waits for another process


def define_flags() -> None:
    """--distributed, or --coordinator with --num_processes and --process_id."""
    flags.DEFINE_bool(
        "distributed",
        False,
        "One of several processes on a TPU pod, Slurm or Open MPI, which say how many there are.",
    )
    flags.DEFINE_string("coordinator", "", "HOST:PORT of process 0, anywhere else; same for all.")
    flags.DEFINE_integer("num_processes", None, "How many processes there are, with --coordinator.")
    flags.DEFINE_integer("process_id", None, "Which one this is, from 0, with --coordinator.")
    flags.DEFINE_integer(
        "process_timeout",
        60,
        "Seconds without a sign of life after which a process is lost, and all stop.",
        lower_bound=1,
    )


def connect(f: flags.FlagValues) -> None:
    """Wait for the other processes, if the flags speak of any, before any device is used.
    UserError(CONFIGURATION) where the flags are not complete or the others do not come."""
    check_flags(f)
    if not (f.distributed or f.coordinator):
        return
    global _patience
    _patience = TO_ARRIVE * f.process_timeout * 1000
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    greetings_to_stderr()
    limit = TO_START * f.process_timeout
    where = f.coordinator or "the coordinator of the cluster"
    too_late = threading.Timer(
        limit,
        _give_up,
        [
            f"not all processes came to {where} within "
            f"{limit} s; start all of them, with the same flags"
        ],
    )
    too_late.daemon = True
    too_late.start()
    try:
        jax.distributed.initialize(
            f.coordinator or None,
            f.num_processes,
            f.process_id,
            initialization_timeout=2 * limit,  # its end is an abort; ours is a line
            heartbeat_timeout_seconds=f.process_timeout,
            shutdown_timeout_seconds=f.process_timeout,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(CONFIGURATION, f"the processes did not find each other: {error}") from error
    finally:
        too_late.cancel()
    (listener := threading.Thread(target=_listen, daemon=True)).start()
    atexit.register(_stop_listening, listener)  # before jax's own, which was registered earlier


def _give_up(message: str) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(INTERNAL)


def check_flags(f: flags.FlagValues) -> None:
    """Raises UserError(CONFIGURATION)."""
    given = f.num_processes is not None, f.process_id is not None
    if any(given) and not f.coordinator or f.coordinator and not all(given):
        raise UserError(
            CONFIGURATION,
            "--coordinator=HOST:PORT, --num_processes and --process_id "
            "belong together; --distributed alone asks the cluster",
        )
    if f.coordinator and not re.fullmatch(r".+:\d+", f.coordinator):
        raise UserError(CONFIGURATION, f"--coordinator must be HOST:PORT, got {f.coordinator!r}")
    if f.coordinator and not 0 <= f.process_id < f.num_processes:
        raise UserError(
            CONFIGURATION,
            "--process_id must be from 0 to --num_processes − 1, got "
            f"{f.process_id} of {f.num_processes}",
        )


def greetings_to_stderr() -> None:
    """Gloo says hello on the process's stdout, which is for results: only Python keeps it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = open(kept, "w", encoding="utf-8", errors="backslashreplace")


def index() -> int:
    """Which process this is, from 0."""
    return distributed.global_state.process_id


def count() -> int:
    """How many processes there are."""
    return distributed.global_state.num_processes


def first() -> bool:
    """Whether this is the process that writes."""
    return index() == 0


def exchange(what: str, mine: Any) -> list[Any]:
    """What each process gave, in their order; all wait for the last. It travels as JSON.

    Raises UserError(INTERNAL) that names the process that does not come to `what`.
    """
    if count() == 1:
        return [mine]
    client, turn, given = distributed.global_state.client, next(_turns), []
    client.key_value_set(f"{turn}/{index()}", json.dumps(mine))
    for process in range(count()):
        try:
            text = client.blocking_key_value_get(f"{turn}/{process}", _patience)
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                INTERNAL,
                f"process {process} of {count()} did not come to {what}: {str(error)[:300]}",
            ) from None
        given.append(json.loads(text))
    if turn:  # all have come here, so all have read what came before
        client.key_value_delete(f"{turn - 1}/{index()}")
    return given


def meet(what: str) -> None:
    """Wait until all processes are here."""
    exchange(what, None)


def by_the_first(what: str, write: Callable[..., None], *arguments: Any) -> None:
    """Process 0 writes `what`, the others wait for it; they raise the UserError that it raises."""
    failed = None
    if first():
        try:
            write(*arguments)
        except UserError as error:
            failed = error.code, str(error)
    if failed := exchange(what, failed)[0]:
        raise UserError(*failed)


@contextmanager
def after_the_first(what: str) -> Iterator[None]:
    """Process 0 does this block before the others do, who find what it has written."""
    if not first():
        meet(what)
    yield
    if first():
        meet(what)


def agree(facts: dict[str, Any]) -> None:
    """Raises UserError(CONFIGURATION) that names what is not the same in all processes."""
    mine = json.loads(json.dumps(facts))
    for process, theirs in enumerate(exchange("the comparison of settings", mine)):
        if different := [name for name in mine if theirs.get(name) != mine[name]]:
            what = ", ".join(f"{n} {theirs.get(n)!r}, here {mine[n]!r}" for n in different[:3])
            raise UserError(
                CONFIGURATION,
                f"process {process} differs from process {index()}: "
                f"{what}; all need the same command, files and run directory",
            )


def shared(stopped_by: signal.Signals | None, waiting: bool) -> tuple[signal.Signals | None, bool]:
    """The signal that any process has received, and whether any waits: the same answer in all."""
    if count() == 1:
        return stopped_by, waiting
    mine = np.full((jax.local_device_count(), 2), [stopped_by or 0, waiting], np.int32)
    number, waits = map(int, _largest()(mine))
    return (signal.Signals(number) if number else None), bool(waits)


@cache
def _largest():
    return jax.pmap(partial(jax.lax.pmax, axis_name="devices"), "devices", out_axes=None)


def own_part(batch: Any) -> Any:
    """Of arrays [devices of all processes, …] those of this process's devices."""
    devices = jax.local_device_count()
    begin = index() * devices
    return jax.tree.map(lambda x: x[begin : begin + devices], batch)


def lost_another(error: Exception) -> bool:
    """Whether this error of a computation is that another process is not there any more."""
    # pmap gives some of them as ValueError.
    return (
        count() > 1
        and isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        and bool(LOST.search(str(error)))
    )


def leave(code: int, message: str) -> None:
    """Of several processes: tell the others why, and end; they end with the same code."""
    client = distributed.global_state.client
    if client is None:
        return
    for process in range(count()):
        try:
            client.key_value_set(f"stop/{process}", json.dumps([code, index(), message]))
        except jax.errors.JaxRuntimeError:
            pass  # another one was faster, or the coordinator is gone: then so are the others
    _end(code)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if first():
        time.sleep(1)  # it takes the coordinator with it: the others are to hear why first
    os._exit(code)  # what runs at a usual exit would wait for the others


def _listen() -> None:
    """End this process when another one says that it had to stop."""
    me = index()
    client = distributed.global_state.client
    try:
        text = client.blocking_key_value_get(f"stop/{me}", 2**31 - 1)
    except jax.errors.JaxRuntimeError:
        return
    code, process, message = json.loads(text)
    if code is not None and process != me:
        print(f"error: process {process} stopped: {message}", file=sys.stderr)
        _end(code)


def _stop_listening(listener: threading.Thread) -> None:
    """At a usual exit: a thread inside the client would outlive it."""
    try:
        distributed.global_state.client.key_value_set(f"stop/{index()}", "[null, 0, null]")
    except jax.errors.JaxRuntimeError:
        return
    listener.join()

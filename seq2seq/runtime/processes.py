"""Several processes of one job: they synchronise, compare settings and exchange values.

Each process runs the same command on its own devices and sees the same files. Values of a batch are
summed by the devices (seq2seq/training/step.py); text is exchanged through the coordinator in
process 0, which can name a missing process. With a single process these functions return at once.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import numpy as np

# Private: jax has no public API for the process index before the backend starts (jax.process_index
# starts it), nor for the key-value store of the coordinator. The names used here are those of jax
# 0.10.2 to 0.12; pyproject.toml excludes later versions.
from jax._src import distributed

from seq2seq.runtime.devices import wait_on_cpu
from seq2seq.runtime.errors import CONFIGURATION, INTERNAL, UserError

LOST = re.compile("gloo|nccl|connection|socket|unavailable|peer", re.IGNORECASE)
_rounds = itertools.count()  # of all_gather: the same in all processes
NO_LIMIT = 2**31 - 1  # milliseconds, 24 days: the longest time that jax's client accepts
_timeout = 0  # milliseconds that `all_gather` waits for another process


def index() -> int:
    """The index of this process, from 0."""
    return distributed.global_state.process_id


def count() -> int:
    """The number of processes."""
    return distributed.global_state.num_processes


def is_first() -> bool:
    """Whether this is process 0, which writes."""
    return index() == 0


def store() -> Any:
    """The connection to the key-value store of the coordinator; None in a single process."""
    return distributed.global_state.client


def set_timeout(seconds: int) -> None:
    """Set how long `all_gather` waits for another process."""
    global _timeout
    _timeout = seconds * 1000


def all_gather(name: str, value: Any, is_limited: bool = True) -> list[Any]:
    """The JSON `value` of every process, in their order; waits for all of them, without a limit for
    live processes unless `is_limited`.

    Raises UserError(INTERNAL) with the process that did not reach the synchronisation `name`.
    """
    if count() == 1:
        return [value]
    client, current, values = store(), next(_rounds), []
    limit = _timeout if is_limited else NO_LIMIT
    client.key_value_set(f"{current}/{index()}", json.dumps(value))
    for process in range(count()):
        try:
            text = client.blocking_key_value_get(f"{current}/{process}", limit)
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                INTERNAL,
                f"process {process} of {count()} did not reach {name}: {str(error)[:300]}",
            ) from None
        values.append(json.loads(text))
    if current:  # all processes are in this round, so all have read the values of the last one
        client.key_value_delete(f"{current - 1}/{index()}")
    return values


def barrier(name: str, is_limited: bool = True) -> None:
    """Wait until all processes have reached this call (`all_gather`)."""
    all_gather(name, None, is_limited)


def run_on_first(
    name: str, function: Callable[..., None], *arguments: Any, is_limited: bool = True
) -> None:
    """Call `function` in process 0 while the others wait (`all_gather`); a UserError of it is
    raised in all."""
    failure = None
    if is_first():
        try:
            function(*arguments)
        except UserError as error:
            failure = error.code, str(error)
    if failure := all_gather(name, failure, is_limited)[0]:
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
    facts = json.loads(json.dumps(facts))
    for process, theirs in enumerate(all_gather("the comparison of settings", facts)):
        if different := [name for name in facts if theirs.get(name) != facts[name]]:
            values = ", ".join(
                f"{name}: {theirs.get(name)!r} and {facts[name]!r}" for name in different[:3]
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
    per_device = np.full((jax.local_device_count(), len(values)), values, np.int32)
    largest = _device_max()(per_device)
    wait_on_cpu(largest)
    return largest


@cache
def _device_max() -> Callable[[np.ndarray], jax.Array]:
    """The elementwise maximum over all devices of all processes."""
    axis = "all devices"
    return jax.pmap(partial(jax.lax.pmax, axis_name=axis), axis, out_axes=None)


def local_part(batch: Any) -> Any:
    """The part of this process of arrays [copies of the model in all processes, …]."""
    return jax.tree.map(lambda x: np.split(x, count())[index()], batch)


def is_lost_process(error: Exception) -> bool:
    """Whether a computation failed because another process has ended."""
    # pmap raises some of these errors as ValueError.
    return (
        count() > 1
        and isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        and bool(LOST.search(str(error)))
    )

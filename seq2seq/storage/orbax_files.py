"""Arrays in files of Orbax. What needs care was measured with Orbax 0.12.8."""

import os
import re
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from seq2seq.model.mesh import Placer
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.memory import free_host_memory

# The errors of a restore from malformed files: Orbax uses the values of its JSON files unchecked.
MALFORMED = (ValueError, KeyError, OSError, AttributeError, TypeError, RecursionError)
LATE_SECONDS = 2.0  # twice the longest time for which files appeared after a save had failed
LATE_CHECKS = 20


def single_process_options() -> ocp.options.MultiprocessingOptions:
    """Options with which Orbax does not synchronise processes: each process reads for itself and
    process 0 writes. By default all processes must take part in each call."""
    index = processes.index()
    return ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"process{index}"
    )


def composite_checkpointer() -> ocp.Checkpointer:
    """Saves and restores several trees of arrays in one directory, in the calling thread."""
    single = single_process_options()
    options = ocp.CompositeOptions(multiprocessing_options=single)
    handler = ocp.CompositeCheckpointHandler(composite_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=single)


def write_arrays(path: Path, tree: Any) -> None:
    """Write a tree of arrays to the new directory `path`."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def read_arrays(path: Path, placer: Placer | None = None) -> Any:
    """The tree of arrays in a directory, as NumPy arrays, or on the devices of a `placer`.

    Raises UserError(CHECKPOINT) if it cannot be read, or does not fit into memory.
    """
    try:
        with ocp.StandardCheckpointer(
            multiprocessing_options=single_process_options()
        ) as checkpointer:
            shapes = checkpointer.metadata(path).item_metadata.tree
            if placer is None:
                check_fits_host(shapes, path)
                like = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), shapes)
            else:
                like = placer.shapes(shapes)
            return checkpointer.restore(path, like)
    except MALFORMED as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {str(error)[:200]}") from None


def check_fits_host(shapes: Any, path: Path) -> None:
    """UserError(CHECKPOINT) if arrays of these shapes do not fit into the free memory of the host,
    before they are allocated."""
    size = sum(prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes))
    free = free_host_memory()
    if free is not None and size > free:
        raise UserError(
            CHECKPOINT,
            f"{path} needs {size / 2**30:,.1f} GiB of memory: expected at most the free memory of "
            f"this host, {free / 2**30:,.1f} GiB; use a host with more memory",
        )


def delete_late_files(delete: Callable[[], None]) -> None:
    """Call `delete` for the files of a save that has failed until no more appear: threads of
    TensorStore, which cannot be joined, continued for up to 1 s after the error was raised."""
    for _ in range(LATE_CHECKS):
        delete()
        time.sleep(LATE_SECONDS / LATE_CHECKS)


def reason_of(error: Exception) -> str:
    """The reason of an error of a save: TensorStore states the system's code in a text of 300
    characters."""
    text = str(error)
    code = re.search(r"os_error_code='(\d+)'", text)
    return os.strerror(int(code[1])) if code else text[-200:]

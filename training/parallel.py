"""The training step on all devices of all processes.

In one process it runs under pmap. With several, pmap would convert each array of the state between
the process and all processes in each step (measured in docs/SCALING.md). The same function then
runs under jit(shard_map) on global arrays: the state is replicated, each process provides its rows
of a batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from data.packing import Batch
from runtime import processes
from runtime.devices import one_per_device
from training.step import AXIS, pmap_train_step


def parallel_train_step(train_step: Callable) -> Callable:
    """`train_step` over all devices, for the arrays of `place_state` and `place_batch`."""
    return pmap_train_step(train_step) if processes.count() == 1 else _sharded(train_step)


def place_state(state: Any) -> Any:
    """A state of this process, the same in all, as the argument of `parallel_train_step`."""
    return state if processes.count() == 1 else _global(state, PartitionSpec())


def place_batch(batch: Batch) -> Batch:
    """The rows of this process [local devices, M, B, …], each on its device."""
    if processes.count() == 1:
        return jax.device_put(batch, one_per_device())
    return _global(batch, PartitionSpec(AXIS))


def local_copy(state: Any) -> Any:
    """A state of `place_state` on one device of this process; shares its memory."""
    if processes.count() == 1:
        return state
    return jax.tree.map(lambda x: x.addressable_data(0), state)


def _sharded(train_step: Callable) -> Callable:
    def on_device(state, batch):
        return train_step(state, jax.tree.map(lambda x: x[0], batch))

    specs = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        on_device, mesh=_mesh(), in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)


def _mesh() -> Mesh:
    """All devices, those of process 0 first."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices), (AXIS,))


def _global(tree: Any, spec: PartitionSpec) -> Any:
    """Arrays of this process as arrays of all processes."""
    sharding = NamedSharding(_mesh(), spec)
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree
    )

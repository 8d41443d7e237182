"""Training and evaluation on all devices of all processes.

Axes: M micro-batches · B rows of a device and micro-batch.

    Batches.iterate (a thread) → split_rows [devices, M, B, …] → place_batch → the step on each
    device: scan over M → psum → one division by the tokens of the global batch → update

Each process makes the rows of its own devices and places them there; the state is replicated
(`place_state`). The `psum` of seq2seq/training/step.py adds gradients and counts over all devices.

In one process a step runs under pmap, which is jit and shard_map inside and converts nothing there.
In several processes, where pmap would convert the whole state between the process and all processes
in each step (measured in docs/SCALING.md), the same function runs under jit(shard_map) on global
arrays. Evaluation has one program and few batches, so it runs under pmap in both cases. Decoding
has a program for each length bucket and set of options, on the devices of its process alone
(`on_devices`): it runs under jit(shard_map), because pmap never releases its programs.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.runtime import processes
from seq2seq.runtime.devices import AXIS, one_per_device
from seq2seq.training.loss import LossSums
from seq2seq.training.step import TrainState, TrainStep, loss_sums


def split_rows(batch: Batch, *counts: int) -> Batch:
    """[rows, …] → [*counts, B, …], padded with empty rows if necessary.

    All segment ids of an empty row are 0, so it adds nothing to any sum.
    """
    parts = int(np.prod(counts))
    rows = -(-len(batch.row_ids) // parts) * parts

    def split(x: np.ndarray) -> np.ndarray:
        padding = [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1)
        return np.pad(x, padding).reshape(*counts, rows // parts, *x.shape[1:])

    return jax.tree.map(split, batch)


def parallel_train_step(train_step: TrainStep) -> Wrapped:
    """`train_step` over all devices, for the arrays of `place_state` and `place_batch`."""
    if processes.count() == 1:
        return pmap_train_step(train_step)
    return sharded_step(train_step, _mesh(), donate_argnums=0)


def pmap_train_step(train_step: TrainStep) -> Wrapped:
    """`train_step` over all devices: state replicated, batch sharded along its first axis."""
    return jax.pmap(train_step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)


def pmap_eval_step(model: EncoderDecoder, config: TrainingConfig) -> Wrapped:
    """(params, batch [devices, B, …]) → LossSums over all devices, without dropout."""
    return jax.pmap(make_eval_step(model, config), AXIS, in_axes=(None, 0), out_axes=None)


def make_eval_step(
    model: EncoderDecoder, config: TrainingConfig
) -> Callable[[Any, Batch], LossSums]:
    """eval_step(params, batch [B, …]) → LossSums over all devices, for pmap or shard_map."""

    def eval_step(params: Any, batch: Batch) -> LossSums:
        return jax.lax.psum(loss_sums(model, params, batch, config, None), AXIS)

    return eval_step


def sharded_step(
    step: Callable[[Any, Batch], Any], mesh: Mesh, donate_argnums: int | tuple[int, ...] = ()
) -> Wrapped:
    """The same as pmap of `step`, for global arrays on the devices of a mesh."""

    def on_device(replicated: Any, batch: Batch) -> Any:
        return step(replicated, jax.tree.map(lambda x: x[0], batch))  # [1, M, B, …] → [M, B, …]

    specs = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=donate_argnums)


def place_state(state: TrainState) -> TrainState:
    """Replicate the state of this process for `parallel_train_step`; it is the same in all."""
    return state if processes.count() == 1 else _global(state, PartitionSpec())


def place_batch(batch: Batch) -> Batch:
    """The rows of this process [local devices, M, B, …], each on its device."""
    if processes.count() == 1:
        return jax.device_put(batch, one_per_device())
    return _global(batch, PartitionSpec(AXIS))


def local_copy(state: Any) -> Any:
    """A part of a state of `place_state` on one device of this process; shares its memory."""
    if processes.count() == 1:
        return state
    return jax.tree.map(lambda x: x.addressable_data(0), state)


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

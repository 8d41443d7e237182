"""Training and evaluation on all devices of all processes.

Axes: M micro-batches · B rows of a copy of the model and micro-batch.

    Batches.iterate (a thread) → place_rows [copies, M, B, …] → the step on each copy:
    scan over M → psum → one division by the tokens of the global batch → update

A copy of the model lies on training.model_parallel devices, by default one. Each process makes the
rows of its own copies and places them there; every copy has the state (`place_state`). The `psum`
of seq2seq/training/step.py adds gradients and counts over all copies. Within a copy XLA divides the
products as the placement of the parameters says (model/placement.py).

In one process, with a device for each copy, a step runs under pmap, which is jit and shard_map
inside and converts nothing there. In several processes pmap would convert the whole state between
the process and all processes in each step (measured in docs/SCALING.md), and it cannot divide a
copy: then the same function runs under jit(shard_map) on global arrays. Evaluation has one program
and few batches, so with undivided copies it runs under pmap. Decoding has a program for each length
bucket and set of options, on the devices of its process alone (`on_copies`): it runs under
jit(shard_map), because pmap never releases its programs.
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
from seq2seq.model.mesh import (
    AXIS,
    by_copy,
    global_mesh,
    local_mesh,
    placements,
    shardings,
    sum_over_copies,
)
from seq2seq.model.placement import MODEL
from seq2seq.runtime import processes
from seq2seq.training.loss import LossSums
from seq2seq.training.step import TrainStep, loss_sums

EvalStep = Callable[[Any, Batch], LossSums]


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


def parallel_train_step(train_step: TrainStep, model_parallel: int) -> Wrapped:
    """`train_step` over all copies, for the arrays of `place_state` and `place_batch`."""
    if processes.count() == model_parallel == 1:
        return pmap_train_step(train_step)
    return sharded_step(train_step, global_mesh(model_parallel), donate_argnums=0)


def pmap_train_step(train_step: TrainStep) -> Wrapped:
    """`train_step` over all devices: state replicated, batch sharded along its first axis."""
    return jax.pmap(train_step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)


def pmap_eval_step(model: EncoderDecoder, config: TrainingConfig) -> Wrapped:
    """(params, batch [devices, B, …]) → LossSums over all devices, without dropout."""
    return jax.pmap(make_eval_step(model, config), AXIS, in_axes=(None, 0), out_axes=None)


def parallel_eval_step(model: EncoderDecoder, config: TrainingConfig) -> EvalStep:
    """`make_eval_step` over all copies, for parameters of `place_params` or `local_copy` and the
    rows [copies, B, …] of this process."""
    if config.model_parallel == 1:
        return pmap_eval_step(model, config)
    step = sharded_step(make_eval_step(model, config), global_mesh(config.model_parallel))

    def eval_step(params: Any, batch: Batch) -> LossSums:
        sums: LossSums = step(place_state(params), place_batch(batch, config.model_parallel))
        return sums

    return eval_step


def make_eval_step(model: EncoderDecoder, config: TrainingConfig) -> EvalStep:
    """eval_step(params, batch [B, …]) → LossSums over all copies, for pmap or shard_map."""

    def eval_step(params: Any, batch: Batch) -> LossSums:
        return sum_over_copies(loss_sums(model, params, batch, config, None))

    return eval_step


def sharded_step(
    step: Callable[[Any, Batch], Any], mesh: Mesh, donate_argnums: int | tuple[int, ...] = ()
) -> Wrapped:
    """The same as pmap of `step`, for global arrays on the devices of a mesh."""
    model_parallel = mesh.shape.get(MODEL, 1)

    def on_copy(state: Any, batch: Batch) -> Any:
        result = step(state, jax.tree.map(lambda x: x[0], batch))  # [1, M, B, …] → [M, B, …]
        if model_parallel == 1:
            return result
        # The new state lies where the old one does.
        return jax.lax.with_sharding_constraint(result, placements(result, model_parallel))

    specs = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        on_copy,
        mesh=mesh,
        in_specs=specs,
        out_specs=PartitionSpec(),
        axis_names={AXIS},
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=donate_argnums)


def place_params(params: Any, model_parallel: int) -> Any:
    """Parameters, such as NumPy arrays, on every copy of this process."""
    return jax.device_put(params, shardings(params, local_mesh(model_parallel)))


def place_state(state: Any) -> Any:
    """The state of the copies of this process as that of the copies of all processes, for
    `parallel_train_step`. It is the same in all."""
    return state if processes.count() == 1 else _on_mesh(state, global_mesh)


def local_copy(state: Any) -> Any:
    """The inverse of `place_state`: the copies of this process; shares their memory."""
    return state if processes.count() == 1 else _on_mesh(state, local_mesh)


def _on_mesh(tree: Any, make_mesh: Callable[[int], Mesh]) -> Any:
    """The arrays of a tree with the same memory of this process on another mesh."""

    def on_mesh(x: jax.Array) -> jax.Array:
        old: Any = x.sharding  # a NamedSharding
        new = NamedSharding(make_mesh(old.mesh.shape.get(MODEL, 1)), old.spec)
        parts = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, new, parts)

    return jax.tree.map(on_mesh, tree)


def place_rows(batch: Batch, config: TrainingConfig) -> Batch:
    """The rows [rows, …] of this process as [copies, M, B, …], each on its copy."""
    copies = jax.local_device_count() // config.model_parallel
    return place_batch(split_rows(batch, copies, config.accumulate), config.model_parallel)


def place_batch(batch: Batch, model_parallel: int) -> Batch:
    """The rows of this process [copies, M, B, …], each on its copy."""
    if processes.count() == 1:
        return jax.device_put(batch, by_copy(local_mesh(model_parallel)))
    sharding = by_copy(global_mesh(model_parallel))
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch
    )

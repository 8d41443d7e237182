"""Meshes: how devices divide the rows of a batch, and how some of them share one copy of a model.

A copy of a model lies on `model_parallel` devices of one host. With one device for each copy a mesh
has the axis AXIS alone; otherwise also the axis MODEL, along which model/placement.py divides the
parameters.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .placement import MODEL, devices_of_copy, placement

AXIS = "devices"  # the axis of the copies of a model, in pmap, shard_map and meshes


def mesh_of(devices: Any, model_parallel: int = 1) -> Mesh:
    """The mesh of these devices, in their order."""
    if model_parallel == 1:
        return Mesh(np.array(devices), (AXIS,))
    return Mesh(np.array(devices).reshape(-1, model_parallel), (AXIS, MODEL))


def local_mesh(model_parallel: int = 1) -> Mesh:
    """The devices of this process."""
    return mesh_of(jax.local_devices(), model_parallel)


def global_mesh(model_parallel: int = 1) -> Mesh:
    """The devices of all processes, those of process 0 first."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return mesh_of(devices, model_parallel)


def replicated(mesh: Mesh | None = None) -> NamedSharding:
    """The sharding of a value of which every device, by default of this process, has a copy."""
    return NamedSharding(mesh or local_mesh(), PartitionSpec())


def by_copy(mesh: Mesh | None = None) -> NamedSharding:
    """The sharding of an array [copies of the model, …] of which each copy has one entry."""
    return NamedSharding(mesh or local_mesh(), PartitionSpec(AXIS))


def sum_over_copies(tree: Any) -> Any:
    """The sums of these arrays over the copies of the model, under pmap or shard_map over AXIS."""
    if jax.lax.axis_size(AXIS) == 1 < devices_of_copy():
        return tree  # XLA (jax 0.10.2) does not compile this psum over one group of devices
    return jax.lax.psum(tree, AXIS)


def names_of(path: Any) -> list[str]:
    """The names in a path of jax.tree.map_with_path."""
    return jax.tree_util.keystr(path, simple=True, separator="/").split("/")


def placements(tree: Any, model_parallel: int) -> Any:
    """The placement of each array of a tree, such as parameters or a TrainState."""
    return jax.tree.map_with_path(
        lambda path, x: placement(names_of(path), x.shape, model_parallel), tree
    )


def shardings(tree: Any, mesh: Mesh) -> Any:
    """The sharding of each array of a tree of parameters or of a TrainState on a mesh."""
    specs = placements(tree, mesh.shape.get(MODEL, 1))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def same_dtype(path: Sequence[str], dtype: Any) -> Any:
    """The dtype of a parameter that is not cast."""
    return dtype


class Placer(NamedTuple):
    """Puts parameters on the devices of a mesh, one at a time while they are read."""

    mesh: Mesh
    dtype: Callable[[Sequence[str], Any], Any] = same_dtype  # of a parameter, by path and dtype

    def shape(self, path: Sequence[str], x: Any) -> jax.ShapeDtypeStruct:
        """Shape, dtype and sharding of a parameter on the devices."""
        spec = placement(path, x.shape, self.mesh.shape.get(MODEL, 1))
        sharding = NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct(x.shape, self.dtype(path, x.dtype), sharding=sharding)

    def shapes(self, tree: Any) -> Any:
        """`shape` of each parameter of a tree."""
        return jax.tree.map_with_path(lambda path, x: self.shape(names_of(path), x), tree)

    def place(self, path: Sequence[str], x: np.ndarray) -> jax.Array:
        """A parameter on the devices."""
        shape = self.shape(path, x)
        return jax.device_put(x.astype(shape.dtype, copy=False), shape.sharding)

    def place_all(self, tree: Any) -> Any:
        """`place` of each parameter of a tree."""
        return jax.tree.map_with_path(lambda path, x: self.place(names_of(path), x), tree)


def bytes_on_device(tree: Any, model_parallel: int) -> int:
    """The bytes of the arrays of a tree on each of the devices that share them."""
    sizes = jax.tree.map(
        lambda x, spec: x.size * x.dtype.itemsize // (model_parallel if len(spec) else 1),
        tree,
        placements(tree, model_parallel),
    )
    return sum(jax.tree.leaves(sizes))

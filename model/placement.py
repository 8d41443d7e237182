"""Which axis of a parameter is divided when several devices share one copy of the model.

Heads, feed-forward units and rows of the vocabulary are divided (Shoeybi et al. 2019), so a device
computes its heads and its units alone, and the sums over them are added up over the devices: once
after each attention and once after each feed-forward layer. XLA derives this from the placement of
the parameters; caches and optimizer state follow it too.

Axes: D model width · H heads · K head width · F feed-forward width · V vocabulary.
"""

from collections.abc import Sequence

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from .config import ModelConfig

MODEL = "model"  # the axis of a mesh: the devices that share one copy of a model
EMBEDDINGS = "source_embedding", "target_embedding", "output_embedding"  # of tables [V, D]
# The last part of a path → the rank of the parameter, and the axis that is divided. If the number
# of devices does not divide the first of two axes, the second one is. All others are replicated.
DIVIDED: dict[str, tuple[int, tuple[int, ...]]] = {
    "query": (3, (1,)),  # [D, H, K], as key and value
    "key": (3, (1,)),
    "value": (3, (1,)),
    "query_bias": (2, (0,)),  # [H, K]
    "key_bias": (2, (0,)),
    "value_bias": (2, (0,)),
    "output": (3, (0,)),  # [H, K, D]
    "inner": (2, (1,)),  # [D, F], as gate
    "gate": (2, (1,)),
    "inner_bias": (1, (0,)),  # [F]
    "outer": (2, (0,)),  # [F, D]
    "table": (2, (0, 1)),  # [V, D], of EMBEDDINGS
    "matrices": (3, (2,)),  # [N, n, m]: the state of Muon for all matrices of a shape
}


def placement(path: Sequence[str], shape: Sequence[int], devices: int) -> PartitionSpec:
    """The placement over the axis MODEL, of so many devices, of an array of a state.

    `path` are the names on the way to it. The state of an optimizer has arrays of the shape of a
    parameter at paths that end like that of the parameter, perhaps with one more axis of size 1.
    """
    names = [name for part in path for name in part.split("/")]
    kind = "matrices" if "matrices" in names else names[-1]
    rank, axes = DIVIDED.get(kind, (0, ()))
    if kind == "table" and names[-2] not in EMBEDDINGS:
        axes = ()
    first = len(shape) - rank  # 1 for an axis of size 1 before those of the parameter
    if first and (first != 1 or shape[0] != 1):  # a factored second moment, for example
        axes = ()
    axis = next((first + axis for axis in axes if shape[first + axis] % devices == 0), None)
    if devices == 1 or axis is None:
        return PartitionSpec()
    return PartitionSpec(*[None] * axis, MODEL)


def divisors(config: ModelConfig, devices: int) -> list[int]:
    """The numbers of devices, out of `devices`, among which this model can be divided, ascending:
    those that divide heads and feed-forward width. A model of another kind is not divided."""
    sizes = (config.num_heads, config.d_ff) if config.kind == "transformer" else (1,)
    return [n for n in range(1, devices + 1) if not any(size % n for size in (devices, *sizes))]


def devices_of_copy() -> int:
    """The number of devices that share a copy of the model in the program that is traced."""
    devices: int = jax.sharding.get_abstract_mesh().shape.get(MODEL, 1)
    return devices


def on_each_device(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x as an array of which each device of a copy of the model has all elements."""
    if devices_of_copy() == 1:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec())

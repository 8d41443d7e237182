"""Muon (Jordan et al. 2024): nearly orthogonal updates of the weight matrices of layers.

Matrices with the same name and shape are updated as one array, a stack: a few large products
instead of hundreds of small ones.
"""

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from optax.contrib import MuonDimensionNumbers, muon

from seq2seq.storage.config import TrainingConfig
from seq2seq.training.parameters import is_decayed

# Of the polynomial 3.4445 x − 4.775 x³ + 2.0315 x⁵, which brings singular values close to 1 in five
# iterations (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def muon_scaling(config: TrainingConfig) -> list[optax.GradientTransformation]:
    """The update of Muon without learning rate and decay: the momentum of each weight matrix made
    nearly orthogonal by five Newton-Schulz iterations, and Adam for all other parameters, with
    Nesterov momentum.

    Updates of matrices are scaled to Adam's usual root mean square, 0.2 (Liu et al. 2025, section
    2.2), so learning rates for Adam apply.
    """
    return [
        in_stacks(
            muon(
                learning_rate=-1.0,  # optax multiplies by −learning_rate, as the caller does later
                ns_coeffs=(NEWTON_SCHULZ,) * 5,
                muon_weight_dimension_numbers=axes_of_stacks,
                consistent_rms=0.2,
                adam_b1=config.adam_b1,
                adam_b2=config.adam_b2,
            )
        )
    ]


def in_stacks(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that updates the stacks of the parameters by `optimizer`."""

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        stacks, state = optimizer.update(stacked(updates), state, stacked(params))
        return unstacked(stacks, updates), state

    return optax.GradientTransformation(lambda params: optimizer.init(stacked(params)), update)


def stacked(tree: Any) -> dict[str, Array]:
    """Name of a stack → array [N, …]."""
    stacks = defaultdict(list)
    for path, x in sorted_leaves(tree):
        stacks[name_of_stack(path, x)].append(x)
    return {name: jnp.stack(arrays) for name, arrays in stacks.items()}


def unstacked(stacks: dict[str, Array], tree: Any) -> Any:
    """The arrays of stacks, in the structure of `tree`."""
    left = {name: iter(stack) for name, stack in stacks.items()}
    arrays = {path: next(left[name_of_stack(path, x)]) for path, x in sorted_leaves(tree)}
    return unflatten_dict(arrays, sep="/")


def sorted_leaves(tree: Any) -> list[tuple[str, Array]]:
    """The paths and arrays of a tree; the stored momentum has this order."""
    return sorted(flatten_dict(tree, sep="/").items())


def name_of_stack(path: str, x: Array) -> str:
    """Shape and name of a weight matrix; the path of any other parameter, whose N is 1."""
    name = path.split("/")[-1]
    return f"{'x'.join(map(str, x.shape))}/{name}" if matrix_axes(name, x.ndim) else path


def axes_of_stacks(stacks: Any) -> Any:
    """Name of a stack → its input and output axes; None if it has no matrices. optax also calls
    this with some stacks masked."""

    def axes(path: tuple[Any, ...], x: Array) -> MuonDimensionNumbers | None:
        return matrix_axes(path[0].key.split("/")[-1], x.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, stacks)


def matrix_axes(name: str, rank: int) -> MuonDimensionNumbers | None:
    """The input and output axes of a weight matrix with this name, counted from the last one; None
    for any other parameter.

    Tables of embeddings and positions are no matrices in this sense: their rows are used one at a
    time. The weights of all heads of an attention are one matrix; those of each gate of a GRU and
    of the initial state of each layer are one each.
    """
    if rank < 2 or name == "table" or not is_decayed(name):
        return None
    if rank == 2:
        return MuonDimensionNumbers(-2, -1)
    if name == "output":  # [heads, d_k, d_model]
        return MuonDimensionNumbers((-3, -2), -1)
    if name in ("query", "key", "value"):  # [d_model, heads, d_k]
        return MuonDimensionNumbers(-3, (-2, -1))
    return MuonDimensionNumbers(-3, -1)  # [width, gates or layers, width]

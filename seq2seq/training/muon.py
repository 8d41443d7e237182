"""Muon (Jordan et al. 2024): nearly orthogonal updates of the weight matrices of layers.

Matrices of the same shape are updated as one array, a stack: one loop over them, instead of
operations for each.
"""

from collections import defaultdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict
from jax import Array

from seq2seq.config.tree import TrainingConfig
from seq2seq.model.matmul import matmul
from seq2seq.training.parameters import is_decayed

MOMENTUM = 0.95
# Of the polynomial 3.4445 x − 4.775 x³ + 2.0315 x⁵, which brings singular values close to 1 in five
# iterations (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def muon_scaling(config: TrainingConfig, dtype: str) -> list[optax.GradientTransformation]:
    """The update of Muon without learning rate and decay: the Nesterov momentum of each weight
    matrix made nearly orthogonal by five Newton-Schulz iterations, with products of `dtype`, and
    Adam for all other parameters, with Nesterov momentum.

    Updates of matrices are scaled to Adam's usual root mean square, 0.2 (Liu et al. 2025, section
    2.2), so learning rates for Adam apply.
    """

    def orthogonal_updates(momenta: Any, params: Any) -> Any:
        return jax.tree.map(
            # A few matrices at a time: they remain in the cache of a processor.
            lambda stack: jax.lax.map(partial(orthogonal_update, dtype=dtype), stack, batch_size=4),
            momenta,
        )

    by_kind = optax.partition(
        {
            "matrices": optax.chain(
                optax.trace(MOMENTUM, nesterov=True), optax.stateless(orthogonal_updates)
            ),
            "others": optax.scale_by_adam(
                config.adam_b1, config.adam_b2, config.adam_epsilon, nesterov=True
            ),
        },
        lambda stacks: {
            name: "matrices" if name.startswith("matrices/") else "others" for name in stacks
        },
    )
    return [in_stacks(by_kind)]


def orthogonal_update(x: Array, dtype: str) -> Array:
    """The matrix x [n, m], n ≤ m, with singular values near 0.2 √m and the same singular vectors.

    Five Newton-Schulz iterations X ← a X + (b A + c A²) X of X = x / ‖x‖, with A = X Xᵀ.
    """
    a, b, c = NEWTON_SCHULZ

    def product(left: Array, right: Array) -> Array:
        return matmul(left, right.astype(dtype))

    def iteration(_: Any, x: Array) -> Array:
        square = product(x, x.T)
        return a * x + product(b * square + c * product(square, square), x)

    orthogonal = jax.lax.fori_loop(0, 5, iteration, x / (jnp.linalg.norm(x) + 1e-8))
    return 0.2 * x.shape[-1] ** 0.5 * orthogonal


def in_stacks(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer that updates the stacks of the parameters by `optimizer`, which does not read
    their values."""

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        stacks, state = optimizer.update(stacked(updates), state)
        # Stacking permutes elements, so its transpose is its inverse.
        (updates,) = jax.linear_transpose(stacked, updates)(stacks)
        return updates, state

    return optax.GradientTransformation(lambda params: optimizer.init(stacked(params)), update)


def stacked(tree: Any) -> dict[str, Array]:
    """Name → stack [N, …]: "matrices/nxm" for all weight matrices n × m and m × n, n ≤ m; for any
    other parameter its path, with N = 1."""
    stacks = defaultdict(list)
    for path, x in sorted(flatten_dict(tree, sep="/").items()):
        matrices = as_matrices(path.split("/")[-1], x)
        if matrices is None:
            stacks[path].append(x[None])
        else:
            rows, columns = matrices.shape[1:]
            stacks[f"matrices/{rows}x{columns}"].append(matrices)
    return {name: jnp.concatenate(arrays) for name, arrays in stacks.items()}


def as_matrices(name: str, x: Array) -> Array | None:
    """The weight matrices [N, n, m], n ≤ m, of a parameter with this name; None for any other.

    Tables of embeddings and positions are no matrices in this sense: their rows are used one at a
    time. The weights of all heads of an attention are one matrix; those of each gate of a GRU and
    of the initial state of each layer are one each.
    """
    if x.ndim < 2 or name == "table" or not is_decayed(name):
        return None
    if x.ndim == 2:
        matrices = x[None]
    elif name == "output":  # [heads, d_k, d_model]
        matrices = x.reshape(1, -1, x.shape[-1])
    elif name in ("query", "key", "value"):  # [d_model, heads, d_k]
        matrices = x.reshape(1, len(x), -1)
    else:  # [width, gates or layers, width]
        matrices = x.swapaxes(0, 1)
    return matrices if matrices.shape[1] <= matrices.shape[2] else matrices.swapaxes(1, 2)

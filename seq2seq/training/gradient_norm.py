"""The global norm of gradients; on a GPU from joined sums, in fewer kernels."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from seq2seq.model.platforms import by_platform


def global_norm(gradients: Any) -> Float[Array, ""]:
    """The square root of the sum of all squares."""

    def norm(joined: bool) -> Float[Array, ""]:
        if not joined:
            return optax.global_norm(gradients)
        squares = [jnp.square(x) for x in jax.tree.leaves(gradients)]
        sums = [x.sum(axis=-1).ravel() if x.ndim > 1 else x.ravel() for x in squares]
        # Without the barrier XLA adds up each array by itself again, in two kernels.
        return jnp.sqrt(jax.lax.optimization_barrier(jnp.concatenate(sums)).sum())

    return by_platform(lambda choices: choices.joined_norm, norm)

"""Positions: sinusoidal (section 3.5), learned tables, rotary (RoFormer, Su et al. 2021).

Axes: B batch · T time · D model width · H heads · K head width.
`ModelConfig.positions` names the kind, and `Positions` does in a stack what it says. The rows of a
table of TABLES are added to the embeddings. "rotary" rotates queries and keys of self-attention
(model/attention.py), so their scores depend on the distance only. "none" does neither.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from .checks import check_array, check_choice, check_shape
from .config import CHOICES, ModelConfig
from .parameters import parameter


def sinusoidal_positions(
    length: int, d_model: int, layout: str = "interleaved"
) -> Float[np.ndarray, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…) for pos in 0 … length-1.

    `layout` "interleaved" is the paper's order; "halves" puts all sines before all cosines
    (tensor2tensor, Marian).
    """
    check_choice("layout", layout, CHOICES["sinusoid_layout"])
    if d_model % 2:
        raise ValueError(f"d_model must be even; got {d_model}")
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] * frequencies
    axis = -1 if layout == "interleaved" else 1
    table = np.stack([np.sin(angles), np.cos(angles)], axis=axis).reshape(length, d_model)
    return table.astype(np.float32)


def rotate(x: Float[Array, "B H T K"], positions: Int[Array, "B T"]) -> Float[Array, "B H T K"]:
    """Rotate each pair (x_i, x_{i+K/2}) by pos · 10000^(-2i/K) (RoFormer, equation 15)."""
    check_array("x", x, "floating", "B H T K")
    check_array("positions", positions, "integer", "B T")
    check_shape("positions", positions, (x.shape[0], x.shape[2]), "[B, T] of x")
    if x.shape[-1] % 2:
        raise ValueError(f"x must have an even last axis K; got shape {x.shape}")
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-np.arange(half, dtype=np.float32) / half)
    angles = positions[:, None, :, None].astype(jnp.float32) * frequencies  # [B, 1, T, K/2]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


class Positions(nn.Module):
    """The only place of a stack that depends on the kind of positions; owns their parameters."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T D"], Int[Array, "B T"] | None]:
        """The embeddings with what is added to them, and the positions by which queries and keys
        are rotated; None: they are not."""
        kind = self.config.positions
        if kind in TABLES:
            x = x + jnp.asarray(TABLES[kind](self), self.config.values_dtype)[positions]
        return x, positions if kind == "rotary" else None


def sinusoidal_table(module: Positions) -> Float[np.ndarray, "L D"]:
    c = module.config
    return sinusoidal_positions(c.max_length, c.d_model, c.sinusoid_layout)


def learned_table(module: Positions) -> Float[Array, "L D"]:
    c = module.config
    init = nn.initializers.normal(c.d_model**-0.5)
    return parameter(module, "table", init, (c.max_length, c.d_model))


# The kinds of positions that are added to the embeddings: module → table [max_length, D]
TABLES: dict[str, Callable[[Positions], Array | np.ndarray]] = {
    "sinusoidal": sinusoidal_table,
    "learned": learned_table,
}

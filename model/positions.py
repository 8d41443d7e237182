"""Positions: sinusoidal (section 3.5), learned, rotary, relative, and linear biases (ALiBi).

Axes: B batch · T time · D model width · H heads · K head width · N beams · L distances.
`ModelConfig.positions` names the kind. Each kind is a class of POSITIONS. It overrides what it
does: `add` changes the embeddings (sinusoidal, learned), `rotate` the queries and keys of
self-attention (rotary: scores depend on the distance only), `bias` the scores of self-attention
(relative, alibi: a number for each distance, key − query). The functions before the classes compute
on arrays.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from .checks import check_choice, checked
from .config import CHOICES, ModelConfig
from .parameters import parameter
from .position_rules import POSITION_RULES


def sinusoidal_positions(
    length: int, d_model: int, layout: str = "interleaved"
) -> Float[np.ndarray, "T D"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…) for pos in 0 … length-1.

    `layout` "interleaved" is the paper's order; "halves" puts all sines before all cosines
    (tensor2tensor, Marian). "fairseq" is "halves" with exponents 2i/(d−2) and pos in 2 … length+1.
    """
    check_choice("layout", layout, CHOICES["sinusoid_layout"])
    if d_model % 2:
        raise ValueError(f"d_model must be even; got {d_model}")
    if layout == "fairseq" and d_model < 4:
        raise ValueError(f"d_model must be at least 4 for the layout of fairseq; got {d_model}")
    difference = 2 if layout == "fairseq" else 0
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / (d_model - difference))  # [D/2]
    angles = (np.arange(length) + difference)[:, None] * frequencies  # [T, D/2]
    axis = -1 if layout == "interleaved" else 1
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=axis)  # [T, D/2, 2] or [T, 2, D/2]
    return pairs.reshape(length, d_model).astype(np.float32)


@checked
def rotate(x: Float[Array, "B H T K"], positions: Int[Array, "B T"]) -> Float[Array, "B H T K"]:
    """Rotate each pair (x_i, x_{i+K/2}) by pos · 10000^(-2i/K) (RoFormer, equation 15)."""
    if x.shape[-1] % 2:
        raise ValueError(f"x must have an even last axis K; got shape {x.shape}")
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-np.arange(half, dtype=np.float32) / half)  # [K/2]
    angles = positions[:, None, :, None].astype(jnp.float32) * frequencies  # [B, 1, T, K/2]
    rotation = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # [B, 1, T, K]
    # The product is exact. Without it, XLA on a CPU computes the sines in the loop that rotates,
    # again for each head, query, key and gradient of each layer.
    rotation = jnp.matmul(rotation, np.eye(2 * half, dtype=np.float32), precision="highest")
    sin, cos = jnp.split(rotation, 2, axis=-1)  # [B, 1, T, K/2]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # [B, H, T, K/2]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)  # [B, H, T, K]


def relative_rows(
    distances: Int[np.ndarray, " L"], rows: int, longest: int, past_only: bool
) -> Int[np.ndarray, " L"]:
    """The row for each distance, key − query, in a table of relative positions (Raffel et al. 2020,
    section 2.1): `relative_position_bucket` of T5 with num_buckets = `rows`, max_distance =
    `longest` and bidirectional = not `past_only`.

    The nearest keys have a row each. The others share rows for ranges that grow geometrically up to
    the distance `longest`; keys beyond it have the last of these rows. Keys after the query have
    the second half of the table, or, with `past_only`, the row of distance 0.
    """
    if past_only:
        first, distance = np.zeros_like(distances), np.maximum(-distances, 0)  # [L]
    else:
        rows //= 2  # in each direction
        first, distance = np.where(distances > 0, rows, 0), np.abs(distances)  # [L]
    exact = rows // 2
    growth = np.log(np.maximum(distance, exact) / exact) / np.log(longest / exact)  # [L], from 0
    shared = exact + (growth * (rows - exact)).astype(int)  # [L]
    return first + np.where(distance < exact, distance, np.minimum(shared, rows - 1))


def alibi_slopes(heads: int) -> Float[np.ndarray, " H"]:
    """2^(−8i/H) for the heads i = 1 … H if H is a power of two (Press et al. 2022, section 3);
    otherwise those of the power below it, then every other one of the power above it (the authors'
    code)."""
    below = 1 << heads.bit_length() - 1  # the power of two below or at the number of heads
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * below, 2))
    return np.concatenate([slopes, between])[:heads].astype(np.float32)


def between_all(by_distance: Float[Array, "H L"]) -> Float[Array, "1 H T T"]:
    """[h, i, j] ↦ the value of the distance j − i; L = 2T − 1 distances from 1 − T.

    Copies of the values, each one place later than the last, cost less than a gather, above all in
    the backward pass.
    """
    heads, length = by_distance.shape[0], by_distance.shape[1] // 2 + 1
    copies = jnp.tile(jnp.pad(by_distance, ((0, 0), (0, 1))), length)  # [H, T·2T]
    rows = copies[:, :-length].reshape(heads, length, 2 * length - 1)  # [H, T, 2T − 1]
    return rows[None, :, :, length - 1 :]


def between_steps(
    by_distance: Float[Array, "H L"], t: Int[Array, " B"], beams: int
) -> Float[Array, "B H 1 S"]:
    """The value for the query at step t and each entry i of a cache, which is of step i // N."""
    steps = by_distance.shape[1] // 2 + 1
    row = partial(jax.lax.dynamic_slice_in_dim, by_distance, slice_size=steps, axis=1)
    by_step = jax.vmap(row)(steps - 1 - t)  # [B, H, steps]
    return jnp.repeat(by_step, beams, axis=-1)[:, :, None]


class Positions(nn.Module):
    """A kind of positions in a stack: what it does with the embeddings, with queries and keys, and
    with the scores of self-attention. These defaults do nothing: kind "none"."""

    config: ModelConfig
    past_only: bool = False  # in a stack whose queries do not attend to later keys

    def add(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The embeddings with what is added to them."""
        return x

    def rotate(
        self, x: Float[Array, "B H T K"], positions: Int[Array, "B T"] | None
    ) -> Float[Array, "B H T K"]:
        """The queries or keys of self-attention, rotated."""
        return x

    def bias(
        self, positions: Int[Array, "B T"], entries: int | None = None
    ) -> Float[Array, "#B H #T S"] | None:
        """What is added to the scores of self-attention; None: nothing.

        For T queries and keys. With `entries`: for the T hypotheses of each row, at the step
        positions[:, 0], and so many entries of a cache, T for each step.
        """
        return None


class SinusoidalPositions(Positions):
    def add(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        c = self.config
        table = sinusoidal_positions(c.max_length, c.d_model, c.sinusoid_layout)
        return x + jnp.asarray(table, c.values_dtype)[positions]


class LearnedPositions(Positions):
    """Owns a table [max_length, D]."""

    @nn.compact
    def add(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        c, init = self.config, nn.initializers.normal(self.config.d_model**-0.5)
        table = parameter(self, "table", init, (c.max_length, c.d_model))
        return x + jnp.asarray(table, c.values_dtype)[positions]


class RotaryPositions(Positions):
    def rotate(
        self, x: Float[Array, "B H T K"], positions: Int[Array, "B T"] | None
    ) -> Float[Array, "B H T K"]:
        if positions is None:
            raise TypeError("positions must be those of x, [B, T], for rotary positions; got None")
        return rotate(x, positions)


class DistanceBias(Positions):
    """Positions that add a number for each distance, key − query, to the scores.

    Packed pairs need no positions of their own: the distance within a pair is that of the columns
    of the row.
    """

    def by_distance(self, distances: Int[np.ndarray, " L"]) -> Float[Array, "H L"]:
        """The number for each distance."""
        raise NotImplementedError

    @nn.compact
    def bias(
        self, positions: Int[Array, "B T"], entries: int | None = None
    ) -> Float[Array, "#B H #T S"]:
        beams = positions.shape[1]  # with a cache
        length = beams if entries is None else entries // beams
        by_distance = self.by_distance(np.arange(1 - length, length))  # [H, L]
        if entries is None:
            return between_all(by_distance)
        return between_steps(by_distance, positions[:, 0], beams)


class RelativePositions(DistanceBias):
    """Owns a table [relative_buckets, H]."""

    @nn.nowrap
    def by_distance(self, distances: Int[np.ndarray, " L"]) -> Float[Array, "H L"]:
        c, init = self.config, nn.initializers.normal(self.config.d_model**-0.5)
        table = parameter(self, "table", init, (c.relative_buckets, c.num_heads))
        rows = relative_rows(distances, c.relative_buckets, c.relative_distance, self.past_only)
        return table[rows].T


class AlibiPositions(DistanceBias):
    @nn.nowrap
    def by_distance(self, distances: Int[np.ndarray, " L"]) -> Float[Array, "H L"]:
        slopes = alibi_slopes(self.config.num_heads)
        return jnp.asarray(-slopes[:, None] * np.abs(distances), jnp.float32)


# The kinds of positions, `ModelConfig.positions`. POSITION_RULES has the rules of each.
POSITIONS: dict[str, type[Positions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
    "relative": RelativePositions,
    "alibi": AlibiPositions,
    "none": Positions,
}


def make_positions(config: ModelConfig, past_only: bool) -> Positions:
    """The positions of a stack or of a layer; for a layer, those whose tables it owns.

    Checkpoints have the table of every kind with a bias under the name "relative_bias".
    """
    name = "relative_bias" if POSITION_RULES[config.positions].has_bias else "positions"
    return POSITIONS[config.positions](config, past_only, name=name)


class LayerPositions(NamedTuple):
    """What the layers of a stack are given of the positions of its input."""

    ids: Int[Array, "B T"]  # 0, 1, … in each sequence
    bias: Float[Array, "#B H #T S"] | None = None  # that all layers of the stack share

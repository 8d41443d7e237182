"""The small layers: norms, feed-forward, embeddings, logits, dropout, and their modules.

Axes: B batch · T time · D model width · F feed-forward width · V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int, UInt

from .checks import check_choice, checked
from .config import ModelConfig
from .matmul import cast_weights, matmul, matmul_transposed
from .parameters import parameter
from .placement import on_each_device

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}


class FeedForwardParams(NamedTuple):
    """W_1, b_1, W_2, b_2 of equation 2, with optional biases; W of a gate (Shazeer 2020)."""

    inner: Float[Array, "D F"]
    inner_bias: Float[Array, " F"] | None
    outer: Float[Array, "F D"]
    outer_bias: Float[Array, " D"] | None
    gate: Float[Array, "D F"] | None = None


@checked
def layer_norm(
    x: Float[Array, "... D"], scale: Float[Array, " D"], bias: Float[Array, " D"], epsilon: float
) -> Float[Array, "... D"]:
    """(x − mean) / √(variance + ε) · scale + bias, in float32 (Ba et al. 2016)."""
    y = x.astype(jnp.float32)  # [..., D]
    y = y - y.mean(axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
    return (y * scale + bias).astype(x.dtype)


@checked
def rms_norm(
    x: Float[Array, "... D"], scale: Float[Array, " D"], epsilon: float
) -> Float[Array, "... D"]:
    """x / √(mean(x²) + ε) · scale, in float32 (Zhang and Sennrich 2019)."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
    return (y * scale).astype(x.dtype)


@checked
def feed_forward(
    params: FeedForwardParams,
    x: Float[Array, "B T D"],
    activation: str = "relu",
    drop: Callable[[Array], Array] | None = None,
) -> Float[Array, "B T D"]:
    """max(0, x W_1 + b_1) W_2 + b_2 (equation 2), or with another activation instead of max.

    With a gate, (act(x W_gate) ⊙ (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020, section 2). `drop` is a
    function on the values [B, T, F] that multiply W_2, for dropout.
    """
    check_choice("activation", activation, ACTIVATIONS)
    act = ACTIVATIONS[activation]
    inner = matmul(x, params.inner, params.inner_bias)  # [B, T, F]
    inner = act(inner) if params.gate is None else act(matmul(x, params.gate)) * inner
    if drop is not None:
        inner = drop(inner)
    return matmul(inner, params.outer, params.outer_bias)


@checked
def embed(
    table: Float[Array, "V D"], ids: Int[Array, "B T"], scale: bool, dtype: str = "float32"
) -> Float[Array, "B T D"]:
    """Rows of the table, multiplied by √d_model if `scale` (section 3.4)."""
    rows = table[ids].astype(dtype)
    return rows * jnp.asarray(table.shape[1] ** 0.5, dtype) if scale else rows


@checked
def vocabulary_logits(
    x: Float[Array, "... D"], table: Float[Array, "V D"], bias: Float[Array, " V"] | None = None
) -> Float[Array, "... V"]:
    """x Eᵀ + b in the dtype of x: the linear map before the softmax (section 3.4)."""
    return matmul(x, table.T, bias)


def random_bits(
    key: Array, row_ids: Int[Array, " B"], shape: tuple[int, ...]
) -> UInt[Array, "B ..."]:
    """32 random bits for each element of [B, *shape]; they depend on (key, row id, place) only.

    A counter is hashed by two multiply-xorshift rounds (Wellons' lowbias32, keyed between the
    rounds). This is elementwise and fuses with its consumer, unlike the 20 rounds of threefry: on
    two cores, dropout of [32, 128, 512] takes 0.3 ms, with `jax.random.bits` of a threefry key for
    each row 14 to 22 ms, and with one key of the implementation "unsafe_rbg" 19 ms or more.
    Tests: all 32 bits are fair and independent, as are neighbours, rows and keys.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    row = row_ids.astype(jnp.uint32)  # [B]
    for word in (first, second):
        row = (row ^ word) * jnp.uint32(0x9E3779B1)
        row = row ^ (row >> 15)
    second_hash = (row ^ second) * jnp.uint32(0x85EBCA77)  # [B]
    second_hash = second_hash ^ (second_hash >> 13)
    per_row = -1, *[1] * len(shape)
    row, second_hash = row.reshape(per_row), second_hash.reshape(per_row)  # [B, 1, …]
    size = 1
    x = jnp.zeros((1, *shape), jnp.uint32)  # becomes the number of each place in its row
    for axis in range(len(shape), 0, -1):
        x = x + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(size)
        size *= shape[axis - 1]
    x = x ^ row  # [B, …]
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = x ^ second_hash
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


@checked
def dropout(
    x: Float[Array, "B ..."],
    rate: float,
    key: Array | None,
    row_ids: Int[Array, " B"] | None = None,
) -> Float[Array, "B ..."]:
    """Zero each element with probability `rate` and divide the rest by 1 − rate.

    Without a `key` there is no dropout. `row_ids` are the places of the rows in the global batch
    (default 0 … B−1), so the masks do not depend on how rows are distributed over devices.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"rate must be in [0, 1); got {rate}")
    if key is None or rate == 0.0:
        return x
    row_ids = jnp.arange(x.shape[0]) if row_ids is None else row_ids  # [B]
    keep = random_bits(key, row_ids, x.shape[1:]) >= jnp.uint32(int(rate * 2**32))  # [B, …]
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), 0)


class LayerNorm(nn.Module):
    """Owns the scale and bias of `layer_norm`."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = parameter(self, "scale", nn.initializers.ones, x.shape[-1:])
        bias = parameter(self, "bias", nn.initializers.zeros, x.shape[-1:])
        return layer_norm(x, scale, bias, self.config.layer_norm_epsilon)


class RmsNorm(nn.Module):
    """Owns the scale of `rms_norm`."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = parameter(self, "scale", nn.initializers.ones, x.shape[-1:])
        return rms_norm(x, scale, self.config.layer_norm_epsilon)


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {"layer": LayerNorm, "rms": RmsNorm}


class FeedForward(nn.Module):
    """Owns FeedForwardParams."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], row_ids: Int[Array, " B"] | None = None
    ) -> Float[Array, "B T D"]:
        c = self.config

        def weight(name: str, *shape: int) -> Array:
            return parameter(self, name, nn.initializers.xavier_uniform(), shape)

        def bias(name: str, size: int) -> Array | None:
            zeros = nn.initializers.zeros
            return parameter(self, name, zeros, (size,)) if c.feed_forward_bias else None

        params = FeedForwardParams(
            weight("inner", c.d_model, c.d_ff),
            bias("inner_bias", c.d_ff),
            weight("outer", c.d_ff, c.d_model),
            bias("outer_bias", c.d_model),
            weight("gate", c.d_model, c.d_ff) if c.gated_feed_forward else None,
        )
        drop = partial(Dropout(c.activation_dropout, name="dropout"), row_ids=row_ids)
        return feed_forward(cast_weights(params, c.weights_dtype), x, c.activation, drop)


class Embedding(nn.Module):
    """Owns a table [V, D]; `__call__` embeds ids, `to_logits` projects to the vocabulary (tied).

    `to_logits` reads the table of `inference_variables` if there is one. Its columns beyond D are
    the bias. If the parameters lack the table, ids are looked up in that one too.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        c = self.config
        if self.has_variable("params", "table") or not self.has_variable("inference", "table"):
            init = nn.initializers.normal(c.d_model**-0.5)
            self.table = parameter(self, "table", init, (self.vocab_size, c.d_model))
        else:
            self.table = self.get_variable("inference", "table")[:, : c.d_model]

    def __call__(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        rows = embed(self.table, ids, self.config.scale_embeddings, self.config.values_dtype)
        return on_each_device(rows)

    def to_logits(
        self, x: Float[Array, "... D"], bias: Float[Array, " V"] | None = None
    ) -> Float[Array, "... V"]:
        if not self.has_variable("inference", "table"):
            return vocabulary_logits(x, self.table.astype(self.config.weights_dtype), bias)
        table: Array = self.get_variable("inference", "table")
        if bias_columns := table.shape[1] - self.config.d_model:
            ones = jnp.ones((*x.shape[:-1], bias_columns), x.dtype)
            x = jnp.concatenate([x, ones], axis=-1)  # [..., D + 2]
            bias = None
        return matmul_transposed(x, table, bias)


class Dropout(nn.Module):
    """Calls `dropout` with the "dropout" key of `apply`, if there is one."""

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "B ..."], row_ids: Int[Array, " B"] | None = None
    ) -> Float[Array, "B ..."]:
        key = self.make_rng("dropout") if self.has_rng("dropout") else None
        return dropout(x, self.rate, key, row_ids)

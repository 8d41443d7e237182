"""Attention (section 3.2): scaled dot-product, multi-head, and the masks.

Axes: B batch · T queries · S keys · D model width · H heads · K head width.
Keys and values are always arguments: fresh ones in training, the projected memory in
cross-attention, the cache in search. One function serves all three.
Masks are boolean, True = may attend. `attention_scores` makes masked scores −inf, and
`masked_softmax` gives them weight 0, also if all scores of a query are masked.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .checks import checked
from .config import ModelConfig
from .layers import Dropout
from .matmul import FULL, activations_precision, cast_weights, matmul
from .parameters import parameter


class KeysValues(NamedTuple):
    """The projected keys and values of an attention."""

    keys: Float[Array, "B H S K"]
    values: Float[Array, "B H S K"]


class AttentionParams(NamedTuple):
    """Per-head projections W^Q, W^K, W^V, and W^O (section 3.2.2), with optional biases."""

    query: Float[Array, "D H K"]
    key: Float[Array, "D H K"]
    value: Float[Array, "D H K"]
    output: Float[Array, "H K D"]
    query_bias: Float[Array, "H K"] | None = None
    key_bias: Float[Array, "H K"] | None = None
    value_bias: Float[Array, "H K"] | None = None
    output_bias: Float[Array, " D"] | None = None


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Position t may attend to positions 0 … t (section 3.2.3)."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


@checked
def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Each query may attend to its own segment; segment 0 is padding and attends to nothing."""
    same = query_segments[:, :, None] == key_segments[:, None, :]  # [B, T, S]
    return (same & (query_segments > 0)[:, :, None])[:, None]


class AttentionOptions(NamedTuple):
    """How `dot_product_attention` computes, apart from its arrays."""

    drop: Callable[[Array], Array] | None = None  # on the weights that multiply V, for dropout
    precision: jax.lax.Precision = FULL  # of both products if they are of float32
    scale: bool = True  # divide the scores by √d_k


PLAIN = AttentionOptions()  # equation 1


@checked
def dot_product_attention(
    queries: Float[Array, "B H T K"],
    keys: Float[Array, "B H S K"],
    values: Float[Array, "B H S K"],
    mask: Bool[Array, "#B #H #T S"] | None = None,
    bias: Float[Array, "#B #H #T S"] | None = None,
    options: AttentionOptions = PLAIN,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """softmax(Q Kᵀ / √d_k) V (equation 1); returns the output and the softmax weights.

    `mask` is True where a query may attend. `bias` is added to the scores before the mask. Scores
    and softmax are float32. A query that may attend to nothing has weights and output 0. The
    returned weights are those before `options.drop`; under jit, unused weights cost nothing.
    """
    drop, precision, scale = options
    scores = attention_scores(queries, keys, mask, precision, bias, scale)  # [B, H, T, S]
    (weights,) = masked_softmax([scores])  # [B, H, T, S]
    factors = weights if drop is None else drop(weights)
    output = jnp.einsum(
        "bhts,bhsk->bhtk", factors.astype(values.dtype), values, precision=precision
    )  # [B, H, T, K]
    return output, weights


def attention_scores(
    queries: Float[Array, "B H T K"],
    keys: Float[Array, "B H S K"],
    mask: Bool[Array, "#B #H #T S"] | None,
    precision: jax.lax.Precision,
    bias: Float[Array, "#B #H #T S"] | None = None,
    scale: bool = True,
) -> Float[Array, "B H T S"]:
    """Q Kᵀ / √d_k + bias in float32, and −inf where `mask` is False."""
    scaled = queries * queries.shape[-1] ** -0.5 if scale else queries
    scores = jnp.einsum(
        "bhtk,bhsk->bhts", scaled, keys, precision=precision, preferred_element_type=jnp.float32
    )  # [B, H, T, S]
    if bias is not None:
        scores = scores + bias.astype(jnp.float32)
    return scores if mask is None else jnp.where(mask, scores, -jnp.inf)


def masked_softmax(blocks: Sequence[Float[Array, "... _"]]) -> list[Float[Array, "... _"]]:
    """exp(s − m) / Σ exp(s − m) for scores in blocks, where the sum and the maximum m are over the
    last axes (the keys) of all blocks. One array of weights for each block; they are not joined.

    A score of −inf is masked: its weight is 0. If all scores of a query are masked, all its weights
    are 0; the plain softmax would be NaN. If a score is NaN or +inf, all its weights are NaN. A
    block that is masked for a query adds exact zeros, so the other weights have the same bits
    without it. With one block, XLA on a GPU makes a single kernel of it, which it does not if a
    `where` chooses the maximum or the total.
    """
    largest = reduce(
        jnp.maximum, [scores.max(axis=-1, keepdims=True, initial=-jnp.inf) for scores in blocks]
    )
    lowest = jnp.finfo(jnp.float32).min  # in place of −inf if all scores are masked
    largest = jax.lax.stop_gradient(jnp.maximum(largest, lowest))  # [..., 1]
    exponentials = [jnp.exp(scores - largest) for scores in blocks]  # as blocks
    total = reduce(
        jnp.add, [block.sum(axis=-1, keepdims=True) for block in exponentials]
    )  # [..., 1]
    # The total is 0 if all scores are masked, otherwise at least exp(0) = 1.
    return [block / jnp.maximum(total, 0.5) for block in exponentials]


def project(
    x: Float[Array, "B T D"], weight: Float[Array, "D H K"], bias: Float[Array, "H K"] | None
) -> Float[Array, "B H T K"]:
    """The projection of `x` into every head."""
    # A product of two matrices: for that with [D, H, K], XLA on a TPU chooses another layout than
    # that of the attention kernels, and copies.
    joined_bias = None if bias is None else bias.reshape(-1)  # [H·K]
    joined = matmul(x, weight.reshape(len(weight), -1), joined_bias)  # [B, T, H·K]
    return jnp.swapaxes(joined.reshape(*x.shape[:2], *weight.shape[1:]), 1, 2)


@checked
def project_keys_values(
    params: AttentionParams,
    x: Float[Array, "B S D"],
    rotate: Callable[[Array], Array] | None = None,
) -> KeysValues:
    """The keys and values of `x`; `rotate` is a function on the keys (rotary positions)."""
    keys = project(x, params.key, params.key_bias)  # [B, H, S, K]
    values = project(x, params.value, params.value_bias)  # [B, H, S, K]
    return KeysValues(keys if rotate is None else rotate(keys), values)


def attend_to_all(
    queries: Float[Array, "B H T K"],
    keys_values: KeysValues | tuple[Array, Array],
    mask: Bool[Array, "#B #H #T S"] | None,
    bias: Float[Array, "#B #H #T S"] | None,
    options: AttentionOptions,
) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T S"]]:
    """`dot_product_attention`, as an `attend` of HeadOptions."""
    keys, values = keys_values
    return dot_product_attention(queries, keys, values, mask, bias, options)


class HeadOptions(NamedTuple):
    """How `multi_head_attention` computes, apart from its arrays."""

    rotate: Callable[[Array], Array] | None = None  # on the queries, as on the keys (rotary)
    drop: Callable[[Array], Array] | None = None  # see AttentionOptions
    scale: bool = True  # see AttentionOptions
    # The arguments are those of `attend_to_all`. `attend_to_cache` takes a Cache as the keys and
    # values; `attend_on_platform` returns no weights.
    attend: Callable[..., tuple[Array, Array | None]] = attend_to_all


PLAIN_HEADS = HeadOptions()  # section 3.2.2


@checked
def multi_head_attention(
    params: AttentionParams,
    x: Float[Array, "B T D"],
    keys_values: Any,
    mask: Bool[Array, "#B #H #T S"] | None = None,
    bias: Float[Array, "#B #H #T S"] | None = None,
    options: HeadOptions = PLAIN_HEADS,
) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
    """Concat(head_1, …, head_h) W^O (section 3.2.2); returns the output and the weights.

    `keys_values` is what `options.attend` reads: by default KeysValues. `mask` and `bias` are those
    of `dot_product_attention`. With bfloat16 weights, float32 queries, keys and values are
    multiplied in JAX's default precision (`activations_precision`).
    """
    queries = project(x, params.query, params.query_bias)  # [B, H, T, K]
    if options.rotate is not None:
        queries = options.rotate(queries)
    how = AttentionOptions(options.drop, activations_precision(params.query), options.scale)
    # heads [B, H, T, K], weights [B, H, T, S]
    heads, weights = options.attend(queries, keys_values, mask, bias, how)
    output = params.output.reshape(-1, x.shape[-1])  # [H·K, D]
    concatenated = jnp.swapaxes(heads, 1, 2).reshape(*x.shape[:-1], len(output))  # [B, T, H·K]
    return matmul(concatenated, output, params.output_bias), weights


class MultiHeadAttention(nn.Module):
    """Owns AttentionParams; `sow`s the weights as intermediates "weights"."""

    config: ModelConfig

    def setup(self) -> None:
        c, zeros = self.config, nn.initializers.zeros
        xavier_in = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, (1, 2))
        # Without the factor 1/√d_k on scores, the queries have it at the beginning.
        variance = 1.0 if c.scale_scores else 1.0 / c.head_size
        xavier_query = nn.initializers.variance_scaling(variance, "fan_avg", "uniform", 0, (1, 2))
        xavier_out = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", (0, 1), 2)
        per_head = c.num_heads, c.head_size
        biases = {}
        if c.attention_bias:
            for name in ("query_bias", "key_bias", "value_bias"):
                biases[name] = parameter(self, name, zeros, per_head)
            biases["output_bias"] = parameter(self, "output_bias", zeros, (c.d_model,))
        params = AttentionParams(
            query=parameter(self, "query", xavier_query, (c.d_model, *per_head)),
            key=parameter(self, "key", xavier_in, (c.d_model, *per_head)),
            value=parameter(self, "value", xavier_in, (c.d_model, *per_head)),
            output=parameter(self, "output", xavier_out, (*per_head, c.d_model)),
            **biases,
        )
        self.params = cast_weights(params, c.weights_dtype)
        self.dropout = Dropout(c.attention_dropout)

    def keys_values(
        self, x: Float[Array, "B S D"], rotate: Callable[[Array], Array] | None = None
    ) -> KeysValues:
        """See `project_keys_values`."""
        return project_keys_values(self.params, x, rotate)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys_values: Any,
        mask: Bool[Array, "#B #H #T S"] | None = None,
        bias: Float[Array, "#B #H #T S"] | None = None,
        options: HeadOptions = PLAIN_HEADS,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """See `multi_head_attention`; the config decides `drop` and `scale` of the options.
        `row_ids` are those of `dropout`."""
        c = self.config
        # Without dropout None, so that `attend_to_cache` is traced once for all layers.
        drops = c.attention_dropout and self.has_rng("dropout")
        drop = partial(self.dropout, row_ids=row_ids) if drops else None
        options = options._replace(drop=drop, scale=c.scale_scores)
        output, weights = multi_head_attention(self.params, x, keys_values, mask, bias, options)
        self.sow("intermediates", "weights", weights)
        return output

"""The Transformer (figure 1): wiring only; every computation is a function in another file.

Axes: B batch · S source · T target · N beams · C keys of self-attention: T, or the entries of a
cache · D model width · V vocabulary.
Two ideas. First, one layer class serves both stacks: with memory it is a decoder layer, without
memory an encoder layer. Second, the decoder runs the same code in training, on all T positions at
once and without a cache, and in search, where the T axis holds the N beams and keys and values are
appended to a cache.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .attention import (
    KeysValues,
    MultiHeadAttention,
    causal_mask,
    dot_product_attention,
    segment_mask,
)
from .cache import (
    Cache,
    StoredKeysValues,
    ancestry_mask,
    attend_to_cache,
    empty_caches,
    empty_memory,
    extend_cache,
    stored,
)
from .checks import check_length, check_memory
from .config import ModelConfig
from .encoder_decoder import DecoderState, EncoderDecoder
from .fused_attention import attend_on_platform
from .layers import NORMS, Dropout, FeedForward
from .positions import PositionBias, Positions, bias_owner


class Sublayer(nn.Module):
    """The residual connection, dropout and norm around a sub-layer f (section 3.1).

    post-norm: norm(x + f(x)); pre-norm: x + f(norm(x)).
    """

    config: ModelConfig

    def setup(self) -> None:
        self.norm = NORMS[self.config.norm_function](self.config)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        f: Callable[[Array], Array],
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        if self.config.norm == "pre":
            return self.add(x, f(self.norm(x)), row_ids)
        return self.norm(self.add(x, f(x), row_ids))

    def add(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], row_ids: Int[Array, " B"] | None
    ) -> Float[Array, "B T D"]:
        """The residual connection: x + dropout(y)."""
        return x + self.dropout(y, row_ids)


class Layer(nn.Module):
    """A layer of either stack in figure 1: self-attention over fresh or cached keys,
    cross-attention if there is memory, feed-forward.

    Without memory it is an encoder layer, or a GPT layer if the mask is causal, and has no
    parameters for cross-attention.
    """

    config: ModelConfig
    past_only: bool = False  # relative positions are those of earlier keys (`PositionBias`)

    def setup(self) -> None:
        if bias_owner(self.config) == "layer":
            self.relative_bias = PositionBias(self.config, self.past_only)
        self.self_attention = MultiHeadAttention(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.around_self = Sublayer(self.config)
        self.around_cross = Sublayer(self.config)
        self.around_feed_forward = Sublayer(self.config)

    def memory_keys_values(self, encoded: Float[Array, "B S D"]) -> KeysValues:
        """The memory of the layer: keys and values of the encoder's output."""
        return self.cross_attention.keys_values(encoded)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "#B 1 #T C"] | None = None,
        rotary: Int[Array, "B T"] | None = None,
        memory: KeysValues | None = None,
        memory_mask: Bool[Array, "#B 1 #T S"] | None = None,
        cache: Cache | None = None,
        index: Int[Array, " B"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
        bias: Float[Array, "#B H #T C"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache | None]:
        """The arguments are those of `Stack`, with the memory and the cache of this layer:
        `memory` is `memory_keys_values(encoded)`. `rotary` are the positions if queries and keys
        are rotated. `bias` is that of the stack on the scores of self-attention."""
        if memory is not None:
            check_memory(memory, 2, "layer.memory_keys_values(memory), keys and values")
        if self.config.positions == "rotary" and rotary is None:
            raise TypeError("rotary must be the positions [B, T] of x; got None")
        if bias_owner(self.config) == "layer":
            bias = bias_of(self.relative_bias, x, cache, index)
        elif bias_owner(self.config) == "stack" and bias is None:
            raise TypeError(f"bias must be that of {self.config.positions} positions; got None")
        # The kernels return no weights.
        kernels = self.config.attention_kernels and not self.is_mutable_collection("intermediates")
        attend = attend_on_platform if kernels else dot_product_attention
        if cache is not None and index is None:
            raise TypeError("index must be an array [B] with caches; got None")

        def self_attention(y: Array) -> Array:  # [B, T, D]
            nonlocal cache
            keys_values = self.self_attention.keys_values(y, rotary)  # 2 × [B, H, T, K]
            if cache is None or index is None:
                return self.self_attention(y, keys_values, mask, rotary, row_ids, attend, bias)
            cache = extend_cache(cache, keys_values, index)
            return self.self_attention(y, cache, mask, rotary, row_ids, attend_to_cache, bias)

        def feed_forward(y: Array) -> Array:  # [B, T, D]
            return self.feed_forward(y, row_ids)

        x = self.around_self(x, self_attention, row_ids)  # [B, T, D]
        if memory is not None:

            def cross_attention(y: Array) -> Array:  # [B, T, D]
                return self.cross_attention(y, memory, memory_mask, None, row_ids, attend)

            x = self.around_cross(x, cross_attention, row_ids)  # [B, T, D]
        return self.around_feed_forward(x, feed_forward, row_ids), cache


class Stack(nn.Module):
    """A stack of figure 1 above its embeddings: positions, dropout, `num_layers` × Layer, and the
    final norm of pre-norm. With memory it is a decoder, without memory an encoder or a GPT."""

    config: ModelConfig
    num_layers: int
    past_only: bool = False  # relative positions are those of earlier keys (`PositionBias`)

    def setup(self) -> None:
        c, norm = self.config, NORMS[self.config.norm_function]
        self.dropout = Dropout(c.dropout)
        self.positions = Positions(c)
        if bias_owner(c) == "stack":
            self.relative_bias = PositionBias(c, self.past_only)
        if c.embedding_norm:
            self.embedding_norm = norm(c)
        layer = nn.remat(Layer) if c.remat else Layer
        self.layers = [layer(c, self.past_only) for _ in range(self.num_layers)]
        if c.norm == "pre":
            self.norm = norm(c)

    def memory_keys_values(self, encoded: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        """The memory of every layer."""
        return tuple(layer.memory_keys_values(encoded) for layer in self.layers)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "#B 1 #T C"] | None,
        positions: Int[Array, "B T"],
        memory: tuple[KeysValues, ...] | None = None,
        memory_mask: Bool[Array, "#B 1 #T S"] | None = None,
        caches: tuple[Cache, ...] | None = None,
        index: Int[Array, " B"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[Cache | None, ...]]:
        """The output of the last layer, and the caches with the new keys and values at `index`.

        `mask` is True where a query may attend to a key of self-attention: the T positions of `x`,
        or with caches all C entries of the cache. `memory_mask` is that of cross-attention.
        `positions` are 0, 1, … of each token in its sequence. `index` is the first entry of the
        cache that the keys and values of `x` are written to, t · N for N hypotheses at step t; with
        caches, it and a mask are required. Memory and caches have one entry per layer: `memory` is
        `memory_keys_values(encoded)`. `row_ids` are those of `dropout`.
        """
        if memory is not None:
            expected = "stack.memory_keys_values(memory), one entry per layer"
            check_memory(memory, self.num_layers, expected)
        x, rotary = self.positions(x, positions)
        if self.config.embedding_norm:
            x = self.embedding_norm(x)
        x = self.dropout(x, row_ids)
        absent, bias = (None,) * self.num_layers, None
        if bias_owner(self.config) == "stack":
            bias = bias_of(self.relative_bias, x, caches[0] if caches else None, index)
        new_caches = []
        for layer, layer_memory, cache in zip(
            self.layers, memory or absent, caches or absent, strict=True
        ):
            x, cache = layer(
                x, mask=mask, rotary=rotary, memory=layer_memory, memory_mask=memory_mask,
                cache=cache, index=index, row_ids=row_ids, bias=bias,
            )  # fmt: skip
            new_caches.append(cache)
        if self.config.norm == "pre":
            x = self.norm(x)
        return x, tuple(new_caches)


def bias_of(
    module: PositionBias,
    x: Float[Array, "B T D"],
    cache: Cache | None,
    index: Int[Array, " B"] | None,
) -> Float[Array, "#B H #T C"]:
    """The bias on the scores of self-attention of `x`. With a cache its T axis holds the N beams.

    Packed pairs need no positions: the distance within a pair is that of the columns of the row.
    """
    if cache is None or index is None:
        return module(x.shape[1])
    beams, entries = x.shape[1], sum(block.values.shape[2] for block in cache.blocks)
    return module(entries // beams, index // beams, beams)


class Transformer(EncoderDecoder):
    """Two stacks between the embeddings and the logits; see EncoderDecoder for the methods."""

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.encoder = Stack(c, c.num_layers)
        self.decoder = Stack(c, c.decoder_layers, past_only=True)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """See EncoderDecoder."""
        if positions is None:
            check_length("source", source, self.config.longest)
            positions = default_positions(source)
        mask = segment_mask(segments, segments)  # [B, 1, S, S]
        x, _ = self.encoder(self.source_embedding(source), mask, positions, row_ids=row_ids)
        return x

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        source_positions: Int[Array, "B S"] | None = None,
        target_positions: Int[Array, "B T"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """See EncoderDecoder."""
        encoded = self.encode(source, source_segments, source_positions, row_ids)  # [B, S, D]
        if (positions := target_positions) is None:
            check_length("target", target, self.config.longest)
            positions = default_positions(target)
        mask = segment_mask(target_segments, target_segments) & causal_mask(target.shape[1])
        x = self.target_embedding(target)  # [B, T, D]
        memory = self.decoder.memory_keys_values(encoded)
        memory_mask = segment_mask(target_segments, source_segments)  # [B, 1, T, S]
        x, _ = self.decoder(x, mask, positions, memory, memory_mask, row_ids=row_ids)
        return x

    def memory(self, encoded: Float[Array, "B S D"]) -> tuple[StoredKeysValues, ...]:
        """Cross-attention keys and values of every decoder layer, computed once per sentence."""
        return tuple(map(stored, self.decoder.memory_keys_values(encoded)))

    def step(
        self,
        tokens: Int[Array, "B N"],
        state: DecoderState,
        t: Int[Array, " B"],
        parents: Int[Array, "B N"],
        ancestry: Int[Array, "B N T"],
    ) -> tuple[Float[Array, "B N V"], DecoderState]:
        """See EncoderDecoder. Keys and values are appended to the caches, masked by ancestry."""
        beams, source_length = tokens.shape[1], state.memory[0].values.shape[2]
        mask = ancestry_mask(ancestry)  # [B, 1, N, T·N]
        inside = jnp.arange(source_length) < state.lengths[:, None]  # [B, S]
        memory = tuple(layer.keys_values for layer in state.memory)
        index, memory_mask = t * beams, inside[:, None, None]
        positions = jnp.broadcast_to(t[:, None], tokens.shape)  # [B, N]
        x = self.target_embedding(tokens)  # [B, N, D]
        x, caches = self.decoder(x, mask, positions, memory, memory_mask, state.caches, index)
        return self.logits(x), state._replace(caches=caches)

    @nn.nowrap
    def empty_memory(self, lanes: int, source_length: int) -> tuple[StoredKeysValues, ...]:
        """See EncoderDecoder."""
        return empty_memory(self.config, lanes, source_length)

    @nn.nowrap
    def empty_caches(self, lanes: int, steps: int, beams: int) -> tuple[Cache, ...]:
        """See EncoderDecoder."""
        return empty_caches(self.config, lanes, steps, beams)


def default_positions(ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0 … T−1 in every row."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

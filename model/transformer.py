"""The Transformer (figure 1): wiring only; every computation is a function in another file.

Axes: B batch · S source · T target · N beams · C keys of self-attention: T, or the entries of a
cache · D model width · V vocabulary.
Two ideas. First, one layer class serves both stacks: with memory it is a decoder layer, without
memory an encoder layer. Second, the decoder runs the same code in training, on all T positions at
once and without a cache, and in search, where the T axis holds the N beams and keys and values are
appended to a cache.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .attention import (
    HeadOptions,
    KeysValues,
    MultiHeadAttention,
    attend_to_all,
    causal_mask,
    segment_mask,
)
from .cache import (
    Cache,
    StoredKeysValues,
    ancestry_mask,
    attend_to_cache,
    empty_caches,
    empty_keys_values,
    extend_cache,
    stored,
)
from .checks import check_length, check_memory
from .config import ModelConfig
from .encoder_decoder import DecoderState, EncoderDecoder, PairPositions
from .layers import NORMS, Dropout, FeedForward
from .placement import on_each_device
from .platform_attention import attend_on_platform
from .position_rules import POSITION_RULES
from .positions import LayerPositions, make_positions


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


class Memory(NamedTuple):
    """What the cross-attention of a layer reads: the encoder's output, projected."""

    keys_values: KeysValues
    mask: Bool[Array, "#B 1 #T S"] | None = None


class Layer(nn.Module):
    """A layer of either stack in figure 1: self-attention over fresh or cached keys,
    cross-attention if there is memory, feed-forward.

    Without memory it is an encoder layer, or a GPT layer if the mask is causal, and has no
    parameters for cross-attention.
    """

    config: ModelConfig
    past_only: bool = False  # see `Positions`

    def setup(self) -> None:
        self.position_kind = make_positions(self.config, self.past_only)
        self.self_attention = MultiHeadAttention(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.around_self = Sublayer(self.config)
        self.around_cross = Sublayer(self.config)
        self.around_feed_forward = Sublayer(self.config)

    def memory_of(
        self, encoded: Float[Array, "B S D"], mask: Bool[Array, "#B 1 #T S"] | None = None
    ) -> Memory:
        """The memory of the layer: keys and values of the encoder's output."""
        return Memory(self.cross_attention.keys_values(encoded), mask)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "#B 1 #T C"] | None = None,
        positions: LayerPositions | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache | None]:
        """The arguments are those of `Stack`, with the memory and the cache of this layer.
        `positions` are required by kinds that act in attention, and with a cache."""
        # The kernels return no weights.
        kernels = self.config.attention_kernels and not self.is_mutable_collection("intermediates")
        attend = attend_on_platform if kernels else attend_to_all
        ids = None if positions is None else positions.ids
        bias = self.bias(positions, cache)  # [B, H, T, C] or None

        def rotate(heads: Array) -> Array:  # [B, H, T, K]
            return self.position_kind.rotate(heads, ids)

        def self_attention(y: Array) -> Array:  # [B, T, D]
            nonlocal cache
            keys_values = self.self_attention.keys_values(y, rotate)  # 2 × [B, H, T, K]
            if cache is None:
                options = HeadOptions(rotate, attend=attend)
                return self.self_attention(y, keys_values, mask, bias, options, row_ids)
            if ids is None:
                raise TypeError("positions must be those of x with a cache; got None")
            # The N hypotheses at step t write the entries from t · N on.
            cache = extend_cache(cache, keys_values, ids[:, 0] * ids.shape[1])
            options = HeadOptions(rotate, attend=attend_to_cache)
            return self.self_attention(y, cache, mask, bias, options, row_ids)

        def feed_forward(y: Array) -> Array:  # [B, T, D]
            return self.feed_forward(y, row_ids)

        x = self.around_self(x, self_attention, row_ids)  # [B, T, D]
        if memory is not None:
            check_memory(memory, Memory, 2, "layer.memory_of(memory), keys and values")

            def cross_attention(y: Array) -> Array:  # [B, T, D]
                options = HeadOptions(attend=attend)
                return self.cross_attention(
                    y, memory.keys_values, memory.mask, None, options, row_ids
                )

            x = self.around_cross(x, cross_attention, row_ids)  # [B, T, D]
        return self.around_feed_forward(x, feed_forward, row_ids), cache

    def bias(
        self, positions: LayerPositions | None, cache: Cache | None
    ) -> Float[Array, "#B H #T C"] | None:
        """The bias on the scores of self-attention: that of the stack, or of a table of the layer's
        own. `relative_tables` decides for every kind with a bias; without tables it is "stack"."""
        if not POSITION_RULES[self.config.positions].has_bias:
            return None
        if positions is None or (positions.bias is None and self.config.relative_tables == "stack"):
            raise TypeError(
                f"positions must be LayerPositions with the bias of {self.config.positions} "
                f"positions; got {positions}"
            )
        if self.config.relative_tables == "stack":
            return positions.bias
        return self.position_kind.bias(positions.ids, None if cache is None else cache.ends[-1])


class Stack(nn.Module):
    """A stack of figure 1 above its embeddings: positions, dropout, `num_layers` × Layer, and the
    final norm of pre-norm. With memory it is a decoder, without memory an encoder or a GPT."""

    config: ModelConfig
    num_layers: int
    past_only: bool = False  # see `Positions`

    def setup(self) -> None:
        c, norm = self.config, NORMS[self.config.norm_function]
        self.dropout = Dropout(c.dropout)
        self.position_kind = make_positions(c, self.past_only)
        if c.embedding_norm:
            self.embedding_norm = norm(c)
        layer = nn.remat(Layer) if c.remat else Layer
        self.layers = [layer(c, self.past_only) for _ in range(self.num_layers)]
        if c.norm == "pre":
            self.norm = norm(c)

    def memory_of(
        self, encoded: Float[Array, "B S D"], mask: Bool[Array, "#B 1 #T S"] | None = None
    ) -> tuple[Memory, ...]:
        """The memory of every layer. `mask` is that of cross-attention."""
        return tuple(layer.memory_of(encoded, mask) for layer in self.layers)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "#B 1 #T C"] | None,
        positions: Int[Array, "B T"],
        memory: tuple[Memory, ...] | None = None,
        caches: tuple[Cache, ...] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[Cache | None, ...]]:
        """The output of the last layer, and the caches with the new keys and values.

        `mask` is True where a query may attend to a key of self-attention: the T positions of `x`,
        or with caches all C entries of the cache. `positions` are 0, 1, … of each token in its
        sequence. With caches, T are the hypotheses of each row, all at the step positions[:, 0],
        and a mask is required. Memory and caches have one entry per layer: `memory` is
        `memory_of(encoded)`. `row_ids` are those of `dropout`.
        """
        if memory is not None:
            expected = "stack.memory_of(memory), one entry per layer"
            check_memory(memory, tuple, self.num_layers, expected)
        x = self.position_kind.add(x, positions)  # [B, T, D]
        if self.config.embedding_norm:
            x = self.embedding_norm(x)
        x = self.dropout(x, row_ids)
        bias = None
        if self.config.relative_tables == "stack":
            bias = self.position_kind.bias(positions, caches[0].ends[-1] if caches else None)
        shared, absent = LayerPositions(positions, bias), (None,) * self.num_layers
        new_caches = []
        for layer, layer_memory, cache in zip(
            self.layers, memory or absent, caches or absent, strict=True
        ):
            x, cache = layer(x, mask, shared, layer_memory, cache, row_ids)
            new_caches.append(cache)
        if self.config.norm == "pre":
            x = self.norm(x)
        return x, tuple(new_caches)


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
        x = self.source_embedding(source)  # [B, S, D]
        x, _ = self.encoder(x, mask, positions, row_ids=row_ids)  # [B, S, D]
        return x

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        positions: PairPositions | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """See EncoderDecoder."""
        source_positions, target_positions = positions or (None, None)
        encoded = self.encode(source, source_segments, source_positions, row_ids)  # [B, S, D]
        if target_positions is None:
            check_length("target", target, self.config.longest)
            target_positions = default_positions(target)
        mask = segment_mask(target_segments, target_segments) & causal_mask(target.shape[1])
        x = self.target_embedding(target)  # [B, T, D]
        memory_mask = segment_mask(target_segments, source_segments)  # [B, 1, T, S]
        memory = self.decoder.memory_of(encoded, memory_mask)
        x, _ = self.decoder(x, mask, target_positions, memory, row_ids=row_ids)  # [B, T, D]
        return x

    def memory(self, encoded: Float[Array, "B S D"]) -> tuple[StoredKeysValues, ...]:
        """Cross-attention keys and values of every decoder layer, computed once per sentence."""
        return tuple(stored(layer.keys_values) for layer in self.decoder.memory_of(encoded))

    def step(
        self,
        tokens: Int[Array, "B N"],
        state: DecoderState,
        t: Int[Array, " B"],
        parents: Int[Array, "B N"],
        ancestry: Int[Array, "B N T"],
    ) -> tuple[Float[Array, "B N V"], DecoderState]:
        """See EncoderDecoder. Keys and values are appended to the caches, masked by ancestry.

        Each device of a copy of the model has all logits, so that it searches alone: the numbers of
        steps of two copies differ, so they must not wait for each other.
        """
        source_length = state.memory[0].values.shape[2]
        mask = ancestry_mask(ancestry)  # [B, 1, N, T·N]
        inside = jnp.arange(source_length) < state.lengths[:, None]  # [B, S]
        memory_mask = inside[:, None, None]  # [B, 1, 1, S]
        memory = tuple(Memory(layer.keys_values, memory_mask) for layer in state.memory)
        positions = jnp.broadcast_to(t[:, None], tokens.shape)  # [B, N]
        x = self.target_embedding(tokens)  # [B, N, D]
        x, caches = self.decoder(x, mask, positions, memory, state.caches)  # [B, N, D]
        logits = on_each_device(self.to_logits(x))  # [B, N, V]
        return logits, state._replace(caches=caches)

    @nn.nowrap
    def empty_memory(self, lanes: int, source_length: int) -> tuple[StoredKeysValues, ...]:
        """See EncoderDecoder."""
        return empty_keys_values(self.config, lanes, source_length)

    @nn.nowrap
    def empty_caches(
        self, lanes: int, steps: int, beams: int, blocks: int = 4
    ) -> tuple[Cache, ...]:
        """See EncoderDecoder."""
        return empty_caches(self.config, lanes, steps, beams, blocks)


def default_positions(ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0 … T−1 in every row."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

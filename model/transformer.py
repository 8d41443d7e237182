"""The Transformer (figure 1): wiring only; every computation is a function in another file.

Axes: B batch · S source · T target · N beams · C cache slots · D model width · V vocabulary.
Two ideas. First, one layer class serves both stacks: with memory it is a decoder layer, without
memory an encoder layer. Second, the decoder runs the same code in training, on all T positions at
once and without a cache, and in search, where the T axis holds the N beams and keys and values are
appended to a cache.
"""

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
from .cache import Cache, attend_to_cache, extend_cache
from .config import ModelConfig
from .encoder_decoder import EncoderDecoder
from .layers import Dropout, FeedForward, LayerNorm
from .positions import PositionTable


class Sublayer(nn.Module):
    """The residual connection, dropout and norm around a sub-layer f (section 3.1).

    post-norm: norm(x + f(x)); pre-norm: x + f(norm(x)). Use as leave(x, f(enter(x))).
    """

    config: ModelConfig

    def setup(self):
        self.norm = LayerNorm(self.config)
        self.dropout = Dropout(self.config.dropout)

    def enter(self, x):
        return self.norm(x) if self.config.norm == "pre" else x

    def leave(self, x, y, row_ids=None):
        x = x + self.dropout(y, row_ids)
        return x if self.config.norm == "pre" else self.norm(x)


class Layer(nn.Module):
    """A layer of either stack in figure 1: self-attention over fresh or cached keys,
    cross-attention if there is memory, feed-forward.

    Without memory it is an encoder layer, or a GPT layer if the mask is causal, and has no
    parameters for cross-attention.
    """

    config: ModelConfig

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.around_self = Sublayer(self.config)
        self.around_cross = Sublayer(self.config)
        self.around_feed_forward = Sublayer(self.config)

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        return self.cross_attention.keys_values(memory)

    def __call__(self, x, mask, rotary, memory, memory_mask, cache, index, row_ids):
        y = self.around_self.enter(x)
        keys_values, attend = self.self_attention.keys_values(y, rotary), dot_product_attention
        if cache is not None:
            cache = extend_cache(cache, keys_values, index)
            keys_values, attend = cache, attend_to_cache
        y = self.self_attention(y, keys_values, mask, rotary, row_ids, attend=attend)
        x = self.around_self.leave(x, y, row_ids)
        if memory is not None:
            y = self.around_cross.enter(x)
            y = self.cross_attention(y, memory, memory_mask, row_ids=row_ids)
            x = self.around_cross.leave(x, y, row_ids)
        y = self.feed_forward(self.around_feed_forward.enter(x), row_ids)
        return self.around_feed_forward.leave(x, y, row_ids), cache


class Stack(nn.Module):
    """A stack of figure 1 above its embeddings: positions, dropout, `num_layers` × Layer, and the
    final norm of pre-norm. With memory it is a decoder, without memory an encoder or a GPT."""

    config: ModelConfig
    num_layers: int

    def setup(self):
        c = self.config
        self.dropout = Dropout(c.dropout)
        if c.positions in ("sinusoidal", "learned"):
            self.positions = PositionTable(c)
        layer = nn.remat(Layer) if c.remat else Layer
        self.layers = [layer(c) for _ in range(self.num_layers)]
        if c.norm == "pre":
            self.norm = LayerNorm(c)

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        return tuple(layer.memory_keys_values(memory) for layer in self.layers)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "#B 1 T C"] | None,
        positions: Int[Array, "B T"],
        memory: tuple[KeysValues, ...] | None = None,
        memory_mask: Bool[Array, "#B 1 #T S"] | None = None,
        caches: tuple[Cache, ...] | None = None,
        index: Int[Array, " B"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[Cache | None, ...]]:
        """The output of the last layer, and the caches with the new keys and values at `index`.

        Memory and caches have one entry per layer. Without caches, queries attend to the T
        positions of `x`. `row_ids` are those of `dropout`.
        """
        if self.config.positions in ("sinusoidal", "learned"):
            x = x + self.positions(positions)
        x = self.dropout(x, row_ids)
        rotary = positions if self.config.positions == "rotary" else None
        absent = (None,) * self.num_layers
        extended = []
        for layer, own_memory, cache in zip(
            self.layers, memory or absent, caches or absent, strict=True
        ):
            x, cache = layer(x, mask, rotary, own_memory, memory_mask, cache, index, row_ids)
            extended.append(cache)
        return self.norm(x) if self.config.norm == "pre" else x, tuple(extended)


class Transformer(EncoderDecoder):
    """`__call__` for teacher forcing; `encode`, `memory_keys_values` and `step` for search."""

    def setup(self):
        super().setup()
        c = self.config
        self.encoder = Stack(c, c.num_layers)
        self.decoder = Stack(c, c.decoder_layers)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The memory: the encoder's output for the source. Segment 0 is padding."""
        positions = default_positions(source) if positions is None else positions
        mask = segment_mask(segments, segments)
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
        memory = self.encode(source, source_segments, source_positions, row_ids)
        positions = default_positions(target) if target_positions is None else target_positions
        causal = segment_mask(target_segments, target_segments) & causal_mask(target.shape[1])
        x, _ = self.decoder(
            self.target_embedding(target),
            causal,
            positions,
            self.decoder.memory_keys_values(memory),
            segment_mask(target_segments, source_segments),
            row_ids=row_ids,
        )
        return x

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        """Cross-attention keys and values of every decoder layer, computed once per sentence."""
        return self.decoder.memory_keys_values(memory)

    def step(
        self,
        tokens: Int[Array, "B N"],
        caches: tuple[Cache, ...],
        index: Int[Array, " B"],
        position: Int[Array, " B"],
        mask: Bool[Array, "B 1 N C"],
        memory: tuple[KeysValues, ...],
        memory_mask: Bool[Array, "B 1 1 S"],
    ) -> tuple[Float[Array, "B N V"], tuple[Cache, ...]]:
        """One position of N hypotheses per row; their keys go to cache slots index … index+N−1.

        `mask` is True for the cache slots that each hypothesis may attend to.
        """
        positions = jnp.broadcast_to(position[:, None], tokens.shape)
        x, caches = self.decoder(
            self.target_embedding(tokens), mask, positions, memory, memory_mask, caches, index
        )
        return self.logits(x), caches


def default_positions(ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0 … T−1 in every row."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

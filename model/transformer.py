"""The Transformer (figure 1): wiring only, every computation is a function of the other files.

Axes: B batch · S source · T target · D model width · V vocabulary.
One idea to know: the decoder runs the same code in training, where all T positions come at
once and there is no cache, and in search, where the T axis holds the beams and keys and values
are appended to a cache.
"""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from model.attention import (
    Cache,
    KeysValues,
    MultiHeadAttention,
    causal_mask,
    extend_cache,
    segment_mask,
)
from model.config import ModelConfig
from model.layers import Dropout, Embedding, FeedForward, LayerNorm
from model.positions import PositionTable


class Sublayer(nn.Module):
    """Residual connection, dropout and norm around a sub-layer f (section 3.1).

    post-norm: norm(x + f(x)); pre-norm: x + f(norm(x)). Use: leave(x, f(enter(x))).
    """

    config: ModelConfig

    def setup(self):
        self.norm = LayerNorm(self.config)
        self.dropout = Dropout(self.config)

    def enter(self, x):
        return self.norm(x) if self.config.norm == "pre" else x

    def leave(self, x, y, rows=None):
        x = x + self.dropout(y, rows)
        return x if self.config.norm == "pre" else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    config: ModelConfig

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.feed_forward = FeedForward(self.config)
        self.around_self = Sublayer(self.config)
        self.around_feed_forward = Sublayer(self.config)

    def __call__(self, x, mask, rotary, rows=None):
        y = self.around_self.enter(x)
        y = self.self_attention(y, self.self_attention.keys_values(y, rotary), mask, rotary)
        x = self.around_self.leave(x, y, rows)
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y, rows)


class DecoderLayer(nn.Module):
    """Masked self-attention (over fresh or cached keys), cross-attention, feed-forward."""

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

    def __call__(self, x, mask, rotary, memory, memory_mask, cache=None, index=None, rows=None):
        y = self.around_self.enter(x)
        keys_values = self.self_attention.keys_values(y, rotary)
        if cache is not None:
            cache = extend_cache(cache, keys_values, index)
            keys_values = cache.keys_values
        y = self.self_attention(y, keys_values, mask, rotary)
        x = self.around_self.leave(x, y, rows)
        y = self.cross_attention(self.around_cross.enter(x), memory, memory_mask)
        x = self.around_cross.leave(x, y, rows)
        y = self.feed_forward(self.around_feed_forward.enter(x))
        return self.around_feed_forward.leave(x, y, rows), cache


class Stack(nn.Module):
    """What encoder and decoder share: positions, dropout, layers, pre-norm's last norm."""

    config: ModelConfig
    layer: type[nn.Module]
    num_layers: int

    def setup(self):
        c = self.config
        self.dropout = Dropout(c)
        if c.positions in ("sinusoidal", "learned"):
            self.positions = PositionTable(c)
        layer = nn.remat(self.layer) if c.remat else self.layer
        self.layers = [layer(c) for _ in range(self.num_layers)]
        if c.norm == "pre":
            self.norm = LayerNorm(c)

    def enter(self, x, positions, rows):
        """Embeddings in, the first layer's input and rotary positions (None unless used) out."""
        if self.config.positions in ("sinusoidal", "learned"):
            x = x + self.positions(positions)
        return self.dropout(x, rows), positions if self.config.positions == "rotary" else None

    def leave(self, x):
        return self.norm(x) if self.config.norm == "pre" else x


class Encoder(Stack):
    """`num_layers` × EncoderLayer."""

    def __call__(self, x, mask, positions, rows=None):
        x, rotary = self.enter(x, positions, rows)
        for layer in self.layers:
            x = layer(x, mask, rotary, rows)
        return self.leave(x)


class Decoder(Stack):
    """`num_layers` × DecoderLayer; memory and caches are one KeysValues for each layer."""

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        return tuple(layer.memory_keys_values(memory) for layer in self.layers)

    def __call__(self, x, mask, positions, memory, memory_mask, caches=None, index=None, rows=None):
        x, rotary = self.enter(x, positions, rows)
        caches = list(caches or [None] * len(self.layers))
        for i, layer in enumerate(self.layers):
            x, caches[i] = layer(x, mask, rotary, memory[i], memory_mask, caches[i], index, rows)
        return self.leave(x), tuple(caches)


class Transformer(nn.Module):
    """The model: `__call__` for teacher forcing; `encode`, `memory_keys_values`, `step` for search.

    Dropout is on exactly when `apply` is given `rngs={"dropout": key}`.
    """

    config: ModelConfig

    def setup(self):
        c = self.config
        self.target_embedding = Embedding(c, c.target_vocab_size)
        if c.tied_embeddings == "three-way":
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = Embedding(c, c.source_vocab_size)
        if c.tied_embeddings == "none":
            self.output_embedding = Embedding(c, c.target_vocab_size)
        else:
            self.output_embedding = self.target_embedding
        if c.output_bias:
            zeros = nn.initializers.zeros
            self.output_bias = self.param("output_bias", zeros, (c.target_vocab_size,))
        self.encoder = Encoder(c, EncoderLayer, c.num_layers)
        self.decoder = Decoder(c, DecoderLayer, c.decoder_layers)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The memory: what the encoder makes of the source. Segment 0 is padding."""
        positions = along(source) if positions is None else positions
        mask = segment_mask(segments, segments)
        return self.encoder(self.source_embedding(source), mask, positions, rows)

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        source_positions: Int[Array, "B S"] | None = None,
        target_positions: Int[Array, "B T"] | None = None,
        rows: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for each target position, before `logits` (teacher forcing).

        `target` is the decoder's input: the start token, then the target without its end.
        Segments are 1, 2, … for packed pairs and 0 for padding; positions default to 0, 1, ….
        """
        memory = self.encode(source, source_segments, source_positions, rows)
        positions = along(target) if target_positions is None else target_positions
        causal = segment_mask(target_segments, target_segments) & causal_mask(target.shape[1])
        x, _ = self.decoder(
            self.target_embedding(target),
            causal,
            positions,
            self.decoder.memory_keys_values(memory),
            segment_mask(target_segments, source_segments),
            rows=rows,
        )
        return x

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Unnormalised log-probabilities of the next token, float32."""
        return self.output_embedding.logits(
            hidden, self.output_bias if self.config.output_bias else None
        )

    def __call__(self, *inputs: Array | None) -> Float[Array, "B T V"]:
        """Logits for each target position; the inputs are those of `hidden`."""
        return self.logits(self.hidden(*inputs))

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> tuple[KeysValues, ...]:
        """Cross-attention keys and values of every decoder layer: once per sentence."""
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
        """One position of N hypotheses a row: their keys go to cache slots index … index+N−1.

        `mask` says which of the C cache slots each hypothesis may see.
        """
        positions = jnp.broadcast_to(position[:, None], tokens.shape)
        x, caches = self.decoder(
            self.target_embedding(tokens), mask, positions, memory, memory_mask, caches, index
        )
        return self.logits(x), caches


def along(ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions 0 … T−1 in every row."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)

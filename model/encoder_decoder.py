"""The interface of all kinds of models: teacher forcing, and what a search calls.

Axes: B batch or lanes · S source · T target or steps · N beams · D model width · V vocabulary.
A kind of model is a subclass of EncoderDecoder and an entry of MODEL_KINDS (model/kinds.py).
Training and decoding use all kinds through the methods of this class.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from .config import ModelConfig
from .layers import Embedding
from .parameters import parameter


class PairPositions(NamedTuple):
    """0, 1, … for the tokens of each source and of each target of packed rows."""

    source: Int[Array, "B S"]
    target: Int[Array, "B T"]


class DecoderState(NamedTuple):
    """The state of one model in a search; the axis B of each array is that of the lanes."""

    memory: Any  # of the sentence in each lane
    lengths: Int[Array, " B"]  # of the sources
    caches: Any  # `EncoderDecoder.empty_caches` with what the steps have written


class EncoderDecoder(nn.Module):
    """Owns the embeddings, shared as `tied_embeddings` says, and computes logits.

    A subclass defines `hidden` for teacher forcing, and `encode`, `step` and `empty_caches` for a
    search. A search has three kinds of arrays, all of which begin with an axis of sentences:
    1. encoded: what `encode` returns for the next sources of the queue, a batch at a time,
    2. memory: what `memory` returns for a sentence that enters a lane; each step reads it,
    3. caches: what `step` writes for the newest token of all hypotheses and reads again.
    The methods `empty_…` allocate them. They read the config only, so they need no parameters.

    Dropout is applied if and only if `apply` is called with `rngs={"dropout": key}`.
    """

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        c.check_rules()
        if not (c.source_vocab_size and c.target_vocab_size):
            raise ValueError("model.source_vocab_size and target_vocab_size must be set, got 0")
        self.target_embedding = Embedding(c, c.target_vocab_size)
        if c.shares_inputs:
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = Embedding(c, c.source_vocab_size)
        if c.has_output_table:
            self.output_embedding = Embedding(c, c.target_vocab_size)
        else:
            self.output_embedding = self.target_embedding
        if c.output_bias:
            zeros = nn.initializers.zeros
            self.output_bias = parameter(self, "output_bias", zeros, (c.target_vocab_size,))

    # Teacher forcing.

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Any:
        """What the decoder needs of a source: the encoder's output [B, S, D] of a Transformer.
        Segment 0 is padding."""
        raise NotImplementedError

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        positions: PairPositions | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for each target position, before `to_logits` (teacher forcing).

        `target` is the decoder's input: the start token, then the target without its end token
        (`shift_right` of model/target_shift.py).
        Segments are 1, 2, … for packed pairs and 0 for padding. Positions default to 0, 1, ….
        """
        raise NotImplementedError

    def to_logits(
        self, hidden: Float[Array, "... D"], dtype: str = "float32"
    ) -> Float[Array, "... V"]:
        """Unnormalised log-probabilities of the next token, in `dtype`."""
        hidden = hidden.astype(dtype)
        if self.config.scale_logits:
            hidden = hidden * jnp.asarray(self.config.d_model**-0.5, dtype)
        return self.output_embedding.to_logits(
            hidden, self.output_bias if self.config.output_bias else None
        )

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        positions: PairPositions | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T V"]:
        """`to_logits` of `hidden`: those at [b, t] predict the token after target[b, t]."""
        segments = source_segments, target_segments
        return self.to_logits(self.hidden(source, target, *segments, positions, row_ids))

    # Search.

    def memory(self, encoded: Any) -> Any:
        """What each step reads of a source, from what `encode` returns."""
        return encoded

    def step(
        self,
        tokens: Int[Array, "B N"],
        state: DecoderState,
        t: Int[Array, " B"],
        parents: Int[Array, "B N"],
        ancestry: Int[Array, "B N T"],
    ) -> tuple[Float[Array, "B N V"], DecoderState]:
        """The logits after one more token of each hypothesis, and the state with the new caches.

        The arguments are those of the step function of `beam_search`. Caches are either appended to
        and masked by `ancestry` (`ancestry_mask`), or gathered by `parents`. At t = 0 they hold
        what the previous sentence of the lane has left, which must not be read.
        """
        raise NotImplementedError

    @nn.nowrap
    def empty_encoded(self, sentences: int, source_length: int) -> Any:
        """Space for what `encode` returns."""
        shape = sentences, source_length, self.config.d_model
        return jnp.zeros(shape, self.config.values_dtype)

    @nn.nowrap
    def empty_memory(self, lanes: int, source_length: int) -> Any:
        """Space for what `memory` returns."""
        return self.empty_encoded(lanes, source_length)

    @nn.nowrap
    def empty_caches(self, lanes: int, steps: int, beams: int, blocks: int = 4) -> Any:
        """Space for what `step` writes; `blocks` are those of a cache (model/cache.py)."""
        raise NotImplementedError

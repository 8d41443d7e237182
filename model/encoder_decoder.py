"""What the kinds of models share: embeddings and their tying, logits, and the arguments of a pass.

Axes: B batch · S source · T target · D model width · V vocabulary.
"""

from flax import linen as nn
from jaxtyping import Array, Float, Int

from .config import ModelConfig
from .layers import Embedding
from .parameters import parameter


class EncoderDecoder(nn.Module):
    """Owns the embeddings. A kind of model adds `encode`, `hidden` and its step of a search.

    Dropout is applied if and only if `apply` is called with `rngs={"dropout": key}`.
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
            self.output_bias = parameter(self, "output_bias", zeros, (c.target_vocab_size,))

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for the source. Segment 0 is padding."""
        raise NotImplementedError

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
        """The decoder's output for each target position, before `logits` (teacher forcing).

        `target` is the decoder's input: the start token, then the target without its end token.
        Segments are 1, 2, … for packed pairs and 0 for padding. Positions default to 0, 1, ….
        """
        raise NotImplementedError

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Unnormalised log-probabilities of the next token, float32."""
        return self.output_embedding.logits(
            hidden, self.output_bias if self.config.output_bias else None
        )

    def __call__(self, *inputs: Array | None) -> Float[Array, "B T V"]:
        """Logits for each target position; the inputs are those of `hidden`."""
        return self.logits(self.hidden(*inputs))

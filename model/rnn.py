"""The RNN encoder-decoders: GRUs with one context vector, or with additive attention.

Axes: B batch · S source · T target · N beams · D width of a state · L layers.
"rnn": the last state of the encoder is the context vector. The decoder's initial states are
computed from it and nothing else reaches the decoder (Cho et al. 2014, Sutskever et al. 2014).
"rnn_attention": the encoder reads in both directions, and the first layer of the decoder attends to
all of its states (Bahdanau et al. 2015).
At the start of a segment of a packed row the state is replaced (model/gru.py): by 0 in the encoder,
by the initial state of that pair in the decoder.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .attention import masked_softmax, segment_mask
from .checks import checked
from .config import ModelConfig
from .encoder_decoder import DecoderState, EncoderDecoder, PairPositions
from .gru import Gru, GruParams, gates_init, gru_cell, scan_segments, segment_starts
from .layers import Dropout
from .matmul import activations_precision, cast_weights, matmul
from .parameters import parameter


class AdditiveAttentionParams(NamedTuple):
    """W_a, U_a, v_a of Bahdanau et al. (appendix A.1.2)."""

    query: Float[Array, "D D"]
    key: Float[Array, "D D"]
    score: Float[Array, " D"]


class AttendedStates(NamedTuple):
    """The encoder's states times U_a, and the states themselves."""

    keys: Float[Array, "B S D"]
    values: Float[Array, "B S D"]


class RnnMemory(NamedTuple):
    """What the steps of a search read of the sources."""

    initial: Float[Array, "B L D"]  # the decoder's states before the first token
    keys_values: AttendedStates | None  # with attention


@checked
def additive_attention(
    params: AdditiveAttentionParams,
    queries: Float[Array, "B N D"],
    keys: Float[Array, "B S D"],
    values: Float[Array, "B S D"],
    mask: Bool[Array, "#B #N S"],
) -> tuple[Float[Array, "B N D"], Float[Array, "B N S"]]:
    """softmax(v tanh(q W_a + k)) V, where `keys` are the states times U_a; returns the context and
    the weights. Softmax in float32. A query that may attend to nothing has weights and output 0.
    """
    sums = matmul(queries, params.query)[:, :, None] + keys[:, None]  # [B, N, S, D]
    scores = matmul(jnp.tanh(sums), params.score).astype(jnp.float32)  # [B, N, S]
    (weights,) = masked_softmax([jnp.where(mask, scores, -jnp.inf)])  # [B, N, S]
    precision = activations_precision(params.query)
    context = jnp.einsum("bns,bsd->bnd", weights.astype(values.dtype), values, precision=precision)
    return context, weights  # [B, N, D], [B, N, S]


def context_vectors(
    states: Float[Array, "B S D"],
    source_segments: Int[Array, "B S"],
    target_segments: Int[Array, "B T"],
    both_directions: bool = False,
) -> Float[Array, "B T D"]:
    """The encoder's state at the last token of the source of each target position's segment.

    With `both_directions` the second half of a state is that of the backward direction, which is
    taken at the first token.
    """
    same_segment = target_segments[:, :, None] == source_segments[:, None]  # [B, T, S]
    index = jnp.arange(states.shape[1])  # [S]
    last = jnp.where(same_segment, index, 0).max(axis=2)[..., None]  # [B, T, 1]
    if not both_directions:
        return jnp.take_along_axis(states, last, axis=1)
    first = jnp.where(same_segment, index, index[-1]).min(axis=2)[..., None]  # [B, T, 1]
    forward, backward = jnp.split(states, 2, axis=-1)  # 2 × [B, S, D/2]
    halves = [
        jnp.take_along_axis(forward, last, axis=1),
        jnp.take_along_axis(backward, first, axis=1),
    ]  # 2 × [B, T, D/2]
    return jnp.concatenate(halves, axis=-1)


class DecoderLayerParams(NamedTuple):
    """A GRU; with attention also the weight of the context in its gates (C of Bahdanau et al.)."""

    gru: GruParams
    attention: AdditiveAttentionParams | None = None
    context: Float[Array, "D 3 D"] | None = None


def decoder_cell(
    params: DecoderLayerParams,
    projected: Float[Array, "B N 3 D"],
    state: Float[Array, "B N D"],
    keys_values: AttendedStates | None = None,
    mask: Bool[Array, "#B #N S"] | None = None,
) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None, Float[Array, "B N S"] | None]:
    """The next state of a decoder layer, the context and the attention weights. With attention the
    query is the state before the token, and the context is an input of the gates."""
    if params.attention is None or params.context is None:
        return gru_cell(params.gru, projected, state), None, None
    if keys_values is None or mask is None:
        raise TypeError("a decoder layer with attention needs keys_values and mask; got None")
    keys, values = keys_values
    context, weights = additive_attention(params.attention, state, keys, values, mask)
    projected = projected + matmul(context, params.context)  # [B, N, 3, D]
    return gru_cell(params.gru, projected, state), context, weights


class AdditiveAttention(nn.Module):
    """Owns AdditiveAttentionParams."""

    config: ModelConfig

    def setup(self) -> None:
        c, xavier = self.config, nn.initializers.xavier_uniform()
        params = AdditiveAttentionParams(
            parameter(self, "query", xavier, (c.d_model, c.d_model)),
            parameter(self, "key", xavier, (c.d_model, c.d_model)),
            parameter(self, "score", nn.initializers.normal(c.d_model**-0.5), (c.d_model,)),
        )
        self.params = cast_weights(params, c.weights_dtype)

    def keys_values(self, states: Float[Array, "B S D"]) -> AttendedStates:
        return AttendedStates(matmul(states, self.params.key), states)


class DecoderLayer(nn.Module):
    """Owns DecoderLayerParams; `sow`s attention weights as intermediates "weights"."""

    config: ModelConfig
    attends: bool

    def setup(self) -> None:
        c = self.config
        self.gru = Gru(c, c.d_model)
        if self.attends:
            self.cross_attention = AdditiveAttention(c)
            context = parameter(self, "context", gates_init, (c.d_model, 3, c.d_model))
            self.context = context.astype(c.weights_dtype)

    @property
    def params(self) -> DecoderLayerParams:
        if not self.attends:
            return DecoderLayerParams(self.gru.params)
        return DecoderLayerParams(self.gru.params, self.cross_attention.params, self.context)

    def project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T 3 D"]:
        return matmul(x, self.params.gru.input, self.params.gru.input_bias)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        segments: Int[Array, "B T"],
        initial: Float[Array, "B T D"],
        keys_values: AttendedStates | None,
        mask: Bool[Array, "B T S"],
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        """The states and the contexts of all tokens (teacher forcing)."""
        params, projected = self.params, self.project(x)  # [B, T, 3, D]
        # The attention of each step has intermediate values [B, S, D].
        cell = jax.checkpoint(decoder_cell) if self.config.remat else decoder_cell

        def advance(state: Array, inputs: tuple[Array, Array | None]) -> tuple[Array, Any]:
            projected, mask = jax.tree.map(lambda x: x[:, None], inputs)  # N = 1
            state, context, weights = cell(params, projected, state, keys_values, mask)
            return state, jax.tree.map(lambda x: x[:, 0], (state, context, weights))

        inputs = projected, mask if self.attends else None
        states, contexts, weights = scan_segments(
            advance, inputs, segment_starts(segments), initial[:, :, None]
        )  # [B, T, D], [B, T, D], [B, T, S]
        if self.attends:
            self.cross_attention.sow("intermediates", "weights", weights[:, None])  # one head
        return states, contexts

    def step(
        self,
        x: Float[Array, "B N D"],
        state: Float[Array, "B N D"],
        keys_values: AttendedStates | None,
        mask: Bool[Array, "B 1 S"] | None,
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None]:
        """The next state and the context of N hypotheses."""
        state, context, _ = decoder_cell(self.params, self.project(x), state, keys_values, mask)
        return state, context


class RnnEncoder(nn.Module):
    """`num_layers` GRUs; with attention in both directions, each of half the width."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        layer = nn.remat(Gru) if c.remat else Gru
        width = c.d_model // 2 if c.attends else c.d_model
        layers = range(c.num_layers)
        self.forward = [layer(c, width) for _ in layers]
        self.backward = [layer(c, width, reverse=True) for _ in layers if c.attends]
        self.dropout = Dropout(c.dropout)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        segments: Int[Array, "B S"],
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        x = self.dropout(x, row_ids)  # [B, S, D]
        directions = (self.forward, self.backward) if self.backward else (self.forward,)
        for layers in zip(*directions, strict=True):
            states = [layer(x, segments) for layer in layers]  # [B, S, D], or 2 × [B, S, D/2]
            x = self.dropout(jnp.concatenate(states, axis=-1), row_ids)
        return x


class RnnDecoder(nn.Module):
    """`decoder_layers` GRUs above their initial states; with attention an output layer."""

    config: ModelConfig

    def setup(self) -> None:
        c, zeros = self.config, nn.initializers.zeros
        self.attends = c.attends
        # The first layer attends.
        self.layers = [DecoderLayer(c, c.attends and i == 0) for i in range(c.decoder_layers)]
        self.dropout = Dropout(c.dropout)
        shape = c.d_model, c.decoder_layers, c.d_model
        self.initial = parameter(self, "initial", gates_init, shape)
        self.initial_bias = parameter(self, "initial_bias", zeros, shape[1:])
        if self.attends:
            xavier = nn.initializers.xavier_uniform()
            self.output = parameter(self, "output", xavier, (2 * c.d_model, c.d_model))
            self.output_bias = parameter(self, "output_bias", zeros, (c.d_model,))

    def initial_states(self, context: Float[Array, "B T D"]) -> Float[Array, "B T L D"]:
        """tanh(c W + b) for each layer."""
        weight = self.initial.astype(self.config.weights_dtype)
        return jnp.tanh(matmul(context, weight, self.initial_bias))

    def keys_values(self, states: Float[Array, "B S D"]) -> AttendedStates | None:
        return self.layers[0].cross_attention.keys_values(states) if self.attends else None

    def hidden(
        self, state: Float[Array, "B N D"], context: Float[Array, "B N D"] | None
    ) -> Float[Array, "B N D"]:
        """What logits are computed from: the state s, or with attention tanh([s; c] W + b) with the
        context c (Luong et al. 2015, equation 5; Bahdanau et al. have a maxout layer here)."""
        if context is None:
            return state
        weight = self.output.astype(self.config.weights_dtype)
        return jnp.tanh(matmul(jnp.concatenate([state, context], -1), weight, self.output_bias))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        segments: Int[Array, "B T"],
        context: Float[Array, "B T D"],
        keys_values: AttendedStates | None,
        mask: Bool[Array, "B T S"],
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """The output for each target position; `context` is that of its segment."""
        initial, contexts = self.initial_states(context), []  # [B, T, L, D]
        x = self.dropout(x, row_ids)
        for i, layer in enumerate(self.layers):
            x, attended = layer(x, segments, initial[:, :, i], keys_values, mask)
            x = self.dropout(x, row_ids)
            contexts.append(attended)
        return self.hidden(x, contexts[0])

    def step(
        self,
        x: Float[Array, "B N D"],
        states: tuple[Float[Array, "B N D"], ...],
        keys_values: AttendedStates | None,
        mask: Bool[Array, "B 1 S"] | None,
    ) -> tuple[Float[Array, "B N D"], tuple[Float[Array, "B N D"], ...]]:
        """The output for one token of N hypotheses, and the states of all layers."""
        new_states, contexts = [], []
        for layer, state in zip(self.layers, states, strict=True):
            x, context = layer.step(x, state, keys_values, mask)
            new_states.append(x)
            contexts.append(context)
        return self.hidden(x, contexts[0]), tuple(new_states)


class Rnn(EncoderDecoder):
    """Encoder and decoder between the embeddings and the logits; see EncoderDecoder for the
    methods."""

    def setup(self) -> None:
        super().setup()
        self.encoder = RnnEncoder(self.config)
        self.decoder = RnnDecoder(self.config)

    def states(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B S D"]:
        """The encoder's output. Segments determine it, so there are no positions."""
        return self.encoder(self.source_embedding(source), segments, row_ids)

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"],
        target_segments: Int[Array, "B T"],
        positions: PairPositions | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """See EncoderDecoder. Positions are ignored."""
        states = self.states(source, source_segments, row_ids)
        return self.decode(states, source_segments, target, target_segments, row_ids)

    def decode(
        self,
        states: Float[Array, "B S D"],
        source_segments: Int[Array, "B S"],
        target: Int[Array, "B T"],
        target_segments: Int[Array, "B T"],
        row_ids: Int[Array, " B"] | None = None,
    ) -> Float[Array, "B T D"]:
        """`hidden` above the encoder's states."""
        both_directions = self.config.attends
        context = context_vectors(states, source_segments, target_segments, both_directions)
        x = self.target_embedding(target)  # [B, T, D]
        keys_values = self.decoder.keys_values(states)
        mask = segment_mask(target_segments, source_segments)[:, 0]  # [B, T, S]
        return self.decoder(x, target_segments, context, keys_values, mask, row_ids)

    def encode(
        self,
        source: Int[Array, "B S"],
        segments: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        row_ids: Int[Array, " B"] | None = None,
    ) -> RnnMemory:
        """See EncoderDecoder. It is the memory. `segments` are 1, and 0 for padding."""
        states = self.states(source, segments, row_ids)
        both_directions, one_target = self.config.attends, jnp.ones_like(segments[:, :1])
        context = context_vectors(states, segments, one_target, both_directions)  # [B, 1, D]
        initial = self.decoder.initial_states(context)[:, 0]
        return RnnMemory(initial, self.decoder.keys_values(states))

    def step(
        self,
        tokens: Int[Array, "B N"],
        state: DecoderState,
        t: Int[Array, " B"],
        parents: Int[Array, "B N"],
        ancestry: Int[Array, "B N T"],
    ) -> tuple[Float[Array, "B N V"], DecoderState]:
        """See EncoderDecoder. The caches are the states of each layer, reordered by `parents`; at
        t = 0 they are replaced by the initial states."""
        memory, mask = state.memory, None
        starts = (t == 0)[:, None, None]  # [B, 1, 1]
        if memory.keys_values is not None:
            source_length = memory.keys_values.keys.shape[1]
            mask = (jnp.arange(source_length) < state.lengths[:, None])[:, None]  # [B, 1, S]
        states = tuple(
            jnp.where(
                starts,
                memory.initial[:, layer, None],
                jnp.take_along_axis(layer_state, parents[:, :, None], axis=1),  # [B, N, D]
            )
            for layer, layer_state in enumerate(state.caches)
        )
        x = self.target_embedding(tokens)  # [B, N, D]
        hidden, states = self.decoder.step(x, states, memory.keys_values, mask)  # [B, N, D]
        return self.to_logits(hidden), state._replace(caches=states)

    @nn.nowrap
    def empty_encoded(self, sentences: int, source_length: int) -> RnnMemory:
        """See EncoderDecoder."""
        c = self.config
        zeros = partial(jnp.zeros, dtype=c.values_dtype)
        states = zeros((sentences, source_length, c.d_model))
        attended = AttendedStates(states, states) if c.attends else None
        return RnnMemory(zeros((sentences, c.decoder_layers, c.d_model)), attended)

    @nn.nowrap
    def empty_caches(
        self, lanes: int, steps: int, beams: int, blocks: int = 4
    ) -> tuple[Array, ...]:
        """Space for the states of every decoder layer, for any number of steps."""
        state = jnp.zeros((lanes, beams, self.config.d_model), self.config.values_dtype)
        return (state,) * self.config.decoder_layers

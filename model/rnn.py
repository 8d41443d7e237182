"""The RNN encoder-decoders: GRUs with one context vector, or with additive attention.

Axes: B batch · S source · T target · N beams · D width of a state · I width of an input · L layers.
"rnn": the last state of the encoder is the context vector. The decoder's initial states are
computed from it and nothing else reaches the decoder (Cho et al. 2014, Sutskever et al. 2014).
"rnn_attention": the encoder reads in both directions, and the first layer of the decoder attends to
all of its states (Bahdanau et al. 2015).
A packed row is one scan. Where a segment starts, the state is replaced: by 0 in the encoder, by the
initial state of that pair in the decoder. So packing costs no padding and pairs stay separate.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .attention import segment_mask
from .beam_search import Step
from .checks import check_array, check_shape
from .config import ModelConfig
from .encoder_decoder import EncoderDecoder
from .layers import Dropout
from .matmul import activations_precision, cast_weights, matmul
from .parameters import parameter

MASKED = jnp.finfo(jnp.float32).min  # a score whose exponential is 0


class GruParams(NamedTuple):
    """The weights of reset gate, update gate and candidate, in this order."""

    input: Float[Array, "I 3 D"]
    recurrent: Float[Array, "D 3 D"]
    input_bias: Float[Array, "3 D"]
    recurrent_bias: Float[Array, " D"]  # of the candidate


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
    """What a decoder needs of the encoded sentences."""

    initial: Float[Array, "B L D"]  # the decoder's states before the first token
    keys_values: AttendedStates | None  # with attention


def gru_cell(
    params: GruParams, projected: Float[Array, "... 3 D"], state: Float[Array, "... D"]
) -> Float[Array, "... D"]:
    """The next state (1 − z) n + z h of a GRU (Cho et al. 2014), as in cuDNN: with x W + b of the
    three gates in `projected`, n = tanh(x W_n + b_n + r (h U_n + c))."""
    recurrent = matmul(state, params.recurrent)
    r, z = (jax.nn.sigmoid(projected[..., i, :] + recurrent[..., i, :]) for i in (0, 1))
    bias = params.recurrent_bias.astype(state.dtype)
    candidate = jnp.tanh(projected[..., 2, :] + r * (recurrent[..., 2, :] + bias))
    return candidate + z * (state - candidate)


def gru(
    params: GruParams,
    x: Float[Array, "B T I"],
    starts: Bool[Array, "B T"],
    initial: Float[Array, "B T D"] | None = None,
    reverse: bool = False,
) -> Float[Array, "B T D"]:
    """The state of a GRU after each input. At `starts` the state before the input is `initial`
    (None: 0). With `reverse` inputs are read from the last to the first."""
    check_array("x", x, "floating", "B T I")
    check_shape("x", x, (*x.shape[:2], len(params.input)), "[B, T, I] with I of params")
    check_shape("starts", starts, x.shape[:2], "[B, T] of x")
    if initial is None:
        initial = jnp.zeros((*x.shape[:2], len(params.recurrent)), x.dtype)

    def advance(state, projected):
        state = gru_cell(params, projected, state)
        return state, state

    projected = matmul(x, params.input, params.input_bias)
    return scan_segments(advance, projected, starts, initial, reverse)


def scan_segments(
    advance: Callable[[Array, Any], tuple[Array, Any]],
    inputs: Any,
    starts: Bool[Array, "B T"],
    initial: Float[Array, "B T ..."],
    reverse: bool = False,
) -> Any:
    """The outputs [B, T, …] of (state, output) = advance(state, input) along the axis T, where
    `initial` replaces the state before the inputs at `starts`, the first one included."""

    def advance_or_start(state, now):
        start, first, inputs = now
        start = jnp.expand_dims(start, tuple(range(1, state.ndim)))
        return advance(jnp.where(start, first, state), inputs)

    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (starts, initial, inputs))
    zero = jnp.zeros_like(by_time[1][0])
    _, outputs = jax.lax.scan(advance_or_start, zero, by_time, reverse=reverse)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)


def segment_starts(segments: Int[Array, "B T"], reverse: bool = False) -> Bool[Array, "B T"]:
    """The first position of each segment; with `reverse` the last one."""
    changes, end = segments[:, 1:] != segments[:, :-1], ((0, 0), (0, 1) if reverse else (1, 0))
    return jnp.pad(changes, end, constant_values=True)


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
    check_array("queries", queries, "floating", "B N D")
    check_array("mask", mask, "boolean, True = may attend", "B N S")
    sums = matmul(queries, params.query)[:, :, None] + keys[:, None]
    scores = matmul(jnp.tanh(sums), params.score).astype(jnp.float32)
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1) * mask
    precision = activations_precision(params.query)
    context = jnp.einsum("bns,bsd->bnd", weights.astype(values.dtype), values, precision=precision)
    return context, weights


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
    own = target_segments[:, :, None] == source_segments[:, None]
    index = jnp.arange(states.shape[1])
    last = jnp.where(own, index, 0).max(axis=2)[..., None]
    if not both_directions:
        return jnp.take_along_axis(states, last, axis=1)
    first = jnp.where(own, index, index[-1]).min(axis=2)[..., None]
    halves = zip(jnp.split(states, 2, axis=-1), (last, first), strict=True)
    return jnp.concatenate([jnp.take_along_axis(*half, axis=1) for half in halves], axis=-1)


class DecoderLayerParams(NamedTuple):
    """A GRU, and the attention and the context's part of its gates (C of Bahdanau et al.)."""

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
    if params.attention is None or keys_values is None:
        return gru_cell(params.gru, projected, state), None, None
    context, weights = additive_attention(params.attention, state, *keys_values, mask)
    projected = projected + matmul(context, params.context)
    return gru_cell(params.gru, projected, state), context, weights


class Gru(nn.Module):
    """Owns GruParams and calls `gru`."""

    config: ModelConfig
    width: int
    reverse: bool = False

    def setup(self):
        c, zeros = self.config, nn.initializers.zeros
        params = GruParams(
            parameter(self, "input", gates_init, (c.d_model, 3, self.width)),
            parameter(self, "recurrent", orthogonal_gates, (self.width, 3, self.width)),
            parameter(self, "input_bias", zeros, (3, self.width)),
            parameter(self, "recurrent_bias", zeros, (self.width,)),
        )
        self.params = cast_weights(params, c.weights_dtype)

    def __call__(self, x: Float[Array, "B T I"], segments: Int[Array, "B T"]):
        starts = segment_starts(segments, self.reverse)
        return gru(self.params, x, starts, reverse=self.reverse)


gates_init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, 2, batch_axis=1)


def orthogonal_gates(key: Array, shape: tuple[int, int, int]) -> Float[Array, "D 3 D"]:
    """An orthogonal matrix for each gate, as initial value."""
    width, gates, _ = shape
    draw = partial(nn.initializers.orthogonal(), shape=(width, width))
    return jnp.stack([draw(one) for one in jax.random.split(key, gates)], axis=1)


class AdditiveAttention(nn.Module):
    """Owns AdditiveAttentionParams."""

    config: ModelConfig

    def setup(self):
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
    """Owns DecoderLayerParams; `sow`s attention weights as `MultiHeadAttention` does."""

    config: ModelConfig
    attends: bool

    def setup(self):
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

    def __call__(self, x, segments, initial, keys_values, mask):
        """The states and the contexts [B, T, D] of all tokens (teacher forcing)."""
        params, projected = self.params, self.project(x)
        # The attention of each step has intermediate values [B, S, D].
        cell = jax.checkpoint(decoder_cell) if self.config.remat else decoder_cell

        def advance(state, now):
            projected, mask = jax.tree.map(lambda x: x[:, None], now)  # N = 1
            state, *others = cell(params, projected, state, keys_values, mask)
            return state, jax.tree.map(lambda x: x[:, 0], (state, *others))

        inputs = projected, mask if self.attends else None
        states, contexts, weights = scan_segments(
            advance, inputs, segment_starts(segments), initial[:, :, None]
        )
        if self.attends:
            self.cross_attention.sow("intermediates", "weights", weights[:, None])  # one head
        return states, contexts

    def step(self, x, state, keys_values, mask):
        """The next state and the context of N hypotheses [B, N, D]."""
        state, context, _ = decoder_cell(self.params, self.project(x), state, keys_values, mask)
        return state, context


class RnnEncoder(nn.Module):
    """`num_layers` GRUs; with attention in both directions, each of half the width."""

    config: ModelConfig

    def setup(self):
        c = self.config
        both = c.kind == "rnn_attention"
        layer = partial(nn.remat(Gru) if c.remat else Gru, c, c.d_model // 2 if both else c.d_model)
        self.forward = [layer() for _ in range(c.num_layers)]
        self.backward = [layer(reverse=True) for _ in range(c.num_layers * both)]
        self.dropout = Dropout(c.dropout)

    def __call__(self, x, segments, row_ids=None) -> Float[Array, "B S D"]:
        x = self.dropout(x, row_ids)
        directions = (self.forward, self.backward) if self.backward else (self.forward,)
        for layers in zip(*directions, strict=True):
            states = [layer(x, segments) for layer in layers]
            x = self.dropout(jnp.concatenate(states, axis=-1), row_ids)
        return x


class RnnDecoder(nn.Module):
    """`decoder_layers` GRUs above their initial states; with attention an output layer."""

    config: ModelConfig

    def setup(self):
        c, zeros = self.config, nn.initializers.zeros
        self.attends = c.kind == "rnn_attention"
        attends = [self.attends and i == 0 for i in range(c.decoder_layers)]
        self.layers = [DecoderLayer(c, one) for one in attends]
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

    def hidden(self, state, context):
        """tanh([s; c] W + b) with attention, else s."""
        if not self.attends:
            return state
        weight = self.output.astype(self.config.weights_dtype)
        return jnp.tanh(matmul(jnp.concatenate([state, context], -1), weight, self.output_bias))

    def __call__(self, x, segments, context, keys_values, mask, row_ids=None):
        """The output for each target position; `context` [B, T, D] is that of its segment."""
        initial, contexts = self.initial_states(context), []
        x = self.dropout(x, row_ids)
        for i, layer in enumerate(self.layers):
            x, attended = layer(x, segments, initial[:, :, i], keys_values, mask)
            x = self.dropout(x, row_ids)
            contexts.append(attended)
        return self.hidden(x, contexts[0])

    def step(self, x, states, keys_values, mask):
        """The output for one token of N hypotheses [B, N, D], and the states of all layers."""
        results = []
        for layer, state in zip(self.layers, states, strict=True):
            results.append(layer.step(x, state, keys_values, mask))
            x = results[-1][0]
        return self.hidden(x, results[0][1]), tuple(state for state, _ in results)


class Rnn(EncoderDecoder):
    """`__call__` for teacher forcing; `encode`, `memory` and `step` for search."""

    def setup(self):
        super().setup()
        self.encoder = RnnEncoder(self.config)
        self.decoder = RnnDecoder(self.config)

    def encode(self, source, segments, positions=None, row_ids=None):
        """See EncoderDecoder. Positions are ignored: segments determine the states."""
        return self.encoder(self.source_embedding(source), segments, row_ids)

    def hidden(
        self, source, target, source_segments, target_segments,
        source_positions=None, target_positions=None, row_ids=None,
    ):  # fmt: skip
        """See EncoderDecoder."""
        states = self.encode(source, source_segments, row_ids=row_ids)
        return self.decode(states, source_segments, target, target_segments, row_ids)

    def decode(self, states, source_segments, target, target_segments, row_ids=None):
        """`hidden` above the encoder's states [B, S, D]."""
        both = self.config.kind == "rnn_attention"
        context = context_vectors(states, source_segments, target_segments, both)
        x, keys_values = self.target_embedding(target), self.decoder.keys_values(states)
        mask = segment_mask(target_segments, source_segments)[:, 0]
        return self.decoder(x, target_segments, context, keys_values, mask, row_ids)

    def memory(self, states: Float[Array, "B S D"], segments: Int[Array, "B S"]) -> RnnMemory:
        """What the steps of a search need of each sentence; `segments` are 1, and 0 for padding."""
        both, ones = self.config.kind == "rnn_attention", jnp.ones_like(segments[:, :1])
        context = context_vectors(states, segments, ones, both)
        initial = self.decoder.initial_states(context)[:, 0]
        return RnnMemory(initial, self.decoder.keys_values(states))

    def step(
        self,
        tokens: Int[Array, "B N"],
        states: tuple[Float[Array, "B N D"], ...],
        t: Int[Array, " B"],
        parents: Int[Array, "B N"],
        memory: RnnMemory,
        lengths: Int[Array, " B"],
    ) -> tuple[Float[Array, "B N V"], tuple[Float[Array, "B N D"], ...]]:
        """One token of N hypotheses of each sentence. Slot n continues slot parents[n]; at t = 0
        the states are the initial ones. `states` has one entry for each layer."""
        mask, starts = None, (t == 0)[:, None, None]
        if memory.keys_values is not None:
            source_length = memory.keys_values.keys.shape[1]
            mask = (jnp.arange(source_length) < lengths[:, None])[:, None]
        states = tuple(
            jnp.where(
                starts,
                memory.initial[:, layer, None],
                jnp.take_along_axis(state, parents[:, :, None], axis=1),
            )
            for layer, state in enumerate(states)
        )
        x = self.target_embedding(tokens)
        hidden, states = self.decoder.step(x, states, memory.keys_values, mask)
        return self.logits(hidden), states


def encode_rnn(
    model: Rnn, variables: Any, source: Int[Array, "B S"], segments: Int[Array, "B S"]
) -> RnnMemory:
    """The memory of each source."""
    states = model.apply(variables, source, segments, method="encode")
    memory: Any = model.apply(variables, states, segments, method="memory")
    return memory


def empty_rnn_memory(config: ModelConfig, sentences: int, length: int) -> RnnMemory:
    """Space for the memories of sentences of `length` source tokens."""
    zeros = partial(jnp.zeros, dtype=config.values_dtype)
    states = zeros((sentences, length, config.d_model))
    attended = AttendedStates(states, states) if config.kind == "rnn_attention" else None
    return RnnMemory(zeros((sentences, config.decoder_layers, config.d_model)), attended)


def empty_rnn_states(config: ModelConfig, lanes: int, steps: int, beams: int) -> tuple[Array, ...]:
    """Space for the states of every decoder layer, for any number of steps."""
    state = jnp.zeros((lanes, beams, config.d_model), config.values_dtype)
    return (state,) * config.decoder_layers


def rnn_step(model: Rnn, variables: Any) -> Step:
    """The RNN as the step of a search: its states are reordered by `parents`."""

    def step(tokens, state, t, parents, ancestry):
        logits, states = model.apply(
            variables, tokens, state.caches, t, parents, state.memory, state.lengths, method="step"
        )
        return logits, state._replace(caches=states)

    return step

"""The gated recurrent unit (Cho et al. 2014) over packed rows.

Axes: B batch · T time · D width of a state · I width of an input.
A packed row is one scan. Where a segment starts, the state is replaced by an initial state. So
packing costs no padding and pairs stay separate.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from .checks import checked
from .config import ModelConfig
from .matmul import cast_weights, matmul
from .parameters import parameter


class GruParams(NamedTuple):
    """The weights of reset gate, update gate and candidate, in this order."""

    input: Float[Array, "I 3 D"]
    recurrent: Float[Array, "D 3 D"]
    input_bias: Float[Array, "3 D"]
    recurrent_bias: Float[Array, " D"]  # of the candidate


def gru_cell(
    params: GruParams, projected: Float[Array, "... 3 D"], state: Float[Array, "... D"]
) -> Float[Array, "... D"]:
    """The next state (1 − z) n + z h of a GRU (Cho et al. 2014) for the state h.

    `projected` is x W + b for the reset gate r, the update gate z and the candidate n:
    r = σ(x W_r + b_r + h U_r), z = σ(x W_z + b_z + h U_z), n = tanh(x W_n + b_n + r (h U_n + c)).
    As in cuDNN, r multiplies after the product with U_n; in the paper before.
    """
    recurrent = matmul(state, params.recurrent)  # [..., 3, D]
    r, z = (jax.nn.sigmoid(projected[..., i, :] + recurrent[..., i, :]) for i in (0, 1))
    bias = params.recurrent_bias.astype(state.dtype)
    candidate = jnp.tanh(projected[..., 2, :] + r * (recurrent[..., 2, :] + bias))
    return candidate + z * (state - candidate)


@checked
def gru(
    params: GruParams,
    x: Float[Array, "B T I"],
    starts: Bool[Array, "B T"],
    initial: Float[Array, "B T D"] | None = None,
    reverse: bool = False,
) -> Float[Array, "B T D"]:
    """The state of a GRU after each input. At `starts` the state before the input is `initial`
    (None: 0). With `reverse` inputs are read from the last to the first."""
    if initial is None:
        initial = jnp.zeros((*x.shape[:2], len(params.recurrent)), x.dtype)  # [B, T, D]

    def advance(state: Array, projected: Array) -> tuple[Array, Array]:
        state = gru_cell(params, projected, state)
        return state, state

    projected = matmul(x, params.input, params.input_bias)  # [B, T, 3, D]
    states: Array = scan_segments(advance, projected, starts, initial, reverse)
    return states


def scan_segments(
    advance: Callable[[Array, Any], tuple[Array, Any]],
    inputs: Any,
    starts: Bool[Array, "B T"],
    initial: Float[Array, "B T ..."],
    reverse: bool = False,
) -> Any:
    """The outputs [B, T, …] of (state, output) = advance(state, input) along the axis T, where
    `initial` replaces the state before the inputs at `starts`, the first one included."""

    def advance_or_start(state: Array, step_inputs: tuple[Array, Array, Any]) -> tuple[Array, Any]:
        start, first, inputs = step_inputs  # [B], [B, …], begin with B
        start = jnp.expand_dims(start, tuple(range(1, state.ndim)))  # [B, 1, …]
        return advance(jnp.where(start, first, state), inputs)

    # Arrays begin with T, B.
    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (starts, initial, inputs))
    zero = jnp.zeros_like(by_time[1][0])  # [B, …]
    _, outputs = jax.lax.scan(advance_or_start, zero, by_time, reverse=reverse)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), outputs)


def segment_starts(segments: Int[Array, "B T"], reverse: bool = False) -> Bool[Array, "B T"]:
    """The first position of each segment; with `reverse` the last one."""
    changes = segments[:, 1:] != segments[:, :-1]  # [B, T − 1]
    outer_end = (0, 1) if reverse else (1, 0)
    return jnp.pad(changes, ((0, 0), outer_end), constant_values=True)


class Gru(nn.Module):
    """Owns GruParams and calls `gru`."""

    config: ModelConfig
    width: int
    reverse: bool = False

    def setup(self) -> None:
        c, zeros = self.config, nn.initializers.zeros
        params = GruParams(
            parameter(self, "input", gates_init, (c.d_model, 3, self.width)),
            parameter(self, "recurrent", orthogonal_gates, (self.width, 3, self.width)),
            parameter(self, "input_bias", zeros, (3, self.width)),
            parameter(self, "recurrent_bias", zeros, (self.width,)),
        )
        self.params = cast_weights(params, c.weights_dtype)

    def __call__(
        self, x: Float[Array, "B T I"], segments: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        starts = segment_starts(segments, self.reverse)
        return gru(self.params, x, starts, reverse=self.reverse)


gates_init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, 2, batch_axis=1)


def orthogonal_gates(key: Array, shape: tuple[int, ...]) -> Float[Array, "D 3 D"]:
    """An orthogonal matrix for each gate, as initial value."""
    width, gates, _ = shape
    draw = partial(nn.initializers.orthogonal(), shape=(width, width))
    return jnp.stack([draw(gate_key) for gate_key in jax.random.split(key, gates)], axis=1)

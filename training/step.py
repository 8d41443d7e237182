"""One training step, written for one device and an axis name.

Axes: M micro-batches · B rows of a device · S source · T target.
Each device returns sums and counts; `psum` adds them and one division by the global token count
follows. The update therefore does not depend on the number of devices or micro-batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from data.packing import Batch
from model.encoder_decoder import EncoderDecoder
from runtime.devices import replicated
from storage.config import TrainingConfig
from training.loss import LossSums, blockwise_cross_entropy
from training.parameters import init_params, merge_params, split_params

AXIS = "devices"


class TrainState(NamedTuple):
    """Everything that a step changes, and the PRNG key from which each step derives its own."""

    step: Int[Array, ""]
    params: Any
    optimizer: Any
    key: Array
    ema: Any = None  # the moving average of params, if training.ema_decay is set

    @property
    def eval_params(self) -> Any:
        """The parameters for evaluation and decoding: the moving average if there is one."""
        return self.params if self.ema is None else self.ema


def init_state(
    model: EncoderDecoder, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """A fresh state, replicated on all local devices; otherwise the step would compile twice."""

    def init():
        init_key, key = jax.random.split(jax.random.PRNGKey(config.seed))
        params = init_params(model, init_key)
        trained, _ = split_params(params, config.freeze)
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        return TrainState(jnp.array(0), params, optimizer.init(trained), key, ema)

    return jax.jit(init, out_shardings=replicated())()


def start_from(state: TrainState, params: Any) -> TrainState:
    """The state with other parameters, given as NumPy arrays."""

    def on_devices():  # a copy for each use: the state is donated, so its arrays are not shared
        return jax.device_put(params, replicated())

    return state._replace(params=on_devices(), ema=None if state.ema is None else on_devices())


def loss_sums(
    model: EncoderDecoder, params: Any, batch: Batch, config: TrainingConfig, key: Array | None
) -> LossSums:
    """The loss of one packed batch [B, …] as sums; `key` turns dropout on."""
    variables = {"params": params}
    hidden = model.apply(
        variables,
        batch.source,
        batch.target,
        batch.source_segments,
        batch.target_segments,
        batch.source_positions,
        batch.target_positions,
        batch.row_ids,
        rngs=None if key is None else {"dropout": key},
        method="hidden",
    )
    weights = batch.loss_weights
    if weights is None:
        weights = (batch.target_segments > 0).astype(jnp.float32)
    return blockwise_cross_entropy(
        hidden,
        lambda x: model.apply(variables, x, method="logits"),
        batch.labels,
        weights,
        config.label_smoothing,
        config.loss_block,
    )


def make_train_step(
    model: EncoderDecoder, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Float[Array, ""]]]]:
    """train_step(state, batch [M, B, …]) → (state, metrics), for pmap or shard_map over AXIS.

    Metrics: loss and nll per target token (nats), accuracy, tokens, gradient_norm (before
    clipping, of the trained parameters). With loss weights the first three are weighted means. If
    the loss or the gradient is not finite, only the step number changes. The optimizer receives the
    step number as the argument `step` if it takes extra arguments.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def train_step(state: TrainState, batch: Batch):
        key = jax.random.fold_in(state.key, state.step)
        trained, frozen = split_params(state.params, config.freeze)

        def loss(trained, micro):
            sums = loss_sums(model, merge_params(trained, frozen), micro, config, key)
            return sums.loss, sums

        def add_micro(total, micro):
            gradients, sums = jax.grad(loss, has_aux=True)(trained, micro)
            return jax.tree.map(jnp.add, total, (gradients, sums)), None

        zeros = jax.tree.map(jnp.zeros_like, trained), LossSums(*[jnp.zeros(())] * 4)
        total, _ = jax.lax.scan(add_micro, zeros, batch)
        summed, sums = jax.lax.psum(total, AXIS)
        count = jnp.maximum(sums.tokens, 1.0)  # avoids 0 / 0 for a batch of padding only
        metrics = {
            "loss": sums.loss / count,
            "nll": sums.nll / count,
            "accuracy": sums.correct / count,
            "tokens": sums.tokens,
            "gradient_norm": optax.global_norm(summed) / count,
        }

        def updated(summed):
            # Not g / count: XLA stores quotients, but computes products where they are used.
            gradients = jax.tree.map(lambda g: g * (1.0 / count), summed)
            updates, optimizer_state = optimizer.update(
                gradients, state.optimizer, trained, step=state.step
            )
            params = merge_params(optax.apply_updates(trained, updates), frozen)
            ema = moving_average(state.ema, params, state.step, config.ema_decay)
            return state._replace(params=params, optimizer=optimizer_state, ema=ema)

        is_finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
        # Not `where`, which would hold two copies of the state.
        state = jax.lax.cond(is_finite, updated, lambda _: state, summed)
        return state._replace(step=state.step + 1), metrics

    return train_step


def moving_average(ema: Any, params: Any, step: Array, decay: float) -> Any:
    """decay · ema + (1 − decay) · params, with a lower decay in early steps."""
    if ema is None:
        return None
    decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: old + (1.0 - decay) * (new - old), ema, params)


def pmap_train_step(train_step: Callable) -> Callable:
    """`train_step` over all devices: state replicated, batch sharded along its first axis."""
    return jax.pmap(train_step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)


def pmap_eval_step(
    model: EncoderDecoder, config: TrainingConfig
) -> Callable[[Any, Batch], LossSums]:
    """(params, batch [devices, B, …]) → LossSums over all devices, without dropout."""

    def eval_step(params, batch):
        return jax.lax.psum(loss_sums(model, params, batch, config, None), AXIS)

    return jax.pmap(eval_step, AXIS, in_axes=(None, 0), out_axes=None)


def split_rows(batch: Batch, *counts: int) -> Batch:
    """[rows, …] → [*counts, B, …], padded with empty rows if necessary.

    All segment ids of an empty row are 0, so it adds nothing to any sum.
    """
    parts = int(np.prod(counts))
    rows = -(-len(batch.row_ids) // parts) * parts

    def split(x):
        padding = [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1)
        return np.pad(x, padding).reshape(*counts, rows // parts, *x.shape[1:])

    return jax.tree.map(split, batch)

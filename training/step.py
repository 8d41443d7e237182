"""One training step, written for one device and an axis name: sums travel, one division at the end.

Axes: M micro-batches · B rows of a device · S source · T target.
One idea to know: each device returns sums and counts, `psum` adds them, and the global token count
divides once, so any number of devices and micro-batches gives the same update.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from data.batches import Batch
from model.transformer import Transformer
from runtime.devices import replicated
from storage.config import TrainingConfig
from training.loss import LossSums, blockwise_cross_entropy

AXIS = "devices"


class TrainState(NamedTuple):
    """All that a step changes, and the key that it derives its own from."""

    step: Int[Array, ""]
    params: Any
    optimizer: Any
    key: Array
    ema: Any = None  # the moving average of params, where training.ema_decay asks for it

    @property
    def judged(self) -> Any:
        """The parameters that are evaluated and used: the moving average where there is one."""
        return self.params if self.ema is None else self.ema


def init_state(
    model: Transformer, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """A fresh state, on all local devices at once (else the step would compile twice)."""

    def init():
        ids = jnp.ones((1, 2), jnp.int32)
        init_key, key = jax.random.split(jax.random.PRNGKey(config.seed))
        params = model.init(init_key, ids, ids, ids, ids)["params"]
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        return TrainState(jnp.array(0), params, optimizer.init(params), key, ema)

    return jax.jit(init, out_shardings=replicated())()


def start_from(state: TrainState, params: Any) -> TrainState:
    """The state with other parameters, given as NumPy arrays, in place of its fresh ones."""
    place = lambda: jax.device_put(params, replicated())  # noqa: E731 – donated, so never shared
    return state._replace(params=place(), ema=None if state.ema is None else place())


def loss_sums(
    model: Transformer, params: Any, batch: Batch, config: TrainingConfig, key: Array | None
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
        batch.rows,
        rngs=None if key is None else {"dropout": key},
        method="hidden",
    )
    return blockwise_cross_entropy(
        hidden,
        lambda x: model.apply(variables, x, method="logits"),
        batch.labels,
        (batch.target_segments > 0).astype(jnp.float32),
        config.label_smoothing,
        config.loss_block,
    )


def make_train_step(
    model: Transformer, optimizer: optax.GradientTransformationExtraArgs, config: TrainingConfig
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Float[Array, ""]]]]:
    """train_step(state, batch [M, B, …]) → (state, metrics), for pmap or shard_map over AXIS.

    Metrics: loss and nll a target token (nats), accuracy, tokens, gradient_norm (before clipping).
    Where the loss or the gradient is not finite, only the step number changes; the learning rate
    follows the step number.
    """

    def train_step(state: TrainState, batch: Batch):
        key = jax.random.fold_in(state.key, state.step)

        def loss(params, micro):
            sums = loss_sums(model, params, micro, config, key)
            return sums.loss, sums

        def add_micro(total, micro):
            gradients, sums = jax.grad(loss, has_aux=True)(state.params, micro)
            return jax.tree.map(jnp.add, total, (gradients, sums)), None

        zeros = jax.tree.map(jnp.zeros_like, state.params), LossSums(*[jnp.zeros(())] * 4)
        total, _ = jax.lax.scan(add_micro, zeros, batch)
        gradients, sums = jax.lax.psum(total, AXIS)
        count = jnp.maximum(sums.tokens, 1.0)  # a batch of padding alone changes nothing
        gradients = jax.tree.map(lambda g: g / count, gradients)
        metrics = {
            "loss": sums.loss / count,
            "nll": sums.nll / count,
            "accuracy": sums.correct / count,
            "tokens": sums.tokens,
            "gradient_norm": optax.global_norm(gradients),
        }

        def updated(gradients):
            updates, optimizer_state = optimizer.update(
                gradients, state.optimizer, state.params, step=state.step
            )
            params = optax.apply_updates(state.params, updates)
            ema = moving_average(state.ema, params, state.step, config.ema_decay)
            return state._replace(params=params, optimizer=optimizer_state, ema=ema)

        good = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
        # Not `where`: that would hold the state twice.
        state = jax.lax.cond(good, updated, lambda _: state, gradients)
        return state._replace(step=state.step + 1), metrics

    return train_step


def moving_average(ema: Any, params: Any, step: Array, decay: float) -> Any:
    """decay · ema + (1 − decay) · params; early steps weigh more, else the start would linger."""
    if ema is None:
        return None
    decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: old + (1.0 - decay) * (new - old), ema, params)


def pmap_train_step(train_step: Callable) -> Callable:
    """`train_step` over all devices: the state whole on each, the batch's first axis spread."""
    return jax.pmap(train_step, AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)


def pmap_eval_step(model: Transformer, config: TrainingConfig) -> Callable[[Any, Batch], LossSums]:
    """(params, batch [devices, B, …]) → LossSums over all devices, without dropout."""

    def eval_step(params, batch):
        return jax.lax.psum(loss_sums(model, params, batch, config, None), AXIS)

    return jax.pmap(eval_step, AXIS, in_axes=(None, 0), out_axes=None)


def split_rows(batch: Batch, *counts: int) -> Batch:
    """[rows, …] → [*counts, B, …], filled up with empty rows where they do not divide.

    An empty row is segment 0 throughout: it adds nothing to any sum.
    """
    parts = int(np.prod(counts))
    rows = -(-len(batch.rows) // parts) * parts

    def split(x):
        padding = [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1)
        return np.pad(x, padding).reshape(*counts, rows // parts, *x.shape[1:])

    return Batch(*map(split, batch))

"""One training step, written for one device and an axis name; parallel.py runs it on all devices.

Axes: M micro-batches · B rows of a device · S source · T target.

1. Each device adds up its micro-batches: gradients of the summed loss, loss sums and token counts.
2. `psum` adds these over all devices.
3. One division by the global token count gives the mean. The update therefore does not depend on
   the number of devices or micro-batches.
4. The optimizer updates the parameters. If the loss or the gradient is not finite, the step is
   skipped: only the number of steps changes. Too many in a row end a training
   (seq2seq/training/nonfinite_report.py).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.model.encoder_decoder import EncoderDecoder, PairPositions
from seq2seq.model.mesh import local_mesh, replicated, shardings, sum_over_copies
from seq2seq.model.platforms import by_platform
from seq2seq.training.gradient_norm import global_norm
from seq2seq.training.loss import LossSums, WeightedLabels, blockwise_cross_entropy, zero_sums
from seq2seq.training.parameters import init_params, merge_params, split_params


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


Metrics = dict[str, Float[Array, ""]]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def init_state(
    model: EncoderDecoder,
    optimizer: optax.GradientTransformation,
    config: TrainingConfig,
    params: Any = None,
) -> TrainState:
    """A fresh state on every copy of the model of this process; otherwise the step would compile
    twice. Its parameters are random without `params`, arrays of NumPy or JAX. Those of JAX become
    the state's: they cannot be used any more."""
    init, placed = init_function(model, optimizer, config), replicated()
    if config.model_parallel > 1:
        placed = shardings(jax.eval_shape(init, None), local_mesh(config.model_parallel))
    return jax.jit(init, out_shardings=placed, donate_argnums=0)(params)


def state_shapes(
    model: EncoderDecoder, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainState:
    """The shapes of `init_state`; uses no device."""
    return jax.eval_shape(init_function(model, optimizer, config), None)


@cache  # JAX traces a function once: a training asks for the shapes of its state, then for a state
def init_function(
    model: EncoderDecoder, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> Callable[[Any], TrainState]:
    """The function of `init_state`."""

    def init(params: Any) -> TrainState:
        init_key, key = jax.random.split(jax.random.PRNGKey(config.seed))
        if params is None:
            params = init_params(model, init_key)
        trained, _ = split_params(params, config.freeze)
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        return TrainState(jnp.int32(0), params, optimizer.init(trained), key, ema)

    return init


def loss_sums(
    model: EncoderDecoder, params: Any, batch: Batch, config: TrainingConfig, key: Array | None
) -> LossSums:
    """The loss of one packed batch [B, …] as sums; `key` turns dropout on, and R-Drop if the config
    has it: then these are the means of the sums of two passes with different dropout."""
    r_drop = 0.0 if key is None else config.r_drop
    if r_drop:
        # Negative ids, of no other row, give the second half dropout of its own.
        ids = jnp.concatenate([batch.row_ids, -1 - batch.row_ids])  # [2B]
        batch = jax.tree.map(lambda x: jnp.concatenate([x, x]), batch)._replace(row_ids=ids)
    variables = {"params": params}
    hidden: Any = model.apply(  # [B, T, D]
        variables,
        batch.source,
        batch.decoder_input,
        batch.source_segments,
        batch.target_segments,
        PairPositions(*map(jnp.asarray, (batch.source_positions, batch.target_positions))),
        batch.row_ids,
        rngs=None if key is None else {"dropout": key},
        method="hidden",
    )

    # In an evaluation float32: rounded to bfloat16, different logits would be equal.
    dtype = "float32" if key is None else model.config.values_dtype

    def to_logits(x: Array) -> Any:  # [B, t, D] → [B, t, V], for t of the T positions
        return model.apply(variables, x, dtype, method="to_logits")

    weights = batch.loss_weights  # [B, T]
    if weights is None:
        weights = (batch.target_segments > 0).astype(jnp.float32)  # [B, T]
    labeled = WeightedLabels(jnp.asarray(batch.labels), jnp.asarray(weights))
    sums = blockwise_cross_entropy(
        hidden, to_logits, labeled, config.label_smoothing, config.loss_block, r_drop
    )
    return jax.tree.map(lambda x: x / 2, sums) if r_drop else sums


def make_train_step(
    model: EncoderDecoder, optimizer: optax.GradientTransformation, config: TrainingConfig
) -> TrainStep:
    """train_step(state, batch [M, B, …]) → (state, metrics), for pmap or shard_map over AXIS.

    Metrics: loss and nll per target token (nats), accuracy, tokens, gradient_norm (before
    clipping, of the trained parameters). With loss weights the first three are weighted means. The
    optimizer receives the step number as the argument `step` if it takes extra arguments.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(state.key, state.step)
        trained, frozen = split_params(state.params, config.freeze)

        def loss(trained: Any, micro: Batch) -> tuple[Array, LossSums]:
            sums = loss_sums(model, merge_params(trained, frozen), micro, config, key)
            return sums.loss, sums

        def add_micro(total: Any, micro: Batch) -> tuple[Any, None]:
            gradients, sums = jax.grad(loss, has_aux=True)(trained, micro)
            return jax.tree.map(jnp.add, total, (gradients, sums)), None

        zeros = jax.tree.map(jnp.zeros_like, trained), zero_sums()
        total, _ = jax.lax.scan(add_micro, zeros, batch)
        gradients, sums = sum_over_copies(total)  # sums over all tokens of the global batch
        count = jnp.maximum(sums.tokens, 1.0)  # avoids 0 / 0 for a batch of padding only

        def mean(gradients: Any) -> Any:
            # Not g / count: XLA materialises a division but fuses a multiplication.
            return jax.tree.map(lambda g: g * (1.0 / count), gradients)

        # The norm of the means, which is also that of the clipping: it is computed once.
        metrics = means(sums, count) | {"gradient_norm": global_norm(mean(gradients))}

        def updated(gradients: Any) -> TrainState:
            updates, optimizer_state = optimizer.update(
                mean(gradients), state.optimizer, trained, step=state.step
            )
            params = merge_params(optax.apply_updates(trained, updates), frozen)
            ema = moving_average(state.ema, params, state.step, config.ema_decay)
            return state._replace(params=params, optimizer=optimizer_state, ema=ema)

        is_finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])

        def updated_if_finite(in_branch: bool) -> TrainState:
            if in_branch:
                return jax.lax.cond(is_finite, updated, lambda _: state, gradients)
            return jax.tree.map(
                lambda new, old: jnp.where(is_finite, new, old), updated(gradients), state
            )

        state = by_platform(lambda choices: choices.update_in_branch, updated_if_finite)
        return state._replace(step=state.step + 1), metrics

    return train_step


def means(sums: LossSums, count: Array) -> Metrics:
    """The metrics of these sums over `count` tokens."""
    return {
        "loss": sums.loss / count,
        "nll": sums.nll / count,
        "accuracy": sums.correct / count,
        "tokens": sums.tokens,
    }


def moving_average(ema: Any, params: Any, step: Array, decay: float) -> Any:
    """decay · ema + (1 − decay) · params, with a lower decay in early steps."""
    if ema is None:
        return None
    limited = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: old + (1.0 - limited) * (new - old), ema, params)

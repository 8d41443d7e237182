"""The learning-rate schedules (equation 3 and others) and the optimizers.

A skipped step (step.py) counts in the schedule: the step number determines the learning rate. It
does not count in the optimizer, whose state it leaves unchanged: Adam's bias correction and the
decay of Adafactor's moments count the applied updates.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from seq2seq.config.tree import TrainingConfig
from seq2seq.training.gradient_norm import global_norm
from seq2seq.training.muon import muon_scaling
from seq2seq.training.parameters import is_decayed

# Matrices whose second largest axis is shorter have full second moments. optax's default, 128,
# would exclude the attention, whose weights are [d_model, heads, 64] in the paper's models.
SMALLEST_FACTORED = 32


def learning_rate_schedule(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """The function step (from 0) → learning rate.

    "paper": learning_rate · d_model^−0.5 · min(n^−0.5, n · warmup_steps^−1.5) for update
    n = step + 1 (equation 3).
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "paper":

        def equation_3(step: ArrayLike) -> Array:
            n = jnp.asarray(step, jnp.float32) + 1.0
            return peak * d_model**-0.5 * jnp.minimum(n**-0.5, n * warmup**-1.5)

        return equation_3

    def warmup_and_decay(step: ArrayLike) -> Array:
        n = jnp.asarray(step, jnp.float32) + 1.0
        left = jnp.clip((config.num_steps - n) / max(1, config.num_steps - warmup), 0.0, 1.0)
        after: dict[str, ArrayLike] = {
            "inverse_sqrt": jnp.sqrt(warmup / n),
            "cosine": 0.5 - 0.5 * jnp.cos(jnp.pi * left),
            "linear": left,
            "constant": 1.0,
        }
        return peak * jnp.where(n <= warmup, n / warmup, after[config.schedule])

    return warmup_and_decay


def make_optimizer(
    config: TrainingConfig, d_model: int, dtype: str = "float32"
) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, then Adam(β1, β2, ε) (section 5.3), Adafactor or Muon, with
    decoupled weight decay. `dtype` is that of the operands of Muon's products.

    `update` takes the step number (from 0) as the keyword argument `step`, which determines the
    learning rate.
    """
    clip = [clip_by_norm(config.clip_norm)] if config.clip_norm else []
    decay = [decay_weights(config.weight_decay)] if config.weight_decay else []
    # Nested as in optax.adam and optax.adamw: stored checkpoints have this structure.
    return optax.chain(
        *clip,
        optax.chain(
            *SCALINGS[config.optimizer](config, dtype),
            *decay,
            scale_by_learning_rate(learning_rate_schedule(config, d_model)),
        ),
    )


def clip_by_norm(limit: float) -> optax.GradientTransformation:
    """optax.clip_by_global_norm with one factor for all gradients.

    optax divides every gradient by the norm. XLA materialises a division but fuses a
    multiplication.
    """

    def clip(gradients: Any, params: Any) -> Any:
        factor = jnp.minimum(1.0, limit / global_norm(gradients))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients)

    return optax.stateless(clip)


def adam_scaling(config: TrainingConfig, _: str) -> list[optax.GradientTransformation]:
    """The update of Adam without learning rate and decay."""
    return [optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_epsilon)]


def adafactor_scaling(config: TrainingConfig, _: str) -> list[optax.GradientTransformation]:
    """The update of Adafactor (Shazeer and Stern 2018, algorithms 4 and 5) without learning rate
    and decay: factored second moments, clipped updates, and steps relative to the parameter.
    """
    return [
        optax.scale_by_factored_rms(min_dim_size_to_factor=SMALLEST_FACTORED),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    ]


SCALINGS = {"adam": adam_scaling, "adafactor": adafactor_scaling, "muon": muon_scaling}


def scale_by_learning_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply by −schedule(step).

    No code reads the state, the number of steps. It stays because Orbax restores only a tree with
    the stored arrays; it can be removed with the next format version.
    """

    def init(params: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def update(
        updates: Any, state: Any, params: Any = None, *, step: Array | int
    ) -> tuple[Any, optax.ScaleByScheduleState]:
        rate = -jnp.asarray(schedule(step))
        updates = jax.tree.map(lambda u: rate.astype(u.dtype) * u, updates)
        return updates, optax.ScaleByScheduleState(count=jnp.asarray(step + 1, jnp.int32))

    return optax.GradientTransformationExtraArgs(init, update)


def decay_weights(rate: float) -> optax.GradientTransformation:
    """Add rate · parameter to the update of each parameter with `is_decayed`."""

    def update(updates: Any, params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, u, p: u + rate * p if is_decayed(path[-1].key) else u, updates, params
        )

    return optax.stateless(update)

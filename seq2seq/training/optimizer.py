"""The learning-rate schedules (equation 3 and others) and the optimizers.

A skipped step (step.py) counts in the schedule: the step number determines the learning rate. It
does not count in the optimizer, whose state it leaves unchanged: Adam's bias correction and the
decay of Adafactor's moments count the applied updates.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike
from optax.contrib import MuonDimensionNumbers, muon

from seq2seq.storage.config import TrainingConfig

# Matrices whose second largest axis is shorter have full second moments. optax's default, 128,
# would exclude the attention, whose weights are [d_model, heads, 64] in the paper's models.
SMALLEST_FACTORED = 32

# Of the polynomial 3.4445 x − 4.775 x³ + 2.0315 x⁵, which brings singular values close to 1 in five
# iterations (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


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


def make_optimizer(config: TrainingConfig, d_model: int) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, then Adam(β1, β2, ε) (section 5.3), Adafactor or Muon, with
    decoupled weight decay.

    `update` takes the step number (from 0) as the keyword argument `step`, which determines the
    learning rate.
    """
    clip = [clip_by_norm(config.clip_norm)] if config.clip_norm else []
    decay = [decay_weights(config.weight_decay)] if config.weight_decay else []
    # Nested as in optax.adam and optax.adamw: stored checkpoints have this structure.
    return optax.chain(
        *clip,
        optax.chain(
            *SCALINGS[config.optimizer](config),
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
        factor = jnp.minimum(1.0, limit / optax.global_norm(gradients))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients)

    return optax.stateless(clip)


def adam_scaling(config: TrainingConfig) -> list[optax.GradientTransformation]:
    """The update of Adam without learning rate and decay."""
    return [optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_epsilon)]


def adafactor_scaling(config: TrainingConfig) -> list[optax.GradientTransformation]:
    """The update of Adafactor (Shazeer and Stern 2018, algorithms 4 and 5) without learning rate
    and decay: factored second moments, clipped updates, and steps relative to the parameter.
    """
    return [
        optax.scale_by_factored_rms(min_dim_size_to_factor=SMALLEST_FACTORED),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    ]


def muon_scaling(config: TrainingConfig) -> list[optax.GradientTransformation]:
    """The update of Muon (Jordan et al. 2024) without learning rate and decay: the momentum of
    each weight matrix made nearly orthogonal by five Newton-Schulz iterations, and Adam for all
    other parameters, with Nesterov momentum.

    Updates of matrices are scaled to Adam's usual root mean square, 0.2 (Liu et al. 2025, section
    2.2), so learning rates for Adam apply.
    """
    return [
        muon(
            learning_rate=-1.0,  # optax multiplies by −learning_rate, as the caller does later
            ns_coeffs=(NEWTON_SCHULZ,) * 5,
            muon_weight_dimension_numbers=partial(jax.tree_util.tree_map_with_path, matrix_axes),
            consistent_rms=0.2,
            adam_b1=config.adam_b1,
            adam_b2=config.adam_b2,
        )
    ]


def matrix_axes(path: tuple[Any, ...], parameter: Array) -> MuonDimensionNumbers | None:
    """The input and output axes of the weight matrix at this path; None for any other parameter.

    Tables of embeddings and positions are no matrices in this sense: their rows are used one at a
    time. The weights of all heads of an attention are one matrix, those of each gate of a GRU too.
    """
    name, rank = path[-1].key, parameter.ndim
    if rank < 2 or name == "table" or not is_decayed(path):
        return None
    if rank == 2:
        return MuonDimensionNumbers(0, 1)
    if name == "output":  # [heads, d_k, d_model]
        return MuonDimensionNumbers((0, 1), 2)
    if name in ("query", "key", "value"):  # [d_model, heads, d_k]
        return MuonDimensionNumbers(0, (1, 2))
    return MuonDimensionNumbers(0, 2)  # [width, gates, width]


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
            lambda path, u, p: u + rate * p if is_decayed(path) else u, updates, params
        )

    return optax.stateless(update)


def is_decayed(path: tuple[Any, ...]) -> bool:
    """Whether weight decay applies to the parameter at this path.

    By convention it applies to weight matrices and embeddings, not to biases and not to the scales
    of layer norms. The name decides, not the rank: attention biases have rank 2.
    """
    name = path[-1].key
    return name != "scale" and name != "bias" and not name.endswith("_bias")

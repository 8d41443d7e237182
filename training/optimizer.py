"""The learning-rate schedule (equation 3, and shorter ones) and Adam with clipping."""

import jax.numpy as jnp
import optax

from training.config import TrainingConfig


def learning_rate_schedule(config: TrainingConfig, d_model: int) -> optax.Schedule:
    """step (from 0) → learning rate.

    "paper": learning_rate · d_model^−0.5 · min(n^−0.5, n · warmup_steps^−1.5) for update
    n = step + 1 (equation 3).
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "paper":
        def equation_3(step):
            n = jnp.asarray(step, jnp.float32) + 1.0
            return peak * d_model**-0.5 * jnp.minimum(n**-0.5, n * warmup**-1.5)

        return equation_3

    def warmed(step):
        n = jnp.asarray(step, jnp.float32) + 1.0
        left = jnp.clip((config.num_steps - n) / max(1, config.num_steps - warmup), 0.0, 1.0)
        after = {"cosine": 0.5 - 0.5 * jnp.cos(jnp.pi * left), "linear": left, "constant": 1.0}
        return peak * jnp.where(n <= warmup, n / warmup, after[config.schedule])

    return warmed


def make_optimizer(config: TrainingConfig, d_model: int) -> optax.GradientTransformation:
    """Clipping by global norm, then Adam(β1, β2, ε) (section 5.3), decoupled decay if asked for."""
    schedule = learning_rate_schedule(config, d_model)
    adam = optax.adamw(
        schedule, config.adam_b1, config.adam_b2, config.adam_epsilon,
        weight_decay=config.weight_decay,
    ) if config.weight_decay else optax.adam(
        schedule, config.adam_b1, config.adam_b2, config.adam_epsilon
    )
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(*clip, adam)

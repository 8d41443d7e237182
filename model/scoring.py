"""Teacher forcing over pairs that are given: log-probabilities of the target, and who attends whom.

Axes: B sentences · S source · T target · H heads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from model.transformer import Transformer


class Forced(NamedTuple):
    """What the models make of given targets; 0 beyond a target's length."""

    log_probs: Float[Array, "B T"]  # natural, of each token given those before it
    attention: Float[Array, "B T S"]  # of each token as it is predicted, to the source


def force(
    models: Sequence[tuple[Transformer, Any]],
    source: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    target: Int[Array, "B T"],
    target_lengths: Int[Array, " B"],
    absent: tuple[int, ...] = (),
) -> Forced:
    """Both sides with their end tokens, which the lengths count.

    Several models are an ensemble: the mean of their probabilities. What they give to `absent`
    tokens is shared among the others, and these have −inf themselves. Attention is the mean over
    the heads of the layer before the last (Garg et al. 2019, section 4.1) and over the models.
    """
    log_probs, attention, lost = [], [], 0.0
    start = jnp.full((len(target), 1), models[0][0].config.start_id, target.dtype)
    inputs = jnp.concatenate([start, target[:, :-1]], axis=1)
    source_segments, target_segments = (
        (jnp.arange(x.shape[1]) < n[:, None]).astype(jnp.int32)
        for x, n in ((source, lengths), (target, target_lengths))
    )
    for model, variables in models:
        logits, sown = model.apply(
            variables, source, inputs, source_segments, target_segments, mutable="intermediates"
        )
        of_all = jax.nn.log_softmax(logits, axis=-1)
        log_probs.append(jnp.take_along_axis(of_all, target[..., None], axis=-1)[..., 0])
        lost += jnp.exp(of_all[..., jnp.array(absent, int)]).sum(axis=-1) / len(models)
        layer = f"layers_{max(0, model.config.decoder_layers - 2)}"
        weights = sown["intermediates"]["decoder"][layer]["cross_attention"]["weights"][0]
        attention.append(weights.mean(axis=1))
    mean = jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - jnp.log(len(models))
    mean = (mean if len(models) > 1 else log_probs[0]) - jnp.log1p(-lost)
    mean = jnp.where(jnp.isin(target, jnp.array(absent, int)), -jnp.inf, mean)
    return Forced(jnp.where(target_segments > 0, mean, 0.0), sum(attention) / len(models))

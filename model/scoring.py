"""Teacher forcing of given pairs: log-probabilities of the target, and cross-attention.

Axes: B sentences · S source · T target · H heads · M models.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .checks import check_array, check_shape
from .constraints import Rules
from .transformer import Transformer
from .translate import mixture_logits


class TargetScores(NamedTuple):
    """Scores of given targets; 0 beyond the length of a target."""

    log_probs: Float[Array, "B T"]  # natural logarithm, of each token given the tokens before it
    attention: Float[Array, "B T S"]  # cross-attention weights when each token is predicted


def score_targets(
    models: Sequence[tuple[Transformer, Any]],
    source: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    target: Int[Array, "B T"],
    target_lengths: Int[Array, " B"],
    rules: Rules | None = None,
    weights: Float[Array, " M"] | None = None,
) -> TargetScores:
    """Score each target by teacher forcing. Source, target and lengths include the end tokens.

    Several models form an ensemble: the mean of their probabilities, with `weights` as in
    `mixture_logits`. `rules` are the rules of a search that change scores: suppressed tokens
    (−inf), renormalisation, repetition penalty. The attention is the mean over the heads of the
    second to last layer (Garg et al. 2019, section 4.1) and, with the same weights, over the
    models.
    """
    check_pairs(source, lengths, target, target_lengths)
    logits, attention = [], []
    start = jnp.full((len(target), 1), models[0][0].config.start_id, target.dtype)
    inputs = jnp.concatenate([start, target[:, :-1]], axis=1)
    source_segments, target_segments = (
        (jnp.arange(x.shape[1]) < n[:, None]).astype(jnp.int32)
        for x, n in ((source, lengths), (target, target_lengths))
    )
    for model, variables in models:
        model_logits, sown = model.apply(
            variables, source, inputs, source_segments, target_segments, mutable="intermediates"
        )
        logits.append(model_logits)
        layer = f"layers_{max(0, model.config.decoder_layers - 2)}"
        attention.append(cross_attention_weights(sown, layer).mean(axis=1))
    log_probs = target_log_probs(mixture_logits(logits, weights), target, rules)
    if weights is None:
        mean_attention = sum(attention) / len(models)
    else:
        mean_attention = jnp.tensordot(weights, jnp.stack(attention), axes=1)
    return TargetScores(jnp.where(target_segments > 0, log_probs, 0.0), mean_attention)


def cross_attention_weights(sown: Any, layer: str) -> Float[Array, "B H T S"]:
    """The weights of decoder layer `layer` in the collections that `apply` returned with
    mutable="intermediates"."""
    return sown["intermediates"]["decoder"][layer]["cross_attention"]["weights"][0]


def target_log_probs(
    logits: Float[Array, "B T V"], target: Int[Array, "B T"], rules: Rules | None
) -> Float[Array, "B T"]:
    """The log-probability of each target token, as a search with these rules computes it."""
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    if rules is not None:  # position i is a hypothesis of the tokens before i
        before = jnp.tril(jnp.ones((target.shape[1],) * 2, bool), -1)
        history = jnp.where(before, target[:, None], -1)
        logits, normalizer, allowed = rules(logits, normalizer, history, None, None)
        logits = jnp.where(allowed, logits, -jnp.inf)
    chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.isneginf(chosen), -jnp.inf, chosen - normalizer)


def check_pairs(source: Array, lengths: Array, target: Array, target_lengths: Array) -> None:
    """Raises TypeError or ValueError that names an argument of `score_targets`."""
    check_array("source", source, "integer", "B S")
    check_array("target", target, "integer", "B T")
    for name, x in (("lengths", lengths), ("target_lengths", target_lengths)):
        check_array(name, x, "integer", "B")
        check_shape(name, x, source.shape[:1], "one for each source")
    check_shape("target", target, (len(source), target.shape[1]), "one for each source")

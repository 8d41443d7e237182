"""Teacher forcing of given pairs: log-probabilities of the target, and attention weights.

Axes: B sentences · S source · T target · H heads · V vocabulary · M models.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import check_array, check_shape, checked_rules
from ..encoder_decoder import EncoderDecoder
from ..matmul import FULL
from ..target_shift import shift_right
from .arguments import Rules, SearchOptions
from .rules import make_rules
from .translate import mixture_logits


class GivenPairs(NamedTuple):
    """Sources and their given targets; both include the end tokens."""

    source: Int[Array, "B S"]
    lengths: Int[Array, " B"]
    target: Int[Array, "B T"]
    target_lengths: Int[Array, " B"]


class TargetScores(NamedTuple):
    """Scores of given targets; 0 beyond the length of a target."""

    log_probs: Float[Array, "B T"]  # natural logarithm, of each token given the tokens before it
    # Cross-attention weights when each token is predicted; None if a model has no cross-attention.
    attention: Float[Array, "B T S"] | None


class AttentionWeights(NamedTuple):
    """The attention weights of each layer. The weights of a query are 0 for keys that it may not
    attend to, and all 0 for a query beyond the length of its sequence. An RNN has weights of its
    cross-attention only, of one head in one layer, or none."""

    encoder: tuple[Float[Array, "B H S S"], ...]
    decoder: tuple[Float[Array, "B H T T"], ...]  # self-attention; keys: the start token, then T−1
    cross: tuple[Float[Array, "B H T S"], ...]


def teacher_forcing(
    model: EncoderDecoder, variables: Any, pairs: GivenPairs
) -> tuple[Float[Array, "B T V"], AttentionWeights]:
    """The logits and the attention weights of a model when each target token is predicted. Under
    jit, unused weights cost nothing."""
    source, lengths, target, target_lengths = pairs
    is_first = jnp.arange(target.shape[1]) == 0
    inputs = shift_right(target, is_first, model.config.start_id)  # [B, T]
    source_segments = segments_of(lengths, source.shape[1])
    target_segments = segments_of(target_lengths, target.shape[1])
    logits, sown = model.apply(
        variables, source, inputs, source_segments, target_segments, mutable="intermediates"
    )
    stacks, config = sown.get("intermediates", {}), model.config
    return logits, AttentionWeights(
        layer_weights(stacks.get("encoder", {}), config.num_layers, "self_attention"),
        layer_weights(stacks.get("decoder", {}), config.decoder_layers, "self_attention"),
        layer_weights(stacks.get("decoder", {}), config.decoder_layers, "cross_attention"),
    )


def segments_of(lengths: Int[Array, " B"], size: int) -> Int[Array, "B L"]:
    """1 in the first `lengths` positions of a row, then 0."""
    return (jnp.arange(size) < lengths[:, None]).astype(jnp.int32)


def layer_weights(stack: Any, layers: int, name: str) -> tuple[Array, ...]:
    """The weights that the attention `name` of each layer of a stack has sown, if it has one."""
    sown = (stack.get(f"layers_{layer}", {}).get(name) for layer in range(layers))
    return tuple(layer["weights"][0] for layer in sown if layer)


def score_targets(
    models: Sequence[tuple[EncoderDecoder, Any]],
    pairs: GivenPairs,
    options: SearchOptions | None = None,
    free: Bool[Array, "B T"] | None = None,
) -> TargetScores:
    """Score each target by teacher forcing.

    Several models form an ensemble: the mean of their probabilities. Of `options` the weights apply
    and the rules that change scores: suppressed tokens (−inf, also for one that a prefix forced
    there), renormalisation, repetition penalty, a caller's own. `free` are the tokens that a search
    forces at no cost: their log-probability is 0. The attention is the mean over the heads of the
    second to last layer (Garg et al. 2019, section 4.1) and, with the same weights, over the
    models.
    """
    check_pairs(pairs)
    weights, rules = (options.weights, make_rules(options)) if options else (None, None)
    target = pairs.target
    logits: list[Array] = []  # M × [B, T, V]
    attention: list[Array] = []  # M × [B, T, S]
    for model, variables in models:
        model_logits, attended = teacher_forcing(model, variables, pairs)
        logits.append(model_logits)
        if attended.cross:
            attention.append(attended.cross[max(0, len(attended.cross) - 2)].mean(axis=1))
    log_probs = target_log_probs(mixture_logits(logits, weights), target, rules)  # [B, T]
    all_attend = len(attention) == len(models)
    mean_attention = mean_over_models(attention, weights) if all_attend else None  # [B, T, S]
    inside = jnp.arange(target.shape[1]) < pairs.target_lengths[:, None]  # [B, T]
    if free is not None:
        inside &= ~free
    return TargetScores(jnp.where(inside, log_probs, 0.0), mean_attention)


def mean_over_models(
    attention: Sequence[Float[Array, "B T S"]], weights: Float[Array, " M"] | None
) -> Float[Array, "B T S"]:
    """The mean of the models' attention with `weights`, which sum to one; None: equal weights."""
    if weights is None:
        return reduce(jnp.add, attention) / len(attention)
    return jnp.tensordot(weights, jnp.stack(attention), 1, precision=FULL)


def attended_tokens(
    attention: Float[Array, "B T S"], lengths: Int[Array, " B"]
) -> Int[Array, "B T"]:
    """The source token of the largest weight of each target token. The source's end token, which
    `lengths` include, and the padding are excluded; 0 for a source without other tokens."""
    inside = jnp.arange(attention.shape[2]) < lengths[:, None] - 1  # [B, S]
    return jnp.where(inside[:, None], attention, -1.0).argmax(axis=2)


def target_log_probs(
    logits: Float[Array, "B T V"], target: Int[Array, "B T"], rules: Rules | None
) -> Float[Array, "B T"]:
    """The log-probability of each target token, as a search with these rules computes it."""
    normalizer = jax.nn.logsumexp(logits, axis=-1)  # [B, T]
    if rules is not None:  # position i is a hypothesis of the tokens before i: N = T
        length = target.shape[1]
        before = jnp.tril(jnp.ones((length, length), bool), -1)  # [T, T]
        history = jnp.where(before, target[:, None], -1)  # [B, T, T]
        logits, normalizer, allowed = checked_rules(rules)(logits, normalizer, history, None, None)
        logits = jnp.where(allowed, logits, -jnp.inf)  # [B, T, V]
    chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]  # [B, T]
    return jnp.where(jnp.isneginf(chosen), -jnp.inf, chosen - normalizer)


def check_pairs(pairs: GivenPairs) -> None:
    """Raises TypeError or ValueError that names an array of `pairs`."""
    source, _, target, _ = pairs
    check_array("source", source, "integer", "B S")
    check_array("target", target, "integer", "B T")
    for name in ("lengths", "target_lengths"):
        check_array(name, getattr(pairs, name), "integer", "B")
        check_shape(name, getattr(pairs, name), source.shape[:1], "one for each source")
    check_shape("target", target, (len(source), target.shape[1]), "one for each source")

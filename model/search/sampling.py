"""Sampling: hypotheses drawn at random, over the same step functions as the beam search.

Axes: B sentences · N samples · V vocabulary · T steps.
The samples of a sentence depend on its key only, not on its neighbours or its place in the batch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import check_sentences, check_shape, checked_step
from . import candidates
from .arguments import Rules, SearchOptions, Targets
from .beam_search import Step
from .hypotheses import Hypotheses
from .rules import make_rules


class SamplingState(NamedTuple):
    """The carry of the sampling loop."""

    t: Int[Array, ""]
    tokens: Int[Array, "T B N"]
    log_probs: Float[Array, "B N"]
    lengths: Int[Array, "B N"]  # 0 until a sample has ended
    step_state: Any


class Choice(NamedTuple):
    """The distribution of the next token of each sample, after the rules."""

    logits: Float[Array, "B N V"]
    normalizer: Float[Array, "B N"]
    allowed: Bool[Array, "B N V"]
    must_end: Bool[Array, "B N"]
    failed: Bool[Array, "B N"]  # logits that are NaN or +inf


def top_k_top_p_mask(
    logits: Float[Array, "... V"], top_k: int, top_p: float | Array
) -> Bool[Array, "... V"]:
    """The `top_k` best tokens (0: all); of these the fewest whose probabilities sum to `top_p`.

    At least one token remains (nucleus sampling, Holtzman et al. 2020, section 3.1). Tokens that
    tie with the last one are included.
    """
    if 0 < top_k < logits.shape[-1]:
        ordered, _ = candidates.top_k(logits, top_k)  # without a sort of the vocabulary
    else:
        ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    share = jax.nn.softmax(ordered, axis=-1)  # [..., V], or [..., top_k]
    before = jnp.cumsum(share, axis=-1) - share
    taken = (before < top_p) | (jnp.arange(ordered.shape[-1]) == 0)
    smallest = jnp.where(taken, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return logits >= smallest


def sample(
    step: Step, state: Any, targets: Targets, keys: Array, options: SearchOptions
) -> Hypotheses:
    """`options.samples` hypotheses of each sentence, in the order in which they were drawn.

    Tokens are drawn from softmax(log p / temperature) over the tokens that the rules, `top_k` and
    `top_p` leave, where p are the model's probabilities, after any repetition penalty. `log_probs`
    sum log p, without temperature, `top_k` and `top_p`. `keys` [B] are PRNG keys; the other
    arguments are those of `beam_search`. At its limit, or when no token is left, a sample can only
    end. A sentence of limit 0 is padding: its samples have length 0 and score −inf. Samples with
    logits that are NaN or +inf have NaN scores.
    """
    samples, max_length, end_id = options.samples, options.max_length, options.end_id
    if samples < 1 or max_length < 1:
        raise ValueError(f"samples and max_length must be at least 1; got {samples}, {max_length}")
    start_tokens, limits, *_ = targets
    check_sentences(start_tokens, limits)
    check_shape("keys", keys, (len(start_tokens), *keys.shape[1:]), "one for each of start_tokens")
    step = checked_step(step, end_id)
    rules = make_rules(options, targets._replace(limits=jnp.minimum(limits, max_length)))
    start_tokens, limits = (jnp.asarray(x, jnp.int32) for x in (start_tokens, limits))
    present = (limits > 0)[:, None]  # [B, 1]
    limits = jnp.clip(limits, 1, max_length)  # [B]

    def unfinished(sampling: SamplingState) -> Array:
        return (sampling.t < max_length) & (sampling.lengths == 0).any()

    def advance(sampling: SamplingState) -> SamplingState:
        logits, step_state = run_step(step, sampling, start_tokens)  # [B, N, V]
        choice = apply_rules(logits, sampling, rules, sampling.t + 1 >= limits, end_id)
        keys_now = jax.vmap(jax.random.fold_in, (0, None))(keys, sampling.t)  # [B]
        tokens = draw_tokens(keys_now, choice, options)  # [B, N]
        log_probs = token_log_probs(choice, tokens)  # [B, N]
        return append_tokens(sampling, tokens, log_probs, end_id)._replace(step_state=step_state)

    start = initial_state(len(start_tokens), samples, max_length, end_id, state)
    sampling = jax.lax.while_loop(unfinished, advance, start)
    log_probs = jnp.where(present, sampling.log_probs, -jnp.inf)  # [B, N]
    return Hypotheses(
        jnp.where(present[..., None], jnp.moveaxis(sampling.tokens, 0, -1), end_id),
        jnp.where(present, sampling.lengths, 0),
        log_probs / options.penalty(sampling.lengths),
        log_probs,
    )


def initial_state(
    batch: int, samples: int, max_length: int, end_id: int, step_state: Any
) -> SamplingState:
    return SamplingState(
        jnp.int32(0),
        jnp.full((max_length, batch, samples), end_id, jnp.int32),
        jnp.zeros((batch, samples), jnp.float32),
        jnp.zeros((batch, samples), jnp.int32),
        step_state,
    )


def run_step(
    step: Step, sampling: SamplingState, start_tokens: Int[Array, " B"]
) -> tuple[Float[Array, "B N V"], Any]:
    """Feed the newest tokens. Every sample remains in its slot, so its ancestor is itself."""
    t, (max_length, batch, samples) = sampling.t, sampling.tokens.shape
    slots = jnp.broadcast_to(jnp.arange(samples, dtype=jnp.int32), (batch, samples))
    tokens = jnp.where(t == 0, start_tokens[:, None], sampling.tokens[t - 1])  # [B, N]
    ancestry = jnp.where(jnp.arange(max_length) <= t, slots[..., None], -1)  # [B, N, T]
    return step(tokens, sampling.step_state, jnp.full(batch, t), slots, ancestry)


def apply_rules(
    logits: Float[Array, "B N V"],
    sampling: SamplingState,
    rules: Rules | None,
    at_limit: Bool[Array, " B"],
    end_id: int,
) -> Choice:
    """Apply the rules. A sample must end at its limit, without a possible token, or if failed."""
    t, (max_length, batch, _) = sampling.t, sampling.tokens.shape
    normalizer = jax.nn.logsumexp(logits, axis=-1)  # [B, N]
    failed = jnp.isnan(normalizer) | jnp.isposinf(normalizer)  # [B, N]
    allowed = jnp.ones((1, 1, 1), bool)  # [#B, #N, #V]
    if rules is not None:
        written = jnp.arange(max_length) < t
        history = jnp.where(written, jnp.moveaxis(sampling.tokens, 0, -1), -1)  # [B, N, T]
        logits, normalizer, allowed = rules(
            logits, normalizer, history, jnp.full(batch, t), jnp.arange(batch)
        )
    possible = (allowed & (logits > -jnp.inf)).any(axis=-1)  # [B, N]
    must_end = at_limit[:, None] | ~possible | failed  # [B, N]
    ids = jnp.arange(logits.shape[-1])
    allowed = jnp.where(must_end[..., None], ids == end_id, allowed)  # [B, N, V]
    return Choice(logits, normalizer, allowed, must_end, failed)


def draw_tokens(keys: Array, choice: Choice, options: SearchOptions) -> Int[Array, "B N"]:
    """One token for each sample."""
    top_k, top_p = options.top_k, options.top_p
    logits = jnp.where(choice.allowed, choice.logits, -jnp.inf)  # [B, N, V]
    largest = logits.max(axis=-1, keepdims=True)  # [B, N, 1]
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    # At a low temperature quotients overflow. That of the largest logit is 0, because devices flush
    # only temperatures below `tiny` to 0.
    logits = (logits - largest) / jnp.maximum(options.temperature, jnp.finfo(jnp.float32).tiny)
    if top_k or isinstance(top_p, jax.Array) or top_p < 1.0:
        logits = jnp.where(top_k_top_p_mask(logits, top_k, top_p), logits, -jnp.inf)
    tokens = jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
    return jnp.where(choice.must_end, options.end_id, tokens)  # for any logits, including NaN


def token_log_probs(choice: Choice, tokens: Int[Array, "B N"]) -> Float[Array, "B N"]:
    """ln p of the drawn tokens; NaN if the logits are not finite."""
    chosen = jnp.take_along_axis(choice.logits, tokens[..., None], axis=-1)[..., 0]
    log_probs = jnp.where(jnp.isneginf(chosen), -jnp.inf, chosen - choice.normalizer)
    return jnp.where(choice.failed, jnp.nan, log_probs)


def append_tokens(
    sampling: SamplingState,
    tokens: Int[Array, "B N"],
    log_probs: Float[Array, "B N"],
    end_id: int,
) -> SamplingState:
    """The state after step t; samples that have ended are padded with end tokens."""
    t, running = sampling.t, sampling.lengths == 0
    tokens = jnp.where(running, tokens, end_id)
    return sampling._replace(
        t=t + 1,
        tokens=sampling.tokens.at[t].set(tokens),
        log_probs=sampling.log_probs + jnp.where(running, log_probs, 0.0),
        lengths=jnp.where(running & (tokens == end_id), t + 1, sampling.lengths),
    )

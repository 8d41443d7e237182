"""Sampling: hypotheses drawn at random, over the same step functions as the beam search.

Axes: B sentences · N samples · V vocabulary · T steps.
What is drawn for a sentence depends on its key alone, not on its neighbours or its place.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .beam_search import Step
from .checks import check_sentences, check_shape, checked
from .constraints import Rules
from .hypotheses import Hypotheses, length_penalty


class Drawing(NamedTuple):
    """What the while_loop carries."""

    t: Int[Array, ""]
    tokens: Int[Array, "T B N"]
    log_probs: Float[Array, "B N"]
    lengths: Int[Array, "B N"]  # 0 while a sample goes on
    state: Any


def likeliest(
    logits: Float[Array, "... V"], top_k: int, top_p: float | Array
) -> Bool[Array, "... V"]:
    """The `top_k` best tokens (0: all), of these the fewest whose probabilities add up to `top_p`.

    At least one token stays (nucleus sampling, Holtzman et al. 2020, section 3.1). Tokens as likely
    as the last one taken are taken too.
    """
    ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    taken = jnp.arange(logits.shape[-1]) < (top_k or logits.shape[-1])
    share = jax.nn.softmax(jnp.where(taken, ordered, -jnp.inf), axis=-1)
    before = jnp.cumsum(share, axis=-1) - share
    taken &= (before < top_p) | (jnp.arange(logits.shape[-1]) == 0)
    least = jnp.where(taken, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return logits >= least


def sample(
    step: Step,
    state: Any,
    start_tokens: Int[Array, " B"],
    limits: Int[Array, " B"],
    keys: Array,
    *,
    samples: int,
    max_length: int,
    end_id: int,
    temperature: float | Array = 1.0,
    top_k: int = 0,
    top_p: float | Array = 1.0,
    alpha: float | Array = 0.6,
    power_penalty: bool = False,
    rules: Rules | None = None,
) -> Hypotheses:
    """`samples` hypotheses of each sentence, in the order of the draws, not of their scores.

    Tokens are drawn from softmax(log p / temperature) over what `rules`, `top_k` and `top_p` leave,
    where p are the model's probabilities after the repetition penalty, if there is one. `log_probs`
    sum log p, without temperature, `top_k` and `top_p`. `keys` [B] are PRNG keys; the rest is as in
    `beam_search`. At its limit, or where nothing is left, a sample may only end. Samples that meet
    logits that are NaN or +inf have NaN scores. A traced `top_p` is applied for any value.
    """
    if samples < 1 or max_length < 1:
        raise ValueError(f"samples and max_length must be at least 1; got {samples}, {max_length}")
    check_sentences(start_tokens, limits)
    check_shape("keys", keys, (len(start_tokens), *keys.shape[1:]), "one for each of start_tokens")
    step = checked(step, end_id)
    nucleus = isinstance(top_p, jax.Array) or top_p < 1.0
    batch = start_tokens.shape[0]
    slots = jnp.broadcast_to(jnp.arange(samples), (batch, samples))
    limits = jnp.clip(limits, 1, max_length)
    times = jnp.arange(max_length)

    def draw(drawing: Drawing) -> Drawing:
        t, each = drawing.t, jnp.full(batch, drawing.t)
        fed = jnp.where(t == 0, start_tokens[:, None], drawing.tokens[t - 1])
        ancestry = jnp.where(times <= t, slots[..., None], -1)
        logits, state = step(fed, drawing.state, each, slots, ancestry)
        vocab = logits.shape[-1]
        normalizer, allowed = jax.nn.logsumexp(logits, axis=-1), jnp.ones((1, 1, 1), bool)
        failed = jnp.isnan(normalizer) | jnp.isposinf(normalizer)
        if rules is not None:
            history = jnp.where(times < t, jnp.moveaxis(drawing.tokens, 0, -1), -1)
            logits, normalizer, allowed = rules(
                logits, normalizer, history, each, jnp.arange(batch)
            )
        must_end = (t + 1 >= limits)[:, None] | ~allowed.any(axis=-1) | failed
        allowed = jnp.where(must_end[..., None], jnp.arange(vocab) == end_id, allowed)
        left = jnp.where(allowed, logits / temperature, -jnp.inf)
        if top_k or nucleus:
            left = jnp.where(likeliest(left, top_k, top_p), left, -jnp.inf)
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        tokens = jax.vmap(jax.random.categorical)(now, left)
        tokens = jnp.where(must_end, end_id, tokens)  # for any logits, also NaN
        chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        log_probs = jnp.where(jnp.isneginf(chosen), -jnp.inf, chosen - normalizer)
        log_probs = jnp.where(failed, jnp.nan, log_probs)
        goes_on = drawing.lengths == 0
        tokens = jnp.where(goes_on, tokens, end_id)
        return Drawing(
            t + 1,
            drawing.tokens.at[t].set(tokens),
            drawing.log_probs + jnp.where(goes_on, log_probs, 0.0),
            jnp.where(goes_on & (tokens == end_id), t + 1, drawing.lengths),
            state,
        )

    drawing = jax.lax.while_loop(
        lambda drawing: (drawing.t < max_length) & (drawing.lengths == 0).any(),
        draw,
        Drawing(
            jnp.array(0),
            jnp.full((max_length, batch, samples), end_id),
            jnp.zeros((batch, samples)),
            jnp.zeros((batch, samples), int),
            state,
        ),
    )
    penalty = length_penalty(drawing.lengths, alpha, power_penalty)
    return Hypotheses(
        jnp.moveaxis(drawing.tokens, 0, -1),
        drawing.lengths,
        drawing.log_probs / penalty,
        drawing.log_probs,
    )

"""Sampling: hypotheses drawn at random, over the same step functions as the beam search.

Axes: B sentences · N samples · V vocabulary · T steps.
What is drawn for a sentence depends on its key alone, not on its neighbours or its place.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from model.beam_search import Hypotheses, Step, length_penalty
from model.constraints import Rules


class Drawing(NamedTuple):
    """What the while_loop carries."""

    t: Int[Array, ""]
    tokens: Int[Array, "T B N"]
    log_probs: Float[Array, "B N"]
    lengths: Int[Array, "B N"]  # 0 while a sample goes on
    state: Any


def likeliest(logits: Float[Array, "... V"], top_k: int, top_p: float) -> Bool[Array, "... V"]:
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
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    alpha: float = 0.6,
    power_penalty: bool = False,
    rules: Rules | None = None,
) -> Hypotheses:
    """`samples` hypotheses of each sentence, in the order of the draws, not of their scores.

    Tokens are drawn from softmax(logits / temperature) over what `rules`, `top_k` and `top_p`
    leave; log_probs are the model's own, without these. `keys` [B] are PRNG keys; the rest is as in
    `beam_search`, and at its limit, or where nothing is left, a sample may only end.
    """
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
        allowed = jnp.ones((1, 1, 1), bool)
        if rules is not None:
            history = jnp.where(times < t, jnp.moveaxis(drawing.tokens, 0, -1), -1)
            logits, allowed = rules(logits, history, each, jnp.arange(batch))
        is_end = jnp.arange(vocab) == end_id
        must_end = (t + 1 >= limits)[:, None, None] | ~allowed.any(axis=-1, keepdims=True)
        allowed = jnp.where(must_end, is_end, allowed)
        left = jnp.where(allowed, logits / temperature, -jnp.inf)
        if top_k or top_p < 1.0:
            left = jnp.where(likeliest(left, top_k, top_p), left, -jnp.inf)
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        tokens = jax.vmap(jax.random.categorical)(now, left)
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        log_probs = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
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
        jnp.moveaxis(drawing.tokens, 0, -1), drawing.lengths, drawing.log_probs / penalty,
        drawing.log_probs,
    )

"""What a hypothesis may say next: small functions on the logits of a search, each off by default.

Axes: B rows · Q sentences · N hypotheses · V vocabulary · T steps.
Two kinds: the repetition penalty changes logits before they are normalised, as in its paper; the
others are masks, True = allowed, and log-probabilities stay the model's own (not renormalised,
unless that is asked for of suppressed tokens).
`history` is what each hypothesis has chosen so far, −1 at steps to come.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# (logits [B, N, V], history [B, N, T], t [B], sentences [B]) → (logits, mask [#B, #N, V])
Rules = Callable[[Array, Array, Array, Array], tuple[Array, Array]]


def repetition_penalty(
    logits: Float[Array, "B N V"], history: Int[Array, "B N T"], penalty: float
) -> Float[Array, "B N V"]:
    """Tokens already said: positive logits over `penalty`, negative ones times it (CTRL, Keskar et
    al. 2019, section 4.1)."""
    lowered = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(said(history, history >= 0, logits.shape[-1]), lowered, logits)


def fresh_ngrams(
    history: Int[Array, "B N T"], t: Int[Array, " B"], vocab: int, n: int
) -> Bool[Array, "B N V"]:
    """Everything but what would repeat a run of `n` tokens that a hypothesis has said already."""
    length = history.shape[-1]
    if n > length:
        return jnp.ones((*history.shape[:2], vocab), bool)
    repeats = history[..., n - 1 :] >= 0  # where a whole run has been said
    for i in range(n - 1):
        at = jnp.maximum(t - n + 1 + i, 0)[:, None, None]
        repeats &= history[..., i : length - n + 1 + i] == jnp.take_along_axis(history, at, -1)
    return ~said(history[..., n - 1 :], repeats, vocab)


def long_enough(
    t: Int[Array, " B"], least: Int[Array, " B"], vocab: int, end_id: int
) -> Bool[Array, "B 1 V"]:
    """No end before a sentence's `least` tokens, the end counted."""
    return (t + 1 >= least)[:, None, None] | (jnp.arange(vocab) != end_id)


def following(
    prefix: Int[Array, "B P"], lengths: Int[Array, " B"], t: Int[Array, " B"], vocab: int
) -> Bool[Array, "B 1 V"]:
    """The first `lengths` tokens as in `prefix`, then anything."""
    at = jnp.minimum(t, prefix.shape[1] - 1)[:, None]
    wanted = jnp.take_along_axis(prefix, at, axis=1)
    return ((t >= lengths)[:, None] | (jnp.arange(vocab) == wanted))[:, None]


def said(
    tokens: Int[Array, "B N T"], where: Bool[Array, "B N T"], vocab: int
) -> Bool[Array, "B N V"]:
    """Which tokens occur at the places where `where` is True."""
    b, n = jnp.indices(tokens.shape[:2])
    places = b[..., None], n[..., None], jnp.maximum(tokens, 0)
    return jnp.zeros((*tokens.shape[:2], vocab), bool).at[places].max(where & (tokens >= 0))


def make_rules(
    end_id: int,
    *,
    suppressed: Sequence[int] = (),
    renormalize: bool = False,
    repetition: float = 1.0,
    no_repeat_ngram: int = 0,
    least: Int[Array, " Q"] | None = None,
    prefix: tuple[Int[Array, "Q P"], Int[Array, " Q"]] | None = None,
) -> Rules | None:
    """The rules that are asked for, None if none is: then a search pays nothing.

    `suppressed` tokens never come, with `renormalize` as if there were none; `least` tokens at
    least, the end counted; `prefix` is tokens and how many of them. A forced prefix may say what
    the other rules forbid. A search's limit is above all rules.
    """
    if not suppressed and repetition == 1.0 and not no_repeat_ngram and least is prefix is None:
        return None

    def rules(logits, history, t, sentences):
        vocab = logits.shape[-1]
        allowed = left = jnp.ones((1, 1, 1), bool)
        if repetition != 1.0:
            logits = repetition_penalty(logits, history, repetition)
        if suppressed:
            left = ~jnp.isin(jnp.arange(vocab), jnp.array(suppressed))
            allowed &= left
        if no_repeat_ngram:
            allowed &= fresh_ngrams(history, t, vocab, no_repeat_ngram)
        if least is not None:
            allowed &= long_enough(t, least[sentences], vocab, end_id)
        if prefix is not None:
            tokens, lengths = prefix[0][sentences], prefix[1][sentences]
            wanted = following(tokens, lengths, t, vocab)
            forced = (t < lengths)[:, None, None]
            allowed = jnp.where(forced, wanted, allowed)
            left = left | (forced & wanted)
        if renormalize:
            logits = jnp.where(left, logits, -jnp.inf)
        return logits, allowed

    return rules

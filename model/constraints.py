"""Rules of a search: small functions on the logits of each step, each off by default.

Axes: B rows · Q sentences · N hypotheses · V vocabulary · T steps.
The log-probability of a token is its logit − the normalizer. Two kinds of rules: the repetition
penalty changes log-probabilities; the others are masks, True = allowed, and log-probabilities stay
the model's own (renormalised only where that is asked for, and for suppressed tokens only). So
every rule depends on probabilities alone, and an ensemble of a model with itself is that model.
`history` holds the tokens of each hypothesis, −1 at later steps.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# (logits [B, N, V], normalizer [B, N], history [B, N, T], t [B], sentences [B])
# → (logits, normalizer, mask [#B, #N, V])
Rules = Callable[[Array, Array, Array, Array, Array], tuple[Array, Array, Array]]


def repetition_penalty(
    logits: Float[Array, "B N V"],
    normalizer: Float[Array, "B N"],
    history: Int[Array, "B N T"],
    penalty: float | Array,
) -> Float[Array, "B N V"]:
    """Logits with log-probabilities × `penalty` for the tokens of the history.

    The log-probabilities of the others do not change and nothing is renormalised, as in the beam
    search of transformers. (Keskar et al. 2019, section 4.1, and the greedy search of transformers
    divide or multiply logits by their sign, before the softmax.) The normalizer stays the same.
    """
    z = normalizer[..., None]
    lowered = jnp.where(jnp.isneginf(logits), -jnp.inf, z + (logits - z) * penalty)
    return jnp.where(said(history, history >= 0, logits.shape[-1]), lowered, logits)


def fresh_ngrams(
    history: Int[Array, "B N T"], t: Int[Array, " B"], vocab: int, n: int
) -> Bool[Array, "B N V"]:
    """All tokens except those that would repeat a run of `n` tokens of the hypothesis."""
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
    repetition: float | Array = 1.0,
    no_repeat_ngram: int = 0,
    least: Int[Array, " Q"] | None = None,
    prefix: tuple[Int[Array, "Q P"], Int[Array, " Q"]] | None = None,
) -> Rules | None:
    """The rules that are asked for; None if none is, which costs a search nothing.

    `suppressed` tokens never come; with `renormalize` their probability is shared among the others,
    after the repetition penalty. `least` is the fewest tokens, the end counted; `prefix` is tokens
    and how many of them. A forced prefix may contain what the other rules forbid. The limit of a
    search has precedence over all rules. A traced `repetition` is applied for any value.
    """
    penalized = isinstance(repetition, jax.Array) or repetition != 1.0
    if not (suppressed or penalized or no_repeat_ngram) and least is prefix is None:
        return None

    def rules(logits, normalizer, history, t, sentences):
        vocab = logits.shape[-1]
        allowed = left = jnp.ones((1, 1, 1), bool)
        if penalized:
            logits = repetition_penalty(logits, normalizer, history, repetition)
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
            normalizer = jax.nn.logsumexp(logits, axis=-1)
        return logits, normalizer, allowed

    return rules

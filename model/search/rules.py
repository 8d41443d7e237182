"""Rules of a search: small functions on the logits of each step, each off by default.

Axes: B lanes · Q sentences · N hypotheses · V vocabulary · T steps · P prefix.
A rule is a function here, a field of RuleOptions and a line of `make_rules`, which combines them.
The log-probability of a token is its logit − the normalizer. The repetition penalty changes
log-probabilities. The other rules are masks, True = allowed, and leave log-probabilities unchanged,
except that `renormalize` redistributes the probability of suppressed tokens. Every rule depends on
probabilities only, so an ensemble of a model with itself equals that model. None gives a token a
log-probability above 0, so that the bound at which a search stops is exact.
`history` holds the tokens of each hypothesis, −1 at later steps.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import checked_rules

# (logits [B, N, V], normalizer [B, N], history [B, N, T], t [B], sentences [B])
# → (logits, normalizer, mask [#B, #N, V]); in scoring, t and sentences are None
Rules = Callable[[Array, Array, Array, Array | None, Array | None], tuple[Array, Array, Array]]
Tokens = Sequence[int]
# Forced first tokens, their number, and optionally how many of these cost nothing.
Prefix = (
    tuple[Int[Array, "Q P"], Int[Array, " Q"]]
    | tuple[Int[Array, "Q P"], Int[Array, " Q"], Int[Array, " Q"]]
)


class RuleOptions(NamedTuple):
    """The rules with one value for all sentences; each default disables its rule.

    `suppress` are tokens that are never generated; `renormalize` shares their probability among the
    others, after the repetition penalty. `suppress_first` are not the first token after a prefix,
    and their probability is not shared. `custom` is a caller's function, which is applied first:
    the other rules get its results. A traced `repetition_penalty` is applied for any value; the
    other fields are static.
    """

    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    renormalize: bool = False
    repetition_penalty: float | Array = 1.0
    no_repeat_ngram: int = 0
    custom: Rules | None = None

    def for_scoring(self) -> "RuleOptions":
        """The rules that apply to a given target too: suppressed tokens and the changes of
        log-probabilities. A ban of n-grams and one of first tokens restrict only the choice of
        tokens in a search; `custom` is assumed to be such a rule."""
        return self._replace(no_repeat_ngram=0, suppress_first=(), custom=None)


NO_RULES = RuleOptions()


def penalize_repetition(
    logits: Float[Array, "B N V"],
    normalizer: Float[Array, "B N"],
    history: Int[Array, "B N T"],
    penalty: float | Array,
) -> Float[Array, "B N V"]:
    """Multiply the log-probabilities of the tokens in the history by `penalty`.

    The normalizer and all other log-probabilities are unchanged, as in the beam search of
    transformers. (Keskar et al. 2019, section 4.1, and the greedy search of transformers instead
    divide or multiply logits according to their sign, before the softmax.)
    """
    z = normalizer[..., None]
    lowered = jnp.where(jnp.isneginf(logits), -jnp.inf, z + (logits - z) * penalty)
    return jnp.where(tokens_at(history, history >= 0, logits.shape[-1]), lowered, logits)


def no_repeat_ngram_mask(
    history: Int[Array, "B N T"], t: Int[Array, " B"], vocab: int, n: int
) -> Bool[Array, "B N V"]:
    """All tokens except those that would complete an n-gram that the hypothesis contains."""
    length = history.shape[-1]
    if n > length:
        return jnp.ones((*history.shape[:2], vocab), bool)
    repeats = history[..., n - 1 :] >= 0  # places at which a whole n-gram ends
    for i in range(n - 1):
        at = jnp.maximum(t - n + 1 + i, 0)[:, None, None]  # steps of the last n − 1 tokens
        repeats &= history[..., i : length - n + 1 + i] == jnp.take_along_axis(history, at, -1)
    return ~tokens_at(history[..., n - 1 :], repeats, vocab)


def forbid_sequences_mask(
    history: Int[Array, "B N T"], t: Int[Array, " B"], sequences: Sequence[Tokens], vocab: int
) -> Bool[Array, "B N V"]:
    """All tokens except those that would complete one of the `sequences`, which are static.

    A sequence of one token forbids this token everywhere. ValueError for an empty sequence or an id
    beyond the vocabulary.
    """
    forbidden = jnp.zeros((*history.shape[:2], vocab), bool)
    for sequence in sequences:
        if not sequence or not all(0 <= token < vocab for token in sequence):
            raise ValueError(
                f"sequences must hold ids from 0 to {vocab - 1}; got {tuple(sequence)}"
            )
    for length in sorted(set(map(len, sequences))):
        same_length = [sequence for sequence in sequences if len(sequence) == length]
        tokens = jnp.array(same_length)  # [sequences, length]
        at = t[:, None] - jnp.arange(length - 1, 0, -1)  # [B, length − 1]: steps of these tokens
        before = jnp.take_along_axis(history, jnp.maximum(at, 0)[:, None], axis=-1)
        equal = before[:, :, None] == tokens[:, :-1]  # [B, N, sequences, length − 1]
        matches = (equal & (at >= 0)[:, None, None]).all(axis=-1)
        forbidden |= jnp.zeros_like(forbidden).at[..., tokens[:, -1]].max(matches)
    return ~forbidden


def suppress_first_mask(
    t: Int[Array, " B"], first: Int[Array, " B"] | int, tokens: Tokens, vocab: int
) -> Bool[Array, "B 1 V"]:
    """None of the `tokens` at step `first`."""
    return (t != first)[:, None, None] | ~jnp.isin(jnp.arange(vocab), jnp.array(tokens))


def min_length_mask(
    t: Int[Array, " B"], min_lengths: Int[Array, " B"], vocab: int, end_id: int
) -> Bool[Array, "B 1 V"]:
    """No end token before `min_lengths`, which count it."""
    return (t + 1 >= min_lengths)[:, None, None] | (jnp.arange(vocab) != end_id)


def prefix_mask(
    prefix: Int[Array, "B P"], lengths: Int[Array, " B"], t: Int[Array, " B"], vocab: int
) -> Bool[Array, "B 1 V"]:
    """Only the prefix token at the first `lengths` steps, then every token."""
    at = jnp.minimum(t, prefix.shape[1] - 1)[:, None]
    wanted = jnp.take_along_axis(prefix, at, axis=1)
    return ((t >= lengths)[:, None] | (jnp.arange(vocab) == wanted))[:, None]


def free_tokens_mask(
    t: Int[Array, " B"],
    sentences: Int[Array, " B"],
    prefix: Prefix | None,
    free_ends: Int[Array, " Q"] | None,
    vocab: int,
    end_id: int,
) -> Bool[Array, "B 1 V"]:
    """The forced tokens of step t that cost nothing, as `make_rules` describes them."""
    free = jnp.zeros((len(t), 1, vocab), bool)
    if prefix is not None and len(prefix) == 3:
        tokens, numbers = prefix[0][sentences], prefix[2][sentences]  # [B, P], [B]
        free |= (t < numbers)[:, None, None] & prefix_mask(tokens, numbers, t, vocab)
    if free_ends is not None:
        at_limit = (t + 1 >= free_ends[sentences])[:, None, None]
        free |= at_limit & (jnp.arange(vocab) == end_id)
    return free


def tokens_at(
    tokens: Int[Array, "B N T"], places: Bool[Array, "B N T"], vocab: int
) -> Bool[Array, "B N V"]:
    """The set, as a mask, of the tokens at the places that are True."""
    b, n = jnp.indices(tokens.shape[:2])
    index = b[..., None], n[..., None], jnp.maximum(tokens, 0)
    return jnp.zeros((*tokens.shape[:2], vocab), bool).at[index].max(places & (tokens >= 0))


def make_rules(
    end_id: int,
    options: RuleOptions = NO_RULES,
    *,
    min_lengths: Int[Array, " Q"] | None = None,
    prefix: Prefix | None = None,
    free_ends: Int[Array, " Q"] | None = None,
) -> Rules | None:
    """The enabled rules as one function; None if none is enabled, which costs a search nothing.

    `min_lengths` count the end token. `prefix` is the forced first tokens and their number; it may
    contain tokens that other rules forbid. Its third array is the number of its first tokens that
    cost nothing: their log-probability is 0, as if all other logits were −∞. With `free_ends`, the
    limits of the sentences, so is that of the end token at its limit. The limit of a search has
    precedence over all rules.

    Raises ValueError for a suppressed end token with `renormalize`: no hypothesis could end.
    """
    if options.renormalize and end_id in options.suppress:
        raise ValueError(f"suppress must not contain end_id={end_id} with renormalize")
    penalty = options.repetition_penalty
    penalized = isinstance(penalty, jax.Array) or penalty != 1.0
    # renormalize alone has no effect.
    enabled = penalized or options._replace(repetition_penalty=1.0, renormalize=False) != NO_RULES
    frees = free_ends is not None or (prefix is not None and len(prefix) == 3)
    if not enabled and min_lengths is None and prefix is None and not frees:
        return None

    def rules(
        logits: Array, normalizer: Array, history: Array, t: Array | None, sentences: Array | None
    ) -> tuple[Array, Array, Array]:
        vocab = logits.shape[-1]
        allowed = unsuppressed = jnp.ones((1, 1, 1), bool)  # [#B, #N, #V]
        if options.custom is not None:
            logits, normalizer, allowed = checked_rules(options.custom)(
                logits, normalizer, history, t, sentences
            )
        if penalized:
            logits = penalize_repetition(logits, normalizer, history, penalty)
        if options.suppress:
            unsuppressed = ~jnp.isin(jnp.arange(vocab), jnp.array(options.suppress))
            allowed &= unsuppressed
        if t is not None and sentences is not None:  # rules that apply in a search only
            if options.no_repeat_ngram:
                allowed &= no_repeat_ngram_mask(history, t, vocab, options.no_repeat_ngram)
            if min_lengths is not None:
                allowed &= min_length_mask(t, min_lengths[sentences], vocab, end_id)
            if options.suppress_first:
                first = 0 if prefix is None else prefix[1][sentences]
                allowed &= suppress_first_mask(t, first, options.suppress_first, vocab)
            if prefix is not None:
                tokens, lengths = prefix[0][sentences], prefix[1][sentences]  # [B, P], [B]
                wanted = prefix_mask(tokens, lengths, t, vocab)
                forced = (t < lengths)[:, None, None]  # [B, 1, 1]
                allowed = jnp.where(forced, wanted, allowed)
                unsuppressed = unsuppressed | (forced & wanted)
        if options.renormalize:
            logits = jnp.where(unsuppressed, logits, -jnp.inf)
            normalizer = jax.nn.logsumexp(logits, axis=-1)
        if frees and t is not None and sentences is not None:
            free = free_tokens_mask(t, sentences, prefix, free_ends, vocab, end_id)
            logits = jnp.where(free, normalizer[..., None], logits)
        return logits, normalizer, allowed

    return rules

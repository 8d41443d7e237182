"""Rules of a search: masks of allowed tokens and changes of logits, each off by default.

Axes: B lanes · Q sentences · N hypotheses · V vocabulary · T steps · P prefix.
`make_rules` combines the rules of SearchOptions and Targets. The log-probability of a token is its
logit − the normalizer. The repetition penalty changes log-probabilities. The other rules are masks,
True = allowed, and leave log-probabilities unchanged, except that `renormalize` redistributes the
probability of suppressed tokens. Every rule depends on probabilities only, so an ensemble of a
model with itself equals that model. None gives a token a log-probability above 0, so that the bound
at which a search stops is exact.
`history` holds the tokens of each hypothesis from step 0 to t − 1, and −1 from step t on.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import checked_rules
from .arguments import Place, Rules, SearchOptions, Targets


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


def no_repeat_ngram_mask(place: Place, n: int) -> Bool[Array, "B N V"]:
    """All tokens except those that would complete an n-gram that the hypothesis contains."""
    history, t, vocab, _ = place
    length = history.shape[-1]
    if n > length:
        return jnp.ones((*history.shape[:2], vocab), bool)
    repeats = history[..., n - 1 :] >= 0  # [B, N, T − n + 1]: places at which an n-gram ends
    for i in range(n - 1):
        at = jnp.maximum(t - n + 1 + i, 0)[:, None, None]  # steps of the last n − 1 tokens
        repeats &= history[..., i : length - n + 1 + i] == jnp.take_along_axis(history, at, -1)
    return ~tokens_at(history[..., n - 1 :], repeats, vocab)


def forbid_sequences_mask(place: Place, sequences: Sequence[Sequence[int]]) -> Bool[Array, "B N V"]:
    """All tokens except those that would complete one of the `sequences`.

    A sequence of one token forbids this token everywhere. ValueError for an empty sequence or an id
    beyond the vocabulary.
    """
    history, t, vocab, _ = place
    forbidden = jnp.zeros((*history.shape[:2], vocab), bool)  # [B, N, V]
    for sequence in sequences:
        if not sequence or not all(0 <= token < vocab for token in sequence):
            raise ValueError(
                f"sequences must hold ids from 0 to {vocab - 1}; got {tuple(sequence)}"
            )
    for length in sorted(set(map(len, sequences))):
        same_length = [sequence for sequence in sequences if len(sequence) == length]
        tokens = jnp.array(same_length)  # [sequences, length]
        at = t[:, None] - jnp.arange(length - 1, 0, -1)  # [B, length − 1]: steps of these tokens
        # [B, N, length − 1]
        before = jnp.take_along_axis(history, jnp.maximum(at, 0)[:, None], axis=-1)
        equal = before[:, :, None] == tokens[:, :-1]  # [B, N, sequences, length − 1]
        matches = (equal & (at >= 0)[:, None, None]).all(axis=-1)  # [B, N, sequences]
        forbidden |= jnp.zeros_like(forbidden).at[..., tokens[:, -1]].max(matches)
    return ~forbidden


def suppress_first_mask(place: Place, tokens: Sequence[int]) -> Bool[Array, "B 1 V"]:
    """None of the `tokens` at the first step without a forced token."""
    is_later = (place.t != place.first_free_step)[:, None, None]  # [B, 1, 1]
    return is_later | ~jnp.isin(jnp.arange(place.vocab), jnp.array(tokens))


def min_length_mask(
    place: Place, min_lengths: Int[Array, " B"], end_id: int
) -> Bool[Array, "B 1 V"]:
    """No end token before `min_lengths`, which count it."""
    return (place.t + 1 >= min_lengths)[:, None, None] | (jnp.arange(place.vocab) != end_id)


def prefix_mask(
    place: Place, prefix: Int[Array, "B P"], lengths: Int[Array, " B"]
) -> Bool[Array, "B 1 V"]:
    """Only the prefix token at the first `lengths` steps, then every token."""
    at = jnp.minimum(place.t, prefix.shape[1] - 1)[:, None]
    wanted = jnp.take_along_axis(prefix, at, axis=1)  # [B, 1]
    return ((place.t >= lengths)[:, None] | (jnp.arange(place.vocab) == wanted))[:, None]


def tokens_at(
    tokens: Int[Array, "B N T"], places: Bool[Array, "B N T"], vocab: int
) -> Bool[Array, "B N V"]:
    """The set, as a mask, of the tokens at the places that are True."""
    b, n = jnp.indices(tokens.shape[:2])
    index = b[..., None], n[..., None], jnp.maximum(tokens, 0)
    return jnp.zeros((*tokens.shape[:2], vocab), bool).at[index].max(places & (tokens >= 0))


def restrict(
    allowed: Bool[Array, "#B #N #V"], place: Place, targets: Targets, options: SearchOptions
) -> tuple[Bool[Array, "#B #N V"], Bool[Array, "#B 1 #V"]]:
    """Which of the `allowed` tokens a search may generate at a place, and which are forced there.
    The targets are those of the lanes."""
    for mask in options.masks:
        allowed &= mask.function(place, mask.value)
    if targets.min_lengths is not None:
        allowed &= min_length_mask(place, targets.min_lengths, options.end_id)
    if targets.prefix is None:
        return allowed, jnp.zeros((1, 1, 1), bool)
    wanted = prefix_mask(place, targets.prefix.tokens, targets.prefix.lengths)  # [B, 1, V]
    forced = (place.t < targets.prefix.lengths)[:, None, None]  # [B, 1, 1]
    return jnp.where(forced, wanted, allowed), forced & wanted


def free_tokens_mask(
    place: Place, targets: Targets, options: SearchOptions
) -> Bool[Array, "B 1 V"] | None:
    """The tokens that cost nothing at a place: those of a prefix, and with `forced_end` the end
    token at the limit of a sentence. None if no place has one."""
    t, prefix = place.t, targets.prefix
    number = None if prefix is None else prefix.free
    if number is None and not options.forced_end:
        return None
    free = jnp.zeros((len(t), 1, place.vocab), bool)  # [B, 1, V]
    if prefix is not None and number is not None:
        free |= (t < number)[:, None, None] & prefix_mask(place, prefix.tokens, number)
    if options.forced_end:
        at_limit = (t + 1 >= targets.limits)[:, None, None]  # [B, 1, 1]
        free |= at_limit & (jnp.arange(place.vocab) == options.end_id)
    return free


def make_rules(options: SearchOptions, targets: Targets | None = None) -> Rules | None:
    """The enabled rules as one function; None if none is enabled, which costs a search nothing.

    `targets` None: the rules of given targets, to which masks and requirements of `targets` do not
    apply. The limit of a search has precedence over all rules.

    Raises ValueError for a suppressed end token with `renormalize`: no hypothesis could end.
    """
    if options.renormalize and options.end_id in options.suppress:
        raise ValueError(f"suppress must not contain end_id={options.end_id} with renormalize")
    penalty = options.repetition_penalty
    penalized = isinstance(penalty, jax.Array) or penalty != 1.0
    # renormalize alone has no effect.
    enabled = [penalized, options.suppress, options.rules]
    if targets is not None:
        enabled += [options.masks, options.forced_end]
        enabled += [targets.min_lengths is not None, targets.prefix is not None]
    if not any(enabled):
        return None

    def rules(
        logits: Array, normalizer: Array, history: Array, t: Array | None, sentences: Array | None
    ) -> tuple[Array, Array, Array]:
        allowed = unsuppressed = jnp.ones((1, 1, 1), bool)  # [#B, #N, #V]
        if options.rules is not None:
            logits, normalizer, allowed = checked_rules(options.rules)(
                logits, normalizer, history, t, sentences
            )
        if penalized:
            logits = penalize_repetition(logits, normalizer, history, penalty)
        if options.suppress:
            ids = jnp.arange(logits.shape[-1])
            unsuppressed = ~jnp.isin(ids, jnp.array(options.suppress))  # [V]
            allowed &= unsuppressed
        free = None
        if targets is not None and t is not None and sentences is not None:
            of_lanes = jax.tree.map(lambda x: jnp.asarray(x)[sentences], targets)  # [B, …]
            first = 0 if of_lanes.prefix is None else of_lanes.prefix.lengths
            place = Place(history, t, logits.shape[-1], first)
            allowed, forced = restrict(allowed, place, of_lanes, options)
            unsuppressed = unsuppressed | forced
            free = free_tokens_mask(place, of_lanes, options)
        if options.renormalize:
            logits = jnp.where(unsuppressed, logits, -jnp.inf)
            normalizer = jax.nn.logsumexp(logits, axis=-1)
        if free is not None:
            logits = jnp.where(free, normalizer[..., None], logits)
        return logits, normalizer, allowed

    return rules

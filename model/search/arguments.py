"""The arguments of a search: SearchOptions, equal for all sentences, and Targets, one of each.

Axes: B lanes · Q sentences · N hypotheses · V vocabulary · T steps · P prefix · M models.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int

from .hypotheses import length_penalty

# (logits [B, N, V], normalizer [B, N], history [B, N, T], t [B], sentences [B])
# → (logits, normalizer, mask [#B, #N, V]); in scoring, t and sentences are None
Rules = Callable[[Array, Array, Array, Array | None, Array | None], tuple[Array, Array, Array]]


class Place(NamedTuple):
    """Where a search is, for the functions of masks."""

    history: Int[Array, "B N T"]  # the tokens of steps 0 … t − 1; −1 from step t on
    t: Int[Array, " B"]
    vocab: int
    first_free_step: Int[Array, " B"] | int = 0  # the first one without a forced token


class Mask(NamedTuple):
    """A rule that restricts the tokens of each step: `function(place, value)` is True where a token
    is allowed. It does not change scores, so it does not apply to given targets. The value is
    hashable, because it is a part of the key of a compiled program."""

    function: Callable[[Place, Any], Bool[Array, "#B #N V"]]
    value: Any


class SearchOptions(NamedTuple):
    """The options of a search; the defaults are the paper's. Pass them by keyword.

    All are static except alpha, temperature, top_p, repetition_penalty, seed and weights, which may
    be traced. A traced top_p or repetition_penalty is applied for any value.
    """

    max_length: int  # the most tokens of any target, which is the size of arrays
    end_id: int
    # Beam search.
    beam_size: int = 4
    nbest: int = 1
    alpha: float | Array = 0.6  # also of samples, at least 0
    power_penalty: bool = False  # also of samples
    horizon: int = 0
    stop: str = "exact"
    # Sampling: `samples` > 0 draws that many hypotheses in place of a beam search.
    samples: int = 0
    temperature: float | Array = 1.0
    top_k: int = 0
    top_p: float | Array = 1.0
    # Rules (model/search/rules.py), which each default disables.
    repetition_penalty: float | Array = 1.0
    suppress: tuple[int, ...] = ()  # tokens that are never generated
    renormalize: bool = False  # share the probability of suppressed tokens among the others
    masks: tuple[Mask, ...] = ()
    forced_end: bool = False  # the end token costs nothing at the limit of a sentence
    rules: Rules | None = None  # a caller's own, applied first: the other rules get their results
    # Of `translate`.
    seed: int | Array = 0  # of samples
    weights: Float[Array, " M"] | None = None  # of an ensemble (`mixture_logits`)
    cache_blocks: int = 4  # the most blocks of a layer's cache (model/cache.py)

    def penalty(self, length: Int[Array, "..."]) -> Float[Array, "..."]:
        """By what the log-probability of a hypothesis of this length is divided."""
        return length_penalty(length, self.alpha, self.power_penalty)


class Prefix(NamedTuple):
    """Forced first tokens. Those that cost nothing have log-probability 0, as if all other logits
    were −∞."""

    tokens: Int[Array, "Q P"]
    lengths: Int[Array, " Q"]
    free: Int[Array, " Q"] | None = None  # how many of the first tokens cost nothing; None: none


class Targets(NamedTuple):
    """What a search needs of the target of each sentence; lengths and limits count the end token.

    Sentences of limit 0 are padding: they come last and have no hypotheses. A rule that is None is
    off and costs nothing.
    """

    start_tokens: Int[Array, " Q"]
    limits: Int[Array, " Q"]  # the most tokens
    min_lengths: Int[Array, " Q"] | None = None  # the fewest tokens
    prefix: Prefix | None = None  # may contain tokens that other rules forbid

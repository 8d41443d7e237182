"""A slow Translator as a test oracle: it teacher-forces every prefix and applies every rule by its
definition, to one hypothesis at a time.

Axes: N samples · T target · V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.model.config import ModelConfig
from seq2seq.model.kinds import make_model
from tests.support.oracles.slow_beam_search import (
    Hypothesis,
    Model,
    Prefix,
    penalty,
    slow_beam_search,
)


class CustomRule(NamedTuple):
    """A caller's rule by its definition: what it adds to log-probabilities [V], and whether a token
    may follow a prefix."""

    bias: np.ndarray
    allowed: Callable[[Prefix, int], bool]


class SlowTranslator:
    """Models with parameters, and the options of a Translator; `suppress`, `suppress_first` and
    `sequences`, which are forbidden, are token ids, and so is `free`, the forced prefix that costs
    nothing."""

    def __init__(
        self,
        models: Sequence[tuple[ModelConfig, Any]],
        options: DecodingConfig,
        weights: Sequence[float] | None,
        suppress: Sequence[int],
        custom: CustomRule | None,
        free: Prefix = (),
        suppress_first: Sequence[int] = (),
        sequences: Sequence[Prefix] = (),
    ):
        self.options, self.weights, self.suppress, self.custom = options, weights, suppress, custom
        self.free, self.suppress_first, self.sequences = free, suppress_first, sequences
        self.start_id, self.end_id = models[0][0].start_id, models[0][0].end_id
        # Without a table of positions any length, here more than every limit of the tests.
        self.longest = min(
            32 if config.positions == "rotary" else config.max_length for config, _ in models
        )
        self.members = [partial(teacher_forcing(config), params) for config, params in models]
        self.forced = cache(self.forced_by)  # the search and the scores of a line share prefixes

    def hypotheses(self, number: int, ids: Prefix, prefix: Prefix) -> list[Hypothesis]:
        """Those of a line: its number, its token ids without the end token, and forced tokens."""
        options, prefix = self.options, (*self.free, *prefix)
        limit = self.limit(len(ids) + 1, prefix)
        model = cache(partial(self.log_probs, self.forced(ids), prefix, limit, self.custom))
        allowed = partial(self.allowed, self.fewest(len(ids) + 1), prefix)
        if options.samples:
            return self.samples(model, allowed, limit, number)
        return slow_beam_search(
            model, limit, beam_size=options.beam_size, end_id=self.end_id, alpha=options.alpha,
            nbest=options.nbest, power_penalty=options.power_penalty, horizon=options.horizon,
            stop=options.stop, allowed=allowed,
        )  # fmt: skip

    def limit(self, length: int, prefix: Prefix) -> int:
        """The most tokens of the translation of a source of `length` tokens."""
        options, limits = self.options, [length + self.options.max_extra_length, self.longest]
        if options.max_length:
            limits.append(options.max_length)
        if options.max_length_ratio:
            limits.append(ceil(round(length * options.max_length_ratio, 6)))
        return max(min(limits), len(prefix) + 1)

    def fewest(self, length: int) -> int:
        """The fewest tokens of the translation."""
        return max(self.options.min_length, ceil(round(length * self.options.min_length_ratio, 6)))

    def forced_by(self, ids: Prefix) -> Model:
        """The log-probabilities of the next token: of the weighted mean of the models'
        probabilities."""
        source, segments = np.zeros((2, 1, self.longest), np.int32)
        source[0, : len(ids) + 1] = *ids, self.end_id
        segments[0, : len(ids) + 1] = 1

        @cache
        def log_probs(written: Prefix) -> np.ndarray:
            target = np.zeros((1, self.longest), np.int32)
            target[0, : len(written) + 1] = self.start_id, *written
            member_log_probs = [
                member(source, target, segments)[0, len(written)] for member in self.members
            ]
            if len(member_log_probs) == 1:
                return member_log_probs[0]
            shares = np.average(
                np.exp(member_log_probs, dtype=np.float64), axis=0, weights=self.weights
            )
            return np.log(shares).astype(np.float32)

        return log_probs

    def log_probs(
        self,
        forced: Model,
        prefix: Prefix,
        limit: int,
        custom: CustomRule | None,
        written: Prefix,
    ) -> np.ndarray:
        """The log-probabilities of the next token after the rules that change them."""
        values = np.array(forced(written))
        if custom:
            values += custom.bias
        values[list(set(written))] *= self.options.repetition_penalty
        if self.options.renormalize:
            wanted = prefix[len(written)] if len(written) < len(prefix) else None
            values[[token for token in self.suppress if token != wanted]] = -np.inf
            values -= np.log(np.exp(values).sum())
        if len(written) < len(self.free):
            values[self.free[len(written)]] = 0.0
        if self.options.forced_end and len(written) + 1 == limit:
            values[self.end_id] = 0.0
        return values

    def allowed(self, fewest: int, prefix: Prefix, written: Prefix, token: int) -> bool:
        """Whether a token may follow, before the limit."""
        if len(written) < len(prefix):
            return token == prefix[len(written)]
        if len(written) == len(prefix) and token in self.suppress_first:
            return False
        if self.custom and not self.custom.allowed(written, token):
            return False
        if token in self.suppress or (token == self.end_id and len(written) + 1 < fewest):
            return False
        n, tokens = self.options.no_repeat_ngram, (*written, token)
        if any(tokens[-len(sequence) :] == sequence for sequence in self.sequences):
            return False
        ngrams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)] if n else []
        return not ngrams or ngrams[-1] not in ngrams[:-1]

    def samples(
        self, model: Model, allowed: Callable[[Prefix, int], bool], limit: int, number: int
    ) -> list[Hypothesis]:
        """A token is drawn as the largest sum of its log-probability and Gumbel noise, which
        depends on seed, line number, step and sample."""
        options, hypotheses = self.options, []
        key = jax.random.fold_in(jax.random.PRNGKey(options.seed), number)
        noise = gumbel_noise(key, self.longest, options.samples, len(model(())))  # [T, N, V]
        for sample in range(options.samples):
            written, total = (), np.float32(0)
            while self.end_id not in written:
                log_probs, t = model(written), len(written)
                tokens = [token for token in range(len(log_probs)) if allowed(written, token)]
                if t + 1 == limit or not tokens:
                    tokens = [self.end_id]
                logits = log_probs / np.float32(options.temperature)
                values = logits + noise[t, sample]
                drawn = max(nucleus(logits, tokens, options), key=values.__getitem__)
                written, total = (*written, drawn), total + log_probs[drawn]
            score = total / penalty(len(written), options.alpha, options.power_penalty)
            hypotheses.append(Hypothesis(written, float(total), float(score)))
        return hypotheses

    def scored(self, ids: Prefix, target: Prefix, prefix: Prefix) -> list[float]:
        """The log-probability of each token of a given target, which ends with the end token. A
        caller's rule does not apply, nor does `prefix`, which can raise the limit."""
        limit = self.limit(len(ids) + 1, (*self.free, *prefix))
        model = partial(self.log_probs, self.forced(ids), self.free, limit, None)
        return [
            -np.inf
            if token in self.suppress and i >= len(self.free)
            else float(model(target[:i])[token])
            for i, token in enumerate(target)
        ]


def nucleus(logits: np.ndarray, tokens: list[int], options: DecodingConfig) -> list[int]:
    """The best `top_k` of the tokens, and of these the fewest with a share of `top_p`."""
    best = sorted(tokens, key=lambda token: -logits[token])[: options.top_k or None]
    shares = np.exp(logits[best] - logits[best].max())
    before = (np.cumsum(shares) - shares) / shares.sum()
    return [token for token, share in zip(best, before, strict=True) if share < options.top_p]


def teacher_forcing(config: ModelConfig) -> Callable[..., np.ndarray]:
    """(parameters, source, target, source segments) → log-probabilities [1, T, V], compiled. The
    inputs hold the special tokens, so configs that differ in them only share a program."""
    usual = ModelConfig()
    return compiled(replace(config, start_id=usual.start_id, end_id=usual.end_id))


@cache
def compiled(config: ModelConfig) -> Callable[..., np.ndarray]:
    @jax.jit
    def run(params: Any, source: Any, target: Any, segments: Any) -> Any:
        inputs = source, target, segments, jnp.ones_like(target)
        return jax.nn.log_softmax(make_model(config).apply({"params": params}, *inputs))

    return lambda *arguments: np.asarray(run(*arguments))


@partial(jax.jit, static_argnums=(1, 2, 3))
def gumbel_noise(key: Any, steps: int, samples: int, vocab: int) -> Any:
    """[T, N, V], with a key for each step."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(steps))
    return jax.vmap(lambda key: jax.random.gumbel(key, (samples, vocab)))(keys)

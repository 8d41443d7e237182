"""A slow beam search as a test oracle: Python lists, one hypothesis at a time.

The model is any function from a prefix (a tuple of tokens, without the start) to the natural
log-probabilities of the next token, an array of V. Sums have the precision of that array, so both
searches have the same ties.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

Prefix = tuple[int, ...]
Model = Callable[[Prefix], np.ndarray]


class Hypothesis(NamedTuple):
    """Tokens with the end token, their log-probability, and it divided by the length penalty."""

    tokens: Prefix
    log_prob: float
    score: float


def penalty(length: int, alpha: float, power: bool = False) -> float:
    return (length if power else (5 + length) / 6) ** alpha


def slow_beam_search(
    model: Model,
    limit: int,
    *,
    beam_size: int,
    end_id: int,
    alpha: float = 0.6,
    nbest: int = 1,
    power_penalty: bool = False,
    stop_early: bool = True,
    horizon: int = 0,
    stop: str = "exact",
    allowed: Callable[[Prefix, int], bool] = lambda prefix, token: True,
) -> list[Hypothesis]:
    """At most `nbest` hypotheses of at most `limit` tokens, best first.

    `allowed(prefix, token)` is whether the token may follow, before the limit. Ties go to the
    shorter length, then to the better parent, then to the lower token: every sort is stable.
    """
    live: list[tuple[Prefix, float]] = [((), np.float32(0))]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        continuations = [
            ((*prefix, token), before + log_prob)
            for prefix, before in live
            for token, log_prob in enumerate(model(prefix))
            if log_prob > -np.inf
            and (allowed(prefix, token) if length < limit else token == end_id)
        ]
        continuations.sort(key=lambda c: c[1], reverse=True)
        continuations = continuations[: 2 * beam_size if beam_size > 1 else 1]

        # That may end: unless the bound is exact, only the best N.
        for tokens, log_prob in continuations[: None if stop == "exact" else beam_size]:
            if tokens[-1] == end_id:
                score = log_prob / penalty(length, alpha, power_penalty)
                finished.append(Hypothesis(tokens, float(log_prob), float(score)))
        finished = sorted(finished, key=lambda h: h.score, reverse=True)[:beam_size]
        live = [c for c in continuations if c[0][-1] != end_id][:beam_size]
        if not live:
            break
        number = nbest if stop == "exact" else beam_size
        last = min(limit, length + horizon) if horizon else limit
        last = length if stop == "full" else last
        best_to_come = live[0][1] / penalty(last, alpha, power_penalty)
        if stop_early and len(finished) >= number:
            if stop == "now" or finished[number - 1].score >= best_to_come:
                break
    return finished[:nbest]


def transformers_search(
    model: Model,
    limit: int,
    *,
    beam_size: int,
    end_id: int,
    alpha: float,
    early_stopping: bool | str,
    forced: Prefix = (),
    forced_end: bool = False,
) -> list[Hypothesis]:
    """The beam search of transformers on arrays [N, V], best hypothesis first.

    The best N of 2N continuations may end. The search stops when N are finished and the best live
    one cannot beat the worst of them: at once (early_stopping=True), if it had its present length
    (False) or the longest one ("never"). `forced` are the first tokens; they cost nothing, nor does
    the end token at the limit if `forced_end`.
    """
    live: list[tuple[Prefix, float]] = [((), np.float32(0))]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        totals = np.stack([before + model(tokens) for tokens, before in live])
        if length <= len(forced) or length == limit:
            token = end_id if length == limit else forced[length - 1]
            is_free = length < limit or forced_end
            column = [total for _, total in live] if is_free else totals[:, token].copy()
            totals[:] = -np.inf
            totals[:, token] = column
        vocab, flat = totals.shape[1], totals.ravel()
        order = np.argsort(-flat, kind="stable")[: 2 * beam_size]
        best = [((*live[i // vocab][0], int(i % vocab)), flat[i]) for i in order]
        for tokens, total in best[:beam_size]:
            if tokens[-1] == end_id and total > -np.inf:
                finished.append(Hypothesis(tokens, float(total), float(total / length**alpha)))
        finished = sorted(finished, key=lambda h: h.score, reverse=True)[:beam_size]
        live = [b for b in best if b[0][-1] != end_id and b[1] > -np.inf][:beam_size]
        if not live:
            break
        bound = live[0][1] / (limit if early_stopping == "never" else length) ** alpha
        if len(finished) == beam_size and (early_stopping is True or finished[-1].score >= bound):
            break
    return finished


def every_hypothesis(
    model: Model, limit: int, end_id: int, prefix: Prefix = (), before: float = 0.0
) -> Iterator[tuple[Prefix, float]]:
    """All possible hypotheses that end within `limit` tokens, with their log-probabilities."""
    for token, log_prob in enumerate(model(prefix)):
        if log_prob == -np.inf:
            continue
        if token == end_id:
            yield (*prefix, token), before + log_prob
        elif len(prefix) + 1 < limit:
            tokens = (*prefix, token)
            yield from every_hypothesis(model, limit, end_id, tokens, before + log_prob)


def rescored(model: Model, tokens: Prefix) -> float:
    """The log-probability of `tokens` by teacher forcing."""
    return sum(float(model(tuple(tokens[:i]))[token]) for i, token in enumerate(tokens))


def listed(hypotheses, row: int) -> list[Hypothesis]:
    """The hypotheses of a row of a `beam_search` result, without missing ones."""
    return [
        Hypothesis(tuple(tokens[:length].tolist()), float(log_prob), float(score))
        for tokens, length, score, log_prob in zip(*(x[row] for x in hypotheses), strict=True)
        if length > 0
    ]

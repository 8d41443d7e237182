"""Scoring: how probable given translations are, and which source tokens each of their tokens sees.

One teacher-forced pass over pairs, with the models, tokenizers and buckets of a Translator.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import jax
import numpy as np

from decoding.programs import on_devices
from decoding.streaming import windows
from decoding.translator import WINDOW, Translator
from model.constraints import make_rules
from model.hypotheses import length_penalty
from model.scoring import score_targets
from runtime.prefetch import Prefetched


class Scored(NamedTuple):
    """One pair. The last token is the end token; `score` is what a search would have given it.

    Suppressed pieces (−inf), renormalisation and the repetition penalty count as in a search.
    Limits of length, n-gram bans and prefixes only choose among translations; they do not count.
    """

    log_prob: float
    score: float
    tokens: list[str]
    log_probs: list[float]
    links: list[tuple[int, int]]  # (i, j): token j attends to source token i most; ends left out
    kept: int  # tokens of the longer side that were scored, and those that were cut off it
    cut: int


class Scorer:
    """`scorer.stream(pairs)` with the models, tokenizers and length penalty of a Translator."""

    def __init__(self, translator: Translator, align: bool = False):
        """`align` asks for the links too."""
        self._translator, self._align = translator, align
        engine, options = translator.engine, translator.decoding
        self._buckets = engine.buckets
        rules = make_rules(
            engine.models[0].config.end_id,
            suppress=engine.suppress,
            renormalize=options.renormalize,
            repetition_penalty=options.repetition_penalty,
        )

        def run(variables, *arrays):
            models = list(zip(engine.models, variables, strict=True))
            forced = score_targets(models, *arrays, rules=rules)
            return forced if align else forced.log_probs

        self._force = on_devices(run, (None, 0, 0, 0, 0))

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Scored | None]:
        """The score of each pair, in order; None where both sides are blank. A score is NaN where
        the models' logits are not finite."""
        size = WINDOW * self._translator.decoding.batch_size * jax.local_device_count()
        with closing(Prefetched(pairs, size)) as read:
            for window in windows(read, size):
                yield from self._window(window)

    def _window(self, pairs):
        tokenizers = self._translator.source_tokenizer, self._translator.target_tokenizer
        end, room = self._translator.engine.models[0].config.end_id, self._buckets[-1]
        sides = [
            tokenizer.encode_many([pair[side].strip() for pair in pairs])
            for side, tokenizer in enumerate(tokenizers)
        ]
        kept = [[[*ids[: room - 1], end] for ids in side] for side in sides]
        cut = [max(0, max(len(side[i]) for side in sides) + 1 - room) for i in range(len(pairs))]
        order = sorted(
            (max(len(kept[0][i]), len(kept[1][i])), i)
            for i in range(len(pairs))
            if sides[0][i] or sides[1][i]
        )
        results, low = [None] * len(pairs), 0
        for bucket in self._buckets:
            members = [i for length, i in order if low < length <= bucket]
            low = bucket
            while members:
                rows = self._translator.engine.rows(bucket)
                size = rows * jax.local_device_count()
                try:
                    self._batch(members[:size], bucket, size, kept, cut, results)
                except jax.errors.JaxRuntimeError as error:
                    self._translator.engine.halve(rows, bucket, error)
                    continue
                members = members[size:]
        return results

    def _batch(self, members, bucket, rows, kept, cut, results):
        arrays, devices = [], jax.local_device_count()
        for side in kept:
            ids = np.full((rows, bucket), self._translator.engine.models[0].config.pad_id, np.int32)
            lengths = np.zeros(rows, np.int32)
            for row, i in enumerate(members):
                lengths[row] = len(side[i])
                ids[row, : lengths[row]] = side[i]
            arrays += [ids, lengths]
        split = (x.reshape(devices, -1, *x.shape[1:]) for x in arrays)
        forced = jax.device_get(self._force(self._translator.engine.variables, *split))
        log_probs, *attention = jax.tree.leaves(
            jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), forced)
        )
        decoding, pieces = self._translator.decoding, self._translator.target_tokenizer
        for row, i in enumerate(members):
            source, target = len(kept[0][i]), len(kept[1][i])
            each = log_probs[row, :target]
            total = float(each.sum())
            penalty = float(length_penalty(float(target), decoding.alpha, decoding.power_penalty))
            results[i] = Scored(
                total,
                total / penalty,
                [pieces.piece(token) for token in kept[1][i]],
                each.tolist(),
                links(attention[0][row, :target, :source]) if self._align else [],
                max(source, target),
                cut[i],
            )


def links(attention: np.ndarray) -> list[tuple[int, int]]:
    """(i, j) for each target token j and the source token i it sees most, ends left out."""
    if attention.shape[1] < 2:
        return []
    best = attention[:-1, :-1].argmax(axis=1)
    return [(int(i), j) for j, i in enumerate(best)]

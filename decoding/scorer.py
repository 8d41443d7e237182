"""Scoring and alignment of given translations: one teacher-forced pass over pairs.

It uses the models, tokenizers and buckets of a Translator.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding.batches import by_bucket, distribute, merge_devices, pad
from decoding.programs import on_devices
from decoding.streaming import windows
from decoding.translator import WINDOW, Translator
from model.constraints import make_rules
from model.hypotheses import length_penalty
from model.scoring import score_targets
from runtime.prefetch import Prefetched


class Scored(NamedTuple):
    """The score of one pair. The last token is the end token; `score` equals that of a search.

    Suppressed pieces (−inf), renormalization and the repetition penalty apply as in a search.
    Length limits, n-gram bans and prefixes only restrict the choice of hypotheses; they do not
    apply.
    """

    log_prob: float
    score: float
    tokens: list[str]
    log_probs: list[float]
    links: list[tuple[int, int]]  # (i, j): target token j attends most to source token i; no ends
    kept: int  # tokens of the longer side after truncation
    cut: int  # tokens truncated from the longer side


class EncodedPair(NamedTuple):
    """Token ids of both sides, truncated, with end tokens."""

    source: list[int]
    target: list[int]
    cut: int  # tokens truncated from the longer side


class Scorer:
    """`scorer.stream(pairs)` with the models, tokenizers and length penalty of a Translator."""

    def __init__(self, translator: Translator, align: bool = False):
        """`align`: compute the alignment links too."""
        self._translator, self._align = translator, align
        engine = translator.engine
        rules = make_rules(engine.models[0].config.end_id, engine.rules.for_scoring())
        weights = None if engine.weights is None else jnp.array(engine.weights)

        def run(variables, *arrays):
            models = list(zip(engine.models, variables, strict=True))
            forced = score_targets(models, *arrays, rules=rules, weights=weights)
            return forced if align else forced.log_probs

        self._force = on_devices(run, (None, 0, 0, 0, 0))

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Scored | None]:
        """The score of each pair, in order; None if both sides are blank. A score is NaN if the
        models' logits are not finite."""
        size = WINDOW * self._translator.decoding.batch_size * jax.local_device_count()
        with closing(Prefetched(pairs, size)) as prefetched:
            for window in windows(prefetched, size):
                yield from self._window(window)

    def _window(self, pairs):
        engine, encoded = self._translator.engine, self._encoded(pairs)
        lengths = [max(len(pair.source), len(pair.target)) if pair else 0 for pair in encoded]
        results: list[Scored | None] = [None] * len(pairs)
        for bucket, lines in by_bucket(lengths, engine.buckets):
            while lines:
                lanes = engine.lanes(bucket)
                capacity = lanes * jax.local_device_count()
                batch = [encoded[i] for i in lines[:capacity]]
                scored = engine.run_or_halve(lanes, bucket, self._batch, bucket, capacity, batch)
                if scored is None:
                    continue  # out of memory: a smaller batch
                for i, one in zip(lines, scored, strict=False):
                    results[i] = one
                lines = lines[capacity:]
        return results

    def _encoded(self, pairs) -> list[EncodedPair | None]:
        """The token ids of each pair; None if both sides are blank."""
        engine = self._translator.engine
        end, room = engine.models[0].config.end_id, engine.buckets[-1]
        tokenizers = self._translator.source_tokenizer, self._translator.target_tokenizer
        sides = [
            tokenizer.encode_many([pair[side].strip() for pair in pairs])
            for side, tokenizer in enumerate(tokenizers)
        ]
        return [
            EncodedPair(
                [*source[: room - 1], end],
                [*target[: room - 1], end],
                max(0, max(len(source), len(target)) + 1 - room),
            )
            if source or target
            else None
            for source, target in zip(*sides, strict=True)
        ]

    def _batch(self, bucket: int, capacity: int, pairs: list[EncodedPair]) -> list[Scored]:
        """The scores of at most `capacity` pairs, computed on all devices."""
        pad_id = self._translator.engine.models[0].config.pad_id
        source = pad([pair.source for pair in pairs], capacity, bucket, pad_id)
        target = pad([pair.target for pair in pairs], capacity, bucket, pad_id)
        arrays = map(distribute, (*source, *target))
        forced = jax.device_get(self._force(self._translator.engine.variables, *arrays))
        log_probs, *attention = map(merge_devices, jax.tree.leaves(forced))
        return [
            self._scored(pair, log_probs[row], attention[0][row] if self._align else None)
            for row, pair in enumerate(pairs)
        ]

    def _scored(self, pair, log_probs, attention):
        decoding, tokenizer = self._translator.decoding, self._translator.target_tokenizer
        source, target = len(pair.source), len(pair.target)
        total = float(log_probs[:target].sum())
        penalty = float(length_penalty(float(target), decoding.alpha, decoding.power_penalty))
        return Scored(
            total,
            total / penalty,
            [tokenizer.piece(token) for token in pair.target],
            log_probs[:target].tolist(),
            [] if attention is None else alignment_links(attention[:target, :source]),
            max(source, target),
            pair.cut,
        )


def alignment_links(attention: np.ndarray) -> list[tuple[int, int]]:
    """(i, j) for each target token j and the source token i that it attends to most, without the
    end tokens. `attention` is [T, S]."""
    if attention.shape[1] < 2:
        return []
    best = attention[:-1, :-1].argmax(axis=1)
    return [(int(i), j) for j, i in enumerate(best)]

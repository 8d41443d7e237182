"""Teacher-forced passes over pairs of token ids: scores and alignment, in batches on all devices.

Axes: B sentences · S source · T target.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax

from data.tokenizer import Tokenizer
from decoding.batches import by_bucket, distribute, merge_devices, pad
from decoding.engine import Engine
from decoding.formats import Hypothesis, Scored
from decoding.programs import on_devices
from model.constraints import RuleOptions, make_rules
from model.encoder_decoder import EncoderDecoder
from model.hypotheses import length_penalty
from model.scoring import attended_tokens, score_targets
from storage.config import DecodingConfig

PROGRAMS = 8  # kept, one for each set of models and of rules that change scores


class EncodedPair(NamedTuple):
    """Token ids of both sides, truncated, with end tokens."""

    source: list[int]
    target: list[int]
    cut: int  # tokens truncated from the longer side


class TeacherForcing:
    """Passes with the models of an engine, and the rules and length penalty of its options."""

    def __init__(
        self, engine: Engine, decoding: DecodingConfig, tokenizers: tuple[Tokenizer, Tokenizer]
    ):
        self._engine, self._decoding, self._tokenizers = engine, decoding, tokenizers

    @cached_property
    def _run(self) -> Callable[..., Any]:
        """The compiled pass. It is made at the first use, because it needs the devices."""
        return scoring_program(tuple(self._engine.models), self._engine.rule_options.for_scoring())

    def pair(self, source: Sequence[int], target: Sequence[int]) -> EncodedPair:
        """The pair of these token ids without end tokens, truncated to the models' max_length."""
        end, room = self._engine.models[0].config.end_id, self._engine.buckets[-1] - 1
        cut = max(0, max(len(source), len(target)) - room)
        return EncodedPair([*source[:room], end], [*target[:room], end], cut)

    def pairs(self, texts: Sequence[tuple[str, str]]) -> list[EncodedPair | None]:
        """The pairs of these texts; None if both sides are blank."""
        sides = [
            tokenizer.encode_many([pair[side].strip() for pair in texts])
            for side, tokenizer in enumerate(self._tokenizers)
        ]
        return [
            self.pair(source, target) if source or target else None
            for source, target in zip(*sides, strict=True)
        ]

    def scores(self, pairs: Sequence[EncodedPair | None]) -> list[Scored | None]:
        """The score of each pair; None for None. A score is NaN if the models' logits are not
        finite."""
        engine = self._engine
        lengths = [max(len(pair.source), len(pair.target)) if pair else 0 for pair in pairs]
        results: list[Scored | None] = [None] * len(pairs)
        for bucket, lines in by_bucket(lengths, engine.buckets):
            while lines:
                lanes = engine.lanes(bucket)
                capacity = lanes * jax.local_device_count()
                together = lines[: capacity * engine.sizes.calls]
                batches = [together[at : at + capacity] for at in range(0, len(together), capacity)]
                run = partial(self._batch_or_halve, lanes, bucket, capacity)
                found = engine.threads.map(run, [[pairs[i] for i in one] for one in batches])
                again = []  # out of memory: in smaller batches
                for batch, scored in zip(batches, found, strict=True):
                    if scored is None:
                        again += batch
                    else:
                        for i, one in zip(batch, scored, strict=True):
                            results[i] = one
                lines = again + lines[len(together) :]
        return results

    def annotated(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source with the scores of their token ids; without a score if no
        hypothesis satisfies the constraints."""
        pairs = [
            self.pair(source, one.ids) if one.score > float("-inf") else None
            for source, each in zip(sources, hypotheses, strict=True)
            for one in each
        ]
        scores = iter(self.scores(pairs))
        return [[one._replace(scored=next(scores)) for one in each] for each in hypotheses]

    def _batch_or_halve(
        self, lanes: int, bucket: int, capacity: int, pairs: list[EncodedPair]
    ) -> list[Scored] | None:
        """`_batch`; None if the devices ran out of memory."""
        return self._engine.batches.run_or_halve(
            lanes, bucket, self._batch, bucket, capacity, pairs
        )

    def _batch(self, bucket: int, capacity: int, pairs: list[EncodedPair]) -> list[Scored]:
        """The scores of at most `capacity` pairs, computed on all devices."""
        engine, pad_id = self._engine, self._engine.models[0].config.pad_id
        source = pad([pair.source for pair in pairs], capacity, bucket, pad_id)
        target = pad([pair.target for pair in pairs], capacity, bucket, pad_id)
        arrays = map(distribute, (*source, *target))
        forced = jax.device_get(self._run(engine.variables, engine.weights, *arrays))
        log_probs, attended = jax.tree.map(merge_devices, forced)
        return [
            self._scored(pair, log_probs[row], [] if attended is None else attended[row].tolist())
            for row, pair in enumerate(pairs)
        ]

    def _scored(self, pair, log_probs, attended):
        decoding, (source_side, target_side) = self._decoding, self._tokenizers
        source, target = len(pair.source), len(pair.target)
        total = float(log_probs[:target].sum())
        penalty = float(length_penalty(float(target), decoding.alpha, decoding.power_penalty))
        inside = attended[: target - 1] if source > 1 else []
        return Scored(
            total,
            total / penalty,
            [target_side.piece(token) for token in pair.target],
            log_probs[:target].tolist(),
            [(i, j) for j, i in enumerate(inside)],
            max(source, target),
            pair.cut,
            [source_side.piece(token) for token in pair.source],
        )


@lru_cache(PROGRAMS)
def scoring_program(models: tuple[EncoderDecoder, ...], options: RuleOptions) -> Callable[..., Any]:
    """(variables, ensemble weights, source, lengths, target, target lengths) → the log-probability
    of each target token, and the source token that it attends to most, without the end token; None
    without cross-attention. Arrays have a leading axis of devices.

    One program computes both, so that all numbers of a pair are equal in every mode.
    """
    rules = make_rules(models[0].config.end_id, options)

    def run(variables, weights, source, lengths, *targets):
        pairs = list(zip(models, variables, strict=True))
        forced = score_targets(pairs, source, lengths, *targets, rules=rules, weights=weights)
        if forced.attention is None:
            return forced.log_probs, None
        return forced.log_probs, attended_tokens(forced.attention, lengths)

    return on_devices(run, (None, None, 0, 0, 0, 0))

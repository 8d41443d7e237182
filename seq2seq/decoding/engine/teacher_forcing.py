"""Teacher-forced passes over pairs of token ids: scores and alignment, in batches on all devices.

Axes: B sentences · S source · T target.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import Any

import jax
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.decoding.engine.buckets import by_bucket, merge_devices, pad
from seq2seq.decoding.engine.encoded_pairs import (
    AffixesOfLine,
    EncodedPair,
    EncodedPairs,
    without_affixes,
)
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.programs import on_copies
from seq2seq.decoding.results import (
    Hypothesis,
    Item,
    Scored,
    Source,
    Translation,
    blank_translation,
)
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.mesh import local_mesh
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import length_penalty
from seq2seq.model.search.scoring import GivenPairs, attended_tokens, score_targets

PROGRAMS = 8  # kept, one for each set of models and of rules that change scores


class TeacherForcing:
    """Passes with the models of an engine, and the rules and length penalty of its options."""

    def __init__(
        self,
        engine: Engine,
        decoding: DecodingConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        affixes_of_line: AffixesOfLine = without_affixes,
    ):
        """`affixes_of_line(number, item)` are the tokens around the texts of a line."""
        self._engine, self._decoding, self._tokenizers = engine, decoding, tokenizers
        self.pairs = EncodedPairs(engine, decoding, tokenizers, affixes_of_line)

    @cached_property
    def _run(self) -> Callable[..., Any]:
        """The compiled pass. It is made at the first use, because it needs the devices."""
        models, options = tuple(self._engine.models), scoring_options(self._engine.options)
        return scoring_program(models, options, self._engine.model_parallel)

    def translations(self, lines: Sequence[tuple[int, Item]]) -> Iterator[dict[int, Translation]]:
        """Each line as a translation whose only hypothesis is its target, with its score, by index,
        as the calls end; blank if both sides are blank."""
        pairs = self.pairs.of_lines(lines)
        yield {
            index: blank_translation(lines[index][1].replaced)
            for index, pair in enumerate(pairs)
            if pair is None
        }
        for group in self.scored(pairs):
            yield {
                index: scored_translation(lines[index][1], pair, scored)
                for index, scored in group.items()
                if (pair := pairs[index])
            }

    def scored(self, pairs: Sequence[EncodedPair | None]) -> Iterator[dict[int, Scored]]:
        """The score of each pair that is not None, by index, as the calls end. A score is NaN if
        the models' logits are not finite."""
        lengths = [pair.length if pair else 0 for pair in pairs]
        for bucket, lines in by_bucket(lengths, self._engine.buckets):
            while lines:
                scores, lines = self._calls(bucket, lines, pairs)
                yield scores

    def _calls(
        self, bucket: int, lines: list[int], pairs: Sequence[EncodedPair | None]
    ) -> tuple[dict[int, Scored], list[int]]:
        """The scores of the first lines, as many as the threads can compute at once, and the lines
        that remain: also those for which memory ran out, in smaller batches."""
        engine, sizes = self._engine, self._engine.sizes
        lanes = sizes.lanes(bucket)
        capacity = sizes.batch(lanes)
        together = lines[: capacity * sizes.calls]
        batches = [
            together[start : start + capacity] for start in range(0, len(together), capacity)
        ]
        run = partial(sizes.run_or_halve, lanes, bucket, self._batch, bucket, capacity)
        scores = engine.threads.map(run, [[pairs[line] for line in batch] for batch in batches])
        results: dict[int, Scored] = {}
        again: list[int] = []
        for batch, scored in zip(batches, scores, strict=True):
            if scored is None:  # out of memory
                again += batch
            else:
                results |= zip(batch, scored, strict=True)
        return results, again + lines[len(together) :]

    def annotated(
        self, sources: Sequence[Source], hypotheses: Sequence[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source with the scores of their token ids; without a score if no
        hypothesis satisfies the search rules."""
        pairs = [
            self.pairs.of_ids(
                source.ids, hypothesis.ids, len(source.forced), len(source.prefix), source.after
            )
            if hypothesis.score > float("-inf")
            else None
            for source, nbest in zip(sources, hypotheses, strict=True)
            for hypothesis in nbest
        ]
        scores = {i: scored for group in self.scored(pairs) for i, scored in group.items()}
        index = count()
        return [
            [hypothesis._replace(scored=scores.get(next(index))) for hypothesis in nbest]
            for nbest in hypotheses
        ]

    def _batch(self, bucket: int, capacity: int, pairs: list[EncodedPair]) -> list[Scored]:
        """The scores of at most `capacity` pairs, computed on all devices."""
        engine, pad_id = self._engine, self._engine.models[0].config.pad_id
        sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
        # [B, S], [B], [B, T], [B]
        padded: list[Any] = [x for ids in sides for x in pad(ids, capacity, bucket, pad_id)]
        free = None
        if self._decoding.forced_end or any(pair.forced for pair in pairs):
            free = np.zeros((capacity, bucket), bool)  # [B, T]
            for row, pair in enumerate(pairs):
                free[row, : pair.forced] = True
                free[row, len(pair.target) - 1] |= pair.forced_end
        after = None
        if any(pair.after for pair in pairs):
            after = np.zeros(capacity, np.int32)  # [B]
            after[: len(pairs)] = [pair.after for pair in pairs]
        marks = None if free is None and after is None else (free, after)
        arrays = jax.tree.map(engine.distribute, (GivenPairs(*padded), marks))
        with engine.exclusive():
            forced = jax.device_get(self._run(engine.variables, engine.options.weights, *arrays))
        log_probs, attended = jax.tree.map(merge_devices, forced)  # [B, T]; [B, T] or None
        return [
            self._scored(pair, log_probs[row], [] if attended is None else attended[row].tolist())
            for row, pair in enumerate(pairs)
        ]

    def _scored(self, pair: EncodedPair, log_probs: np.ndarray, attended: list[int]) -> Scored:
        decoding, (source_side, target_side) = self._decoding, self._tokenizers
        source, target = len(pair.source), len(pair.target)
        total = float(log_probs[:target].sum())
        penalty = float(length_penalty(float(target), decoding.alpha, decoding.power_penalty))
        inside = attended[: target - 1] if source - pair.after > 1 else []
        return Scored(
            log_prob=total,
            score=total / penalty,
            tokens=[target_side.piece(token) for token in pair.target],
            log_probs=log_probs[:target].tolist(),
            links=[(i, j) for j, i in enumerate(inside)],
            source_tokens=[source_side.piece(token) for token in pair.source],
        )


def scored_translation(item: Item, pair: EncodedPair, scored: Scored) -> Translation:
    """A scored pair as a translation with the target of its line."""
    length, ids = len(pair.target), pair.target[:-1]
    text, tokens = item.target or "", pair.length + pair.cut
    hypothesis = Hypothesis(text, scored.score, scored.log_prob, length, ids, scored)
    return Translation([hypothesis], tokens, pair.length, pair.unknown, item.replaced)


def scoring_options(options: SearchOptions) -> SearchOptions:
    """The options that change the scores of given targets, with one value of all others, so that
    these need no other program. A caller's `rules` are assumed to restrict a search only."""
    return SearchOptions(
        max_length=0,
        end_id=options.end_id,
        repetition_penalty=options.repetition_penalty,
        suppress=options.suppress,
        renormalize=options.renormalize,
    )


@lru_cache(PROGRAMS)
def scoring_program(
    models: tuple[EncoderDecoder, ...], options: SearchOptions, model_parallel: int = 1
) -> Callable[..., Any]:
    """(variables, ensemble weights, pairs, marks) → the
    log-probability of each target token, and the source token that it attends to most, of those
    before the end token; None without cross-attention. Arrays have a leading axis of devices.
    `marks` are the target tokens that cost nothing and the numbers of source tokens after the end
    token; None: there are none.

    One program computes both, so that all numbers of a pair are equal in every mode.
    """

    def run(
        variables: Sequence[Any],
        weights: jax.Array | None,
        pairs: GivenPairs,
        marks: tuple[jax.Array | None, jax.Array | None] | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        members = list(zip(models, variables, strict=True))
        free, after = marks or (None, None)
        scores = score_targets(members, pairs, options._replace(weights=weights), free)
        if scores.attention is None:
            return scores.log_probs, None
        to_end = pairs.lengths if after is None else pairs.lengths - after
        return scores.log_probs, attended_tokens(scores.attention, to_end)

    return on_copies(run, (None, None, 0, 0), local_mesh(model_parallel))

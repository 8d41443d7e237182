"""Scoring and alignment of given translations: one teacher-forced pass over pairs of texts.

It uses the models, tokenizers and buckets of a Translator.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing

from decoding.formats import Scored
from decoding.streaming import windows
from decoding.translator import Translator
from runtime.prefetch import Prefetched


class Scorer:
    """`scorer.stream(pairs)` with the models, tokenizers and length penalty of a Translator."""

    def __init__(self, translator: Translator):
        self._translator, self._forcing = translator, translator.forcing

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Scored | None]:
        """The score of each pair, in order; None if both sides are blank. A score is NaN if the
        models' logits are not finite."""
        size = self._translator.engine.sizes.window
        with closing(Prefetched(pairs, size)) as prefetched:
            for window in windows(prefetched, size):
                yield from self._forcing.scores(self._forcing.pairs(window))

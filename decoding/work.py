"""The work of a job: items in, output lines out, with counts, progress and what was cut off."""

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import tee

from decoding.formats import Item, rendered, with_alignment, with_scores
from decoding.scorer import Scorer
from decoding.translator import Translator
from training import hosts

MODES = ("translate", "score", "align")
QUIET = 5.0  # seconds between two lines of progress


class Work:
    """Makes output lines of items, names what was cut off, and counts."""

    def __init__(self, translator: Translator, mode: str, form: str, source: str, start: int,
                 total: int, interactive: bool, keep_texts: bool):
        """Of `total` lines (0: unknown) of `source` from line `start` (from 0) on. Who types them
        is told no speed; the texts are kept where there is a reference to compare them with."""
        self._translator, self._mode, self._form = translator, mode, form
        self._scorer = Scorer(translator, mode == "align") if mode != "translate" else None
        self._source, self._start, self._total = source, start, total
        self._interactive, self._keep_texts = interactive, keep_texts
        self.lines = self.truncated = self.blank = self.skipped = 0
        self.texts = []
        self._started = self._told = time.perf_counter()

    def __call__(self, first: int, items: Iterable[Item]) -> Iterator[str]:
        """The output of items `first`, `first` + 1, …."""
        items, ahead = tee(items)
        number = first = first + self._start
        if self._mode == "translate":
            several = self._translator.decoding.hypotheses > 1
            for item, found in zip(items, self._translator.stream(ahead, first), strict=True):
                self._count(number, found.kept, found.tokens - found.kept)
                if found.hypotheses[0].score == float("-inf"):
                    print(f"{self._source}:{number + 1}: no translation keeps to the rules "
                          "(lengths, n-grams, suppressed pieces)", file=sys.stderr)
                if self._keep_texts:
                    self.texts.append(found.text)
                yield rendered(self._form, number, item, found.hypotheses,
                               found.kept < found.tokens, several)
                number += 1
            return
        pairs = ((item.text, item.target) for item in ahead)
        for item, found in zip(items, self._scorer.stream(pairs, first), strict=True):
            self._count(number, 0 if found is None else found.kept, found and found.cut)
            number += 1
            if found is None:
                yield item.line if self._form in ("jsonl", "tsv") else ""
            elif self._mode == "score":
                yield with_scores(self._form, item, found.score, {
                    "log_prob": found.log_prob, "tokens": found.tokens,
                    "log_probs": found.log_probs, "truncated": found.cut > 0})
            else:
                yield with_alignment(self._form, item, found.links)

    def _count(self, number, kept, cut):
        self.lines += 1
        self.blank += not kept
        if cut:
            self.truncated += 1
            print(f"{self._source}:{number + 1}: {kept + cut} tokens > {kept}, truncated",
                  file=sys.stderr)
        now = time.perf_counter()
        if now - self._told > QUIET and not self._interactive:
            self._told = now
            rate = self.lines / (now - self._started)
            ahead = self._total - (number + 1 - self._start)  # chunks that were there are behind
            left = f", {ahead / rate / hosts.count():,.0f} s left" if self._total else ""
            print(f"{self.lines:,} lines, {rate:,.1f} lines/s{left}", file=sys.stderr)

    def report(self) -> None:
        """The last line of a job."""
        if self._interactive:
            return
        seconds = time.perf_counter() - self._started
        before = f" ({self.skipped} more were there)" if self.skipped else ""
        print(f"{self.lines} lines{before}, {self.blank} blank, {self.truncated} truncated, "
              f"{seconds:.1f} s, {self.lines / seconds:,.1f} lines/s", file=sys.stderr)

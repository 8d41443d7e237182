"""The work of a job: items in, output lines out, with counts, progress and truncated lines."""

from collections import deque
from collections.abc import Iterable, Iterator
from math import isnan

from decoding.engine import diverged
from decoding.formats import Item, rendered, with_alignment, with_scores
from decoding.progress import Progress, note
from decoding.scorer import Scorer
from decoding.translator import Translator

MODES = ("translate", "score", "align")


class Work:
    """Makes output lines of items, names what was truncated, and counts."""

    def __init__(
        self,
        translator: Translator,
        mode: str,
        form: str,
        source: str,
        progress: Progress,
        keep_texts: bool = False,
    ):
        """`source` names the input in messages. `keep_texts` keeps the translations, by number, to
        compare them with references."""
        self._translator, self._mode, self._form = translator, mode, form
        self._scorer = Scorer(translator, mode == "align") if mode != "translate" else None
        self._source, self._progress, self._keep_texts = source, progress, keep_texts
        self.truncated = self.blank = 0
        self.texts: dict[int, str] = {}

    def __call__(self, lines: Iterable[tuple[int, Item]]) -> Iterator[dict[int, str]]:
        """The output of numbered items by number, as it is computed, in any order."""
        groups = self._translated if self._mode == "translate" else self._scored
        for group in groups(lines):
            self._progress.finished(len(group))
            yield group

    def report(self) -> None:
        """The last line of a job."""
        self._progress.report(self.blank, self.truncated)

    def _translated(self, lines):
        items, several = {}, self._translator.decoding.hypotheses > 1

        def remembered():
            for number, item in lines:
                items[number] = item
                yield number, item

        for group in self._translator.results(remembered()):
            texts = {}
            for number in sorted(group):
                found, item = group[number], items.pop(number)
                self._count(number, found.kept, found.tokens - found.kept)
                if found.hypotheses[0].score == float("-inf"):
                    note(
                        f"{self._source}:{number + 1}: no translation satisfies the constraints "
                        "(lengths, n-grams, suppressed pieces)"
                    )
                if self._keep_texts:
                    self.texts[number] = found.text
                texts[number] = rendered(
                    self._form, number, item, found.hypotheses, found.kept < found.tokens, several
                )
            yield texts

    def _scored(self, lines):
        items = deque()

        def pairs():
            for number, item in lines:
                items.append((number, item))
                yield item.text, item.target

        for found in self._scorer.stream(pairs()):
            number, item = items.popleft()
            if found is not None and isnan(found.score):
                raise diverged(number)
            self._count(number, 0 if found is None else found.kept, found and found.cut)
            yield {number: self._rendered(item, found)}

    def _rendered(self, item, found):
        if found is None:
            return item.line if self._form in ("jsonl", "tsv") else ""
        if self._mode == "align":
            return with_alignment(self._form, item, found.links)
        return with_scores(
            self._form,
            item,
            found.score,
            {
                "log_prob": found.log_prob,
                "tokens": found.tokens,
                "log_probs": found.log_probs,
                "truncated": found.cut > 0,
            },
        )

    def _count(self, number, kept, cut):
        self.blank += not kept
        if cut:
            self.truncated += 1
            note(f"{self._source}:{number + 1}: {kept + cut} tokens > {kept}, truncated")

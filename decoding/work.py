"""The work of a job: items in, output lines out; counts, progress and truncated lines."""

from collections import deque
from collections.abc import Iterable, Iterator
from math import isnan

from decoding.calls import nonfinite_error
from decoding.formats import Formats, Item
from decoding.progress import DecodingProgress, note
from decoding.scorer import Scorer
from decoding.translator import Translator

MODES = ("translate", "score", "align")


class Work:
    """Computes the output lines of items, reports truncated lines on stderr, and counts."""

    def __init__(
        self,
        translator: Translator,
        mode: str,
        formats: Formats,
        source: str,
        progress: DecodingProgress,
        keep_texts: bool = False,
        annotate: bool = False,
    ):
        """`source` names the input in messages. `keep_texts` keeps the translations in `texts`, to
        compare them with references. `annotate` adds token log-probabilities and alignments."""
        self._translator, self._mode, self._formats = translator, mode, formats
        self._format, self._annotate = formats.output, annotate
        self._scorer = Scorer(translator) if mode != "translate" else None
        self._source, self._progress, self._keep_texts = source, progress, keep_texts
        self.truncated = self.blank = 0
        self.texts: dict[int, str] = {}  # by line number

    def __call__(self, lines: Iterable[tuple[int, Item]]) -> Iterator[dict[int, str]]:
        """The output of numbered items by number, as it is computed, in any order."""
        groups = self._translate if self._mode == "translate" else self._score
        for group in groups(lines):
            self._progress.add_done(len(group))
            yield group

    @property
    def facts(self) -> list[str]:
        """What determines the output for a line besides the translator."""
        names = [self._mode, self._formats.input.name, self._formats.output.name]
        return [*names, "annotate"] if self._annotate else names

    def report(self) -> None:
        """Write the last line of a job."""
        self._progress.report(self.blank, self.truncated)

    def _translate(self, lines):
        pending, nbest = {}, self._translator.decoding.hypotheses > 1

        def remembered():
            for number, item in lines:
                pending[number] = self._formats.output_item(item)
                yield number, item

        for group in self._translator.results(remembered(), self._annotate):
            outputs = {}
            for number in sorted(group):
                result, item = group[number], pending.pop(number)
                self._count(number, result.kept, result.tokens - result.kept)
                if result.hypotheses[0].score == float("-inf"):
                    note(
                        f"{self._source}:{number + 1}: no translation satisfies the constraints "
                        "(lengths, n-grams, suppressed pieces)"
                    )
                if self._keep_texts:
                    self.texts[number] = result.text
                outputs[number] = self._format.render(
                    number, item, result.hypotheses, result.kept < result.tokens, nbest
                )
            yield outputs

    def _score(self, lines):
        pending = deque()

        def pairs():
            for number, item in lines:
                pending.append((number, self._formats.output_item(item)))
                yield item.text, item.target

        for result in self._scorer.stream(pairs()):
            number, item = pending.popleft()
            if result is not None and isnan(result.score):
                raise nonfinite_error(number)
            self._count(number, 0 if result is None else result.kept, result and result.cut)
            yield {number: self._render_scored(item, result)}

    def _render_scored(self, item, result):
        if result is None:
            return self._format.render_unscored(item)
        if self._mode == "align":
            return self._format.render_alignment(item, result.links)
        fields = result.fields | {"truncated": result.cut > 0}
        return self._format.render_score(item, result.score, fields)

    def _count(self, number, kept, cut):
        self.blank += not kept
        if cut:
            self.truncated += 1
            note(f"{self._source}:{number + 1}: {kept + cut} tokens > {kept}, truncated")

"""The output lines of a job: translated, scored or aligned items, counted and reported."""

from collections.abc import Iterable, Iterator
from math import isnan

from seq2seq.data.corpora.counts import Note
from seq2seq.data.tokenizers.characters import shown
from seq2seq.data.tokens.character_notes import UNKNOWN_NOTE
from seq2seq.decoding.command.formats import Formats
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.engine.calls import nonfinite_error
from seq2seq.decoding.results import Item, Translation
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.streams import note

MODES = ("translate", "score", "align")


class OutputLines:
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
        self._source, self.progress, self._keep_texts = source, progress, keep_texts
        self.truncated = self.blank = 0
        self.lacking = self.replaced = Note(0, [])  # lines with such characters
        self.texts: dict[int, str] = {}  # by line number

    def __call__(self, items: Iterable[tuple[int, Item]]) -> Iterator[dict[int, str]]:
        """The output of numbered items by number, as it is computed, in any order."""
        pending: dict[int, Item] = {}

        def remembered() -> Iterator[tuple[int, Item]]:
            for number, item in items:
                pending[number] = self._formats.output_item(item)
                yield number, item

        render = self._translated if self._mode == "translate" else self._scored
        for group in self._results(remembered()):
            outputs = {}
            for number in sorted(group):
                self._count(number, group[number])
                outputs[number] = render(number, pending.pop(number), group[number])
            self.progress.add_done(len(outputs))
            yield outputs

    @property
    def settings(self) -> list[str]:
        """Settings besides the translator's in the fingerprint of a job."""
        names = [self._mode, self._formats.input.name, self._formats.output.name]
        return [*names, "annotate"] if self._annotate else names

    def report(self) -> None:
        """Write the last lines of a job."""
        characters = [
            f"{count.lines:,} {text}, such as {', '.join(map(shown, count.examples))}"
            for count, text in (
                (self.lacking, UNKNOWN_NOTE),
                (self.replaced, "lines had such characters, which were replaced or removed"),
            )
            if count.lines
        ]
        self.progress.report(self.blank, self.truncated, characters)

    def _results(self, items: Iterator[tuple[int, Item]]) -> Iterator[dict[int, Translation]]:
        if self._mode == "translate":
            return self._translator.numbered_translations(items, self._annotate)
        return self._translator.numbered_scores(items)

    def _translated(self, number: int, item: Item, translation: Translation) -> str:
        if translation.hypotheses[0].score == float("-inf"):
            note(
                f"{self._source}:{number + 1}: no translation satisfies the search rules "
                "(lengths, n-grams, suppressed pieces)"
            )
        if self._keep_texts:
            self.texts[number] = translation.text
        nbest = self._translator.decoding.hypotheses > 1
        return self._format.render(number, item, translation, nbest)

    def _scored(self, number: int, item: Item, translation: Translation) -> str:
        if isnan(translation.hypotheses[0].score):
            raise nonfinite_error(number)
        scored = translation.hypotheses[0].scored
        if scored is None:
            return self._format.render_unscored(item)
        if self._mode == "align":
            return self._format.render_alignment(item, scored)
        return self._format.render_score(item, scored, translation)

    def _count(self, number: int, translation: Translation) -> None:
        tokens, kept = translation.tokens, translation.kept
        self.blank += not kept
        if translation.unknown:
            self.lacking = self.lacking.merged(Note(1, list(translation.unknown)))
        if translation.replaced:
            self.replaced = self.replaced.merged(Note(1, list(translation.replaced)))
        if translation.truncated:
            self.truncated += 1
            note(f"{self._source}:{number + 1}: {tokens} tokens > {kept}, truncated")

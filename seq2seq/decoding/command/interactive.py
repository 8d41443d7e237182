"""The interactive session of decode.py: a prompt for each sentence, n-best lists, alignments.

Prompts and alignments are written to stderr, translations to stdout.
"""

import sys
from collections.abc import Callable, Iterator

from seq2seq.decoding.command.formats import Text
from seq2seq.decoding.command.inputs import NumberedItems
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.results import Item, Translation
from seq2seq.decoding.translator import Translator

ALIGN = ":align"  # a line that is exactly this; with a space before it, it is a sentence


class Terminal(Text):
    """Text; several translations of a sentence are a list with their ranks and scores."""

    has_nbest = True

    def render(self, number: int, item: Item, translation: Translation, nbest: bool) -> str:
        if not nbest or not item.text.strip():
            return translation.text
        return "\n".join(
            f"{rank:2}  {hypothesis.score:9.4f}  {hypothesis.text}"
            for rank, hypothesis in enumerate(translation.hypotheses, 1)
        )


class Session:
    """Prompts for sentences, and shows the alignment of the last one on request."""

    def __init__(self, align: Callable[[int, Item], str] | None):
        """`align` returns the alignment of an item with its number; None: not supported."""
        self._align = align
        self._last: tuple[int, Item] | None = None

    def sentences(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines that are not commands. A prompt is written before each line is read."""
        command = f" {ALIGN} shows the alignment of the last translation." if self._align else ""
        show(f"Enter one sentence per line.{command} Ctrl-D ends the session.")
        while True:
            show("> ", end="")
            line = next(lines, None)
            if line is None:
                show("")
                return
            if line == ALIGN and self._align:
                show(self._align(*self._last) if self._last else "no translation to align yet")
            else:
                yield line

    def answers(self, items: NumberedItems, output_lines: OutputLines) -> Iterator[str]:
        """The output of each item, which is computed before the next one is read."""
        for number, item in items:
            self._last = number, item
            for group in output_lines([(number, item)]):
                yield from group.values()


def alignment_text(translator: Translator, number: int, item: Item) -> str:
    """A line for each token of the best translation: the token, and the source token with the
    largest attention weight."""
    (translation,) = translator.stream([item], number, annotate=True)
    scored = translation.hypotheses[0].scored
    if scored is None or not scored.links:
        return "the last translation is empty"
    return "\n".join(f"{scored.tokens[j]} ← {scored.source_tokens[i]}" for i, j in scored.links)


def show(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)

"""A line and its results: Item (text), Source (token ids), and Translation with its Hypotheses.

The engine computes Hypotheses on devices (model/hypotheses.py) and returns them as Hypothesis
without a text, which the Translator adds.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Item(NamedTuple):
    """One input line, parsed by its format."""

    text: str
    line: str  # unchanged
    prefix: str = ""
    target: str = ""


def as_item(line: tuple[int, str | Item]) -> tuple[int, Item]:
    """A numbered line as an item. TypeError if it is neither a string nor an item."""
    number, item = line
    if isinstance(item, str):
        item = Item(item, item)
    if not isinstance(item, Item):
        raise TypeError(f"lines[{number}] must be a string, got {type(item).__name__} ({item!r})")
    return number, item


class Source(NamedTuple):
    """One input line as token ids without the end token; a blank line has none."""

    number: int  # of the line, from 0; the random keys of samples depend on it
    ids: Sequence[int]
    prefix: Sequence[int] = ()  # tokens with which its translation must begin
    cut: int = 0  # tokens that were truncated

    @property
    def length(self) -> int:
        """Tokens with the end token; 0 for a blank line."""
        return len(self.ids) + 1 if self.ids else 0


class Scored(NamedTuple):
    """The teacher-forced pass over a hypothesis; its score equals that of a search.

    Suppressed pieces (−inf), renormalization and the repetition penalty apply as in a search.
    Length limits, n-gram bans and prefixes only restrict the choice of hypotheses; they do not
    apply. The last token of each side is the end token.
    """

    log_prob: float
    score: float
    tokens: list[str]
    log_probs: list[float]
    # (i, j): target token j attends most to source token i; no ends. Empty without cross-attention.
    links: list[tuple[int, int]]
    source_tokens: list[str]


class Hypothesis(NamedTuple):
    """One translation; `score` is `log_prob` over a length penalty, and a search sorts by it."""

    text: str
    score: float
    log_prob: float = 0.0
    length: int = 0  # tokens, with the end token
    ids: Sequence[int] = ()  # without the end token
    scored: Scored | None = None  # the teacher-forced pass over `ids`, if it was requested


class Translation(NamedTuple):
    """The hypotheses of one line, best first (samples: in the order drawn); at least one.

    Lengths are those of the source with the end token. Of a scored pair: its target is the only
    hypothesis, and lengths are those of the longer side.
    """

    hypotheses: list[Hypothesis]
    tokens: int  # length before truncation; 0 for a blank line
    kept: int  # length after truncation

    @property
    def text(self) -> str:
        """The text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def truncated(self) -> bool:
        """Whether tokens were truncated."""
        return self.kept < self.tokens


def blank_translation() -> Translation:
    """The translation of a blank line, which is not searched."""
    return Translation([Hypothesis("", 0.0)], 0, 0)

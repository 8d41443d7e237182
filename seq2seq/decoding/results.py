"""A line and its results: Item (text), Source (token ids), and Translation with its Hypotheses.

The engine computes Hypotheses on devices (model/search/hypotheses.py) and returns them as
Hypothesis without a text, which the Translator adds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq.data.tokenizers.tokenizer import Tokenizer

KEEPS_SPACES = "tokenizer_json", "bytes"  # kinds of tokenizers: byte-level BPE, bytes


class Item(NamedTuple):
    """One input line, parsed by its format."""

    text: str
    line: str  # unchanged
    prefix: str | None = None  # of the translation; None: that of the job
    target: str | None = None
    source_language: str = ""  # empty: that of the job
    target_language: str = ""
    source_prefix: str | None = None  # text before that of the line; None: that of the job
    replaced: tuple[str, ...] = ()  # characters that are no longer in the text


def source_text(item: Item, tokenizer: Tokenizer) -> str:
    """The text of a line with its source prefix; empty for a blank line."""
    text = stripped(item.text, tokenizer)
    return f"{item.source_prefix or ''}{text}" if text.strip() else ""


def stripped(text: str, tokenizer: Tokenizer) -> str:
    """The text without white space around it, which counts for some pretrained tokenizers only."""
    return text if tokenizer.kind in KEEPS_SPACES else text.strip()


def as_item(line: tuple[int, str | Item]) -> tuple[int, Item]:
    """A numbered line as an item. Raises as `check_text` if it is neither a string nor an item."""
    number, item = line
    texts: list[object] = [item]
    if isinstance(item, Item):
        prefixes = (text for text in (item.prefix, item.source_prefix) if text is not None)
        texts = [item.text, *prefixes]
    for text in texts:
        check_text(f"lines[{number}]", text)
    return number, Item(item, item) if isinstance(item, str) else item


def as_pair(numbered: tuple[int, tuple[str, str]]) -> tuple[str, str]:
    """A pair of texts without its number. Raises as `check_text` unless it is two strings."""
    number, pair = numbered
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"pairs[{number}] must be (source, target), got {pair!r}")
    for text in pair:
        check_text(f"pairs[{number}]", text)
    return pair


def check_text(name: str, text: Any) -> None:
    """TypeError unless `text` is a string, ValueError if it has a lone surrogate, which is no
    character."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, got {type(text).__name__} ({text!r})")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate: expected text that UTF-8 can encode, got "
            f"{text[error.start]!r} at character {error.start}; replace it, for example with "
            "text.encode('utf-8', 'replace').decode()"
        ) from None


class Source(NamedTuple):
    """One input line as token ids without the end token; a blank line has none."""

    number: int  # of the line, from 0; the random keys of samples depend on it
    ids: Sequence[int]
    prefix: Sequence[int] = ()  # tokens with which its translation must begin
    cut: int = 0  # tokens that were truncated
    forced: Sequence[int] = ()  # tokens before the prefix, which cost nothing
    after: Sequence[int] = ()  # tokens of the source after its end token
    unknown: tuple[str, ...] = ()  # characters of the text that the vocabulary lacks
    replaced: tuple[str, ...] = ()  # as in Item

    @property
    def length(self) -> int:
        """Tokens with the end token; 0 for a blank line."""
        return len(self.ids) + 1 + len(self.after) if self.ids else 0


class Scored(NamedTuple):
    """The teacher-forced pass over a hypothesis; its score equals that of a search.

    Suppressed pieces (−inf), renormalization, the repetition penalty and tokens that cost nothing
    (config.data.target_begin, config.decoding.forced_prefix and forced_end) apply as in a search.
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
    utility: float | None = None  # expected, of the one that decoding.mbr has chosen


class Translation(NamedTuple):
    """The hypotheses of one line, best first (samples: in the order drawn); at least one.

    Lengths are those of the source with the end token. Of a scored pair: its target is the only
    hypothesis, and lengths are those of the longer side.
    """

    hypotheses: list[Hypothesis]
    tokens: int  # length before truncation; 0 for a blank line
    kept: int  # length after truncation
    unknown: tuple[str, ...] = ()  # characters of the texts that the vocabulary lacks
    replaced: tuple[str, ...] = ()  # characters of the source that decoding.clean_source replaced

    @property
    def text(self) -> str:
        """The text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def truncated(self) -> bool:
        """Whether tokens were truncated."""
        return self.kept < self.tokens


def blank_translation(replaced: tuple[str, ...] = ()) -> Translation:
    """The translation of a blank line, which is not searched."""
    return Translation([Hypothesis("", 0.0)], 0, 0, replaced=replaced)

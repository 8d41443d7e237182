"""Notes on the texts of training data: characters that a vocabulary lacks, targets it rewrites."""

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np
from jaxtyping import Int64

from seq2seq.data.corpora.counts import EXAMPLES, Note, merged_notes
from seq2seq.data.tokenizers.characters import characters_of, shown
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokens.affixes import Affixes
from seq2seq.data.tokens.pairs import Ragged

UNKNOWN_NOTE = "lines have characters that the vocabulary lacks"
REWRITTEN_NOTE = (
    "target lines are rewritten by the vocabulary, so that no translation can equal them"
)
SHOWN = 30  # characters of a rewritten text in a message


class PairTexts(Protocol):
    """Text that can be encoded: a CollectedBlock or a Corpus."""

    @property
    def source(self) -> list[str]: ...

    @property
    def target(self) -> list[str]: ...

    @property
    def loss_weights(self) -> array | None: ...


def text_notes(
    texts: PairTexts,
    encoded: tuple[Ragged, Ragged, Int64[np.ndarray, " P"]],
    tokenizers: tuple[Tokenizer, Tokenizer],
    affixes: Affixes,
) -> dict[str, Note]:
    """The lines of either side with characters that the vocabulary lacks, and the targets that no
    translation can equal, because the vocabulary rewrites them. `encoded` are the ids of both
    sides, and the indices in `texts`."""
    notes: dict[str, Note] = {}
    source, target, kept = encoded
    source_characters, target_characters = map(characters_of, tokenizers)
    around = len(affixes.source_begin), len(affixes.source_end)
    for i, ids in zip(kept.tolist(), _texts_of(source, *around), strict=True):
        if unknown := source_characters.unknown(texts.source[i], ids):
            _note(notes, f"source {UNKNOWN_NOTE}", map(shown, unknown))
    for i, ids in zip(kept.tolist(), _texts_of(target, len(affixes.target_begin)), strict=True):
        text = texts.target[i]
        if unknown := target_characters.unknown(text, ids):
            _note(notes, f"target {UNKNOWN_NOTE}", map(shown, unknown))
        elif (again := target_characters.rewritten(text, ids)) is not None:
            _note(notes, REWRITTEN_NOTE, [difference(text, again)])
    return notes


def _texts_of(sequences: Ragged, before: int, after: int = 0) -> Iterator[list[int]]:
    """The ids of each text, without those before and after it."""
    offsets = sequences.offsets.tolist()
    for start, end in pairwise(offsets):
        yield sequences.ids[start + before : end - after].tolist()


def difference(text: str, other: str) -> str:
    """The words in which two texts differ first, as 'a' → 'b'."""
    words, others = text.split(), other.split()
    at = next((i for i, pair in enumerate(zip(words, others)) if pair[0] != pair[1]), 0)  # noqa: B905
    sides = (" ".join(side[at : at + 2])[:SHOWN] for side in (words, others))
    return " → ".join(map(repr, sides))


def _note(notes: dict[str, Note], name: str, examples: Iterable[str]) -> None:
    notes |= merged_notes(notes, {name: Note(1, list(examples)[:EXAMPLES])})

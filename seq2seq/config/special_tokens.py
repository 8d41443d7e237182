"""The special tokens: padding, start, end and unknown; their ids and their texts."""

from typing import NamedTuple


class Special(NamedTuple):
    """The ids of the special tokens; by default those of every vocabulary trained here."""

    pad: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


PAD, START, END, UNKNOWN = OUR_IDS = Special()
SPECIALS = len(OUR_IDS)
LIST_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # as in SentencePiece
UNKNOWN_TEXT = "⁇"  # of the unknown token in decoded text

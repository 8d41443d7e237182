"""Pieces of SentencePiece with the ids of a vocab.json: MarianMT and M2M-100.

In MarianMT the tag of a target language (">>deu<<") at the start of a source is one token. In
M2M-100 a language is a piece ("__de__") that no text contains.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from seq2seq.config.special_tokens import UNKNOWN_TEXT
from seq2seq.data.tokenizers.sentencepiece_model import packed, unpacked
from seq2seq.data.tokenizers.sentencepiece_tokenizer import TAG
from seq2seq.data.tokenizers.tokenizer import gaps

START, END, UNKNOWN, PAD = "<s>", "</s>", "<unk>", "<pad>"  # the special tokens of transformers
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
OLD_PAD = "<old-pad>"  # the <pad> of an exported run: in MarianMT <pad> is the last piece


class LookupTokenizer:
    """A SentencePiece model and the vocabulary with the ids of its pieces."""

    kind: str
    language: re.Pattern[str]  # the piece of a language; its code is the group

    def __init__(self, model: bytes, vocabulary: dict[str, int]):
        """ValueError if the vocabulary lacks a special piece or has an id twice."""
        from sentencepiece import SentencePieceProcessor

        if not isinstance(vocabulary, dict) or any(type(i) is not int for i in vocabulary.values()):
            raise ValueError("expected an object of pieces and integer ids")
        if LONE_SURROGATE.search("".join(vocabulary)):
            raise ValueError("a piece has a lone surrogate: expected text that UTF-8 can encode")
        if missing := {END, UNKNOWN} - set(vocabulary):
            raise ValueError(f"the vocabulary lacks {' and '.join(sorted(missing))}")
        self._processor = SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.model, self.vocabulary = model, vocabulary
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        if len(self._pieces) < len(vocabulary) or min(self._pieces) < 0:
            raise ValueError("the vocabulary has an id twice, or a negative one")
        self.size = max(self._pieces) + 1
        self._unknown = vocabulary[UNKNOWN]
        codes = {self.language.fullmatch(piece): i for piece, i in vocabulary.items()}
        self.languages: Mapping[str, int] = {code[1]: i for code, i in codes.items() if code}
        self.without_piece = gaps(self._pieces.keys())
        self._special = {vocabulary.get(name) for name in (END, PAD, START)}
        # SentencePiece returns unknown characters as they are, so a text may have any "piece".
        self._in_text = {piece: i for piece, i in vocabulary.items() if i not in self._special}

    @classmethod
    def load(cls, serialized: bytes) -> Self:
        """The inverse of `serialized`. ValueError or RuntimeError if the content is damaged."""
        model, content = unpacked(serialized)
        return cls(model, content["vocabulary"])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        lines = self._processor.encode(list(texts), out_type=str)
        return [[self._in_text.get(piece, self._unknown) for piece in line] for line in lines]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without padding, start and end; the unknown token becomes ⁇."""
        text = ""
        run: list[str] = []  # pieces since the last unknown token
        for i in ids:
            if i == self._unknown:
                text += self._processor.decode_pieces(run) + UNKNOWN_TEXT + " "
                run = []
            elif i not in self._special:
                run.append(self._pieces.get(int(i), ""))
        text += self._processor.decode_pieces(run)
        return text.replace("▁", " ").replace("\n", " ").replace("\r", " ").strip()

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""
        return self._pieces.get(token, UNKNOWN)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return self.vocabulary.get(piece)

    def serialized(self) -> bytes:
        """Both files as one JSON document, the argument of `load`."""
        return packed(self.model, {"vocabulary": self.vocabulary})


class MarianTokenizer(LookupTokenizer):
    """One side of MarianMT: `source.spm` or `target.spm` with its vocabulary."""

    kind = "marian"
    language = re.compile(">>(.+)<<", re.DOTALL)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores; a tag at the start of a text is one token."""
        tags = [TAG.match(text) for text in texts]
        rests = [text[tag.end() :] if tag else text for text, tag in zip(texts, tags, strict=True)]
        return [
            [self._in_text.get(tag.group(), self._unknown), *ids] if tag else ids
            for tag, ids in zip(tags, super().encode_many(rests), strict=True)
        ]


class M2MTokenizer(LookupTokenizer):
    """The tokenizer of M2M-100; its vocabulary includes the codes of the languages."""

    kind = "m2m"
    language = re.compile("__(.+)__", re.DOTALL)

    def __init__(self, model: bytes, vocabulary: dict[str, int]):
        super().__init__(model, vocabulary)
        codes = set(self.languages.values())
        self._special |= codes  # a translation begins with one
        self._in_text = {piece: i for piece, i in self._in_text.items() if i not in codes}


def with_appended_pad(tokenizer: MarianTokenizer, token: int) -> MarianTokenizer:
    """The same tokenizer with <pad> at the id `token`; an existing <pad> is renamed OLD_PAD."""
    renamed = {OLD_PAD if piece == PAD else piece: i for piece, i in tokenizer.vocabulary.items()}
    return MarianTokenizer(tokenizer.model, renamed | {PAD: token})


def without_appended_pad(tokenizer: MarianTokenizer) -> MarianTokenizer:
    """The inverse of `with_appended_pad`."""
    return MarianTokenizer(
        tokenizer.model,
        {
            PAD if piece == OLD_PAD else piece: i
            for piece, i in tokenizer.vocabulary.items()
            if piece != PAD
        },
    )

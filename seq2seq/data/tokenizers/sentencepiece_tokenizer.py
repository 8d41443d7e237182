"""SentencePiece tokenizers: unigram and bpe.

SentencePiece normalises text with the rules of the model (data.normalization) and makes one space
of several, so decoding returns normalised text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from seq2seq.config.special_tokens import END, PAD, START
from seq2seq.data.tokenizers.sentencepiece_model import USER_DEFINED, read_pieces
from seq2seq.data.tokenizers.tokenizer import one_line

BOUNDARY = "▁"  # precedes each word of a text that SentencePiece has normalised
TAG = re.compile(r">>.*?<<", re.DOTALL)  # the tag of a target language in MarianMT


class SentencePieceTokenizer:
    """Subwords of a SentencePiece model; `model` is the content of its .model file.

    A user-defined piece `>>…<<` at the start of a text has no boundary piece before it, as in
    MarianMT.
    """

    languages: Mapping[str, int] = {}
    without_piece = ()

    def __init__(self, kind: str, model: bytes):
        from sentencepiece import SentencePieceProcessor

        self.kind, self._model = kind, model
        self._processor = SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.size = self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self._without_boundary(self._processor.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return list(map(self._without_boundary, self._processor.encode(list(texts))))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without padding, start and end; the unknown token becomes ⁇."""
        kept = [int(i) for i in ids if i not in (PAD, START, END)]
        return one_line(self._processor.decode(kept))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id."""
        return self._processor.id_to_piece(token)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        token = self._processor.piece_to_id(piece)
        return token if self.piece(token) == piece else None

    @cached_property
    def user_defined(self) -> frozenset[str]:
        """The pieces that are never split."""
        pieces = read_pieces(self._model)
        return frozenset(piece.text for piece in pieces if piece.type == USER_DEFINED)

    @cached_property
    def tags(self) -> frozenset[int]:
        """The ids of the user-defined pieces >>…<<."""
        return frozenset(
            self._processor.piece_to_id(p) for p in self.user_defined if TAG.fullmatch(p)
        )

    def _without_boundary(self, ids: list[int]) -> list[int]:
        """The ids of a text without the boundary before a tag at its start."""
        starts_with_tag = len(ids) > 1 and ids[1] in self.tags and ids[0] == self.id_of(BOUNDARY)
        return ids[1:] if starts_with_tag else ids

    def serialized(self) -> bytes:
        """The content of the .model file, the argument of the constructor."""
        return self._model

"""SentencePiece models with other ids than their own: T5, MADLAD, NLLB, mBART and Pegasus.

The id of a piece is SentencePiece's plus an offset. Special tokens, codes of languages and T5's
sentinels have ids of their own. They stand for nothing in a text: a text that spells one is split
into pieces like any other text, and decoding drops them.
"""

from collections.abc import Iterable, Mapping, Sequence

from seq2seq.data.tokenizers.languages import languages_of
from seq2seq.data.tokenizers.sentencepiece_model import packed, unpacked, with_control_pieces
from seq2seq.data.tokenizers.tokenizer import gaps, one_line

UNKNOWN = "<unk>"


class OffsetTokenizer:
    """A SentencePiece model, the offset of its ids, and the ids of the `special` pieces."""

    kind = "sentencepiece_ids"

    def __init__(self, model: bytes, offset: int, special: Mapping[str, int]):
        """`special` has <unk>, whose id becomes that of SentencePiece's unknown piece.

        ValueError or RuntimeError if the model is damaged or an id stands for two pieces.
        """
        from sentencepiece import SentencePieceProcessor

        if not isinstance(special, Mapping) or any(type(i) is not int for i in special.values()):
            raise ValueError("expected an object of special pieces and integer ids")
        if type(offset) is not int or min(offset, *special.values()) < 0:
            raise ValueError("expected ids and an offset of at least 0")
        if UNKNOWN not in special:
            raise ValueError(f"the special pieces lack {UNKNOWN}")
        self.model, self.offset, self.special = model, offset, dict(special)
        self._names = {i: piece for piece, i in special.items()}
        if len(self._names) < len(special):
            raise ValueError("two special pieces have the same id")
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)
        own = range(processor.get_piece_size())
        self.model_size = len(own)  # special pieces from offset + model_size on are not in it
        texts = processor.id_to_piece([*own])
        is_text = [
            not (processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i))
            for i in own
        ]
        matched = {i for i, text in enumerate(texts) if is_text[i] and text in special}
        if matched:  # a text could have them
            processor.LoadFromSerializedProto(with_control_pieces(model, matched))
        self._processor, self._own_unknown = processor, processor.unk_id()
        self._texts = {
            i + offset: text for i, text in enumerate(texts) if is_text[i] and i not in matched
        }
        if twice := self._texts.keys() & self._names.keys():
            raise ValueError(
                f"the id {min(twice)} stands for {self._texts[min(twice)]!r} and for "
                f"{self._names[min(twice)]!r}"
            )
        self._ids = {text: i for i, text in self._texts.items()} | self.special
        self.size = max(self._ids.values()) + 1
        self.languages: Mapping[str, int] = languages_of(special)
        self.without_piece = gaps({*self._texts, *self._names})
        self._unknown = special[UNKNOWN]

    @classmethod
    def load(cls, serialized: bytes) -> "OffsetTokenizer":
        """The inverse of `serialized`. ValueError or RuntimeError if the content is damaged."""
        model, content = unpacked(serialized)
        return cls(model, content["offset"], content["special"])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens and languages."""
        return self._with_offset(self._processor.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return list(map(self._with_offset, self._processor.encode(list(texts))))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without special tokens, languages and sentinels; the unknown token
        becomes ⁇."""
        own = [
            self._own_unknown if i == self._unknown else i - self.offset
            for i in map(int, ids)
            if i == self._unknown or i in self._texts
        ]
        return one_line(self._processor.decode(own))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id, <unk> if it has none."""
        return self._texts.get(token) or self._names.get(token, UNKNOWN)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return self._ids.get(piece)

    def serialized(self) -> bytes:
        """The model and the ids as one JSON document, the argument of `load`."""
        return packed(self.model, {"offset": self.offset, "special": self.special})

    def _with_offset(self, own: list[int]) -> list[int]:
        return [self._unknown if i == self._own_unknown else i + self.offset for i in own]

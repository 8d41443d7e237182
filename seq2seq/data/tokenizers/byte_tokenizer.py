"""The bytes of UTF-8 as tokens: ByT5. There is no vocabulary file; the id of a byte is byte + 3."""

from collections.abc import Iterable, Mapping, Sequence

from seq2seq.config.special_tokens import UNKNOWN_TEXT
from seq2seq.data.tokenizers.tokenizer import one_line

SPECIAL = ("<pad>", "</s>", "<unk>")
UNKNOWN = 2
BYTES = range(3, 3 + 256)  # the ids of bytes
SENTINELS = 125  # <extra_id_0> to <extra_id_124>
PIECES = (
    *SPECIAL,
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *(f"<extra_id_{k}>" for k in range(SENTINELS)),
)


class ByteTokenizer:
    """Bytes; the texts of special tokens and sentinels in a text are bytes like any others."""

    kind = "bytes"
    size = len(PIECES)
    languages: Mapping[str, int] = {}
    without_piece = ()

    @classmethod
    def load(cls, serialized: bytes) -> "ByteTokenizer":
        """The inverse of `serialized`. ValueError if there is any content."""
        if serialized:
            raise ValueError(f"expected an empty vocabulary file, got {len(serialized)} bytes")
        return cls()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return [byte + BYTES.start for byte in text.encode("utf-8")]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids without special tokens and sentinels; bytes that are not UTF-8 are
        dropped, and the unknown token becomes ⁇."""
        text = b""
        for i in map(int, ids):
            if i in BYTES:
                text += bytes([i - BYTES.start])
            elif i == UNKNOWN:
                text += UNKNOWN_TEXT.encode("utf-8")
        return one_line(text.decode("utf-8", errors="ignore"))

    def piece(self, token: int) -> str:
        """The vocabulary entry of an id, <0x41> for the byte 65."""
        return PIECES[token] if token < len(PIECES) else PIECES[UNKNOWN]

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if the vocabulary does not have it."""
        return PIECES.index(piece) if piece in PIECES else None

    def serialized(self) -> bytes:
        """Nothing, the argument of `load`."""
        return b""

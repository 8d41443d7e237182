"""The tokenizer of a MarianMT directory: SentencePiece pieces, but the ids of vocab.json.

A target language's tag (">>deu<<") at the start of a source is looked up whole.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from data.errors import CHECKPOINT, UserError
from data.tokenizer import UNKNOWN_TEXT

TAG = re.compile(r">>.+<<")


class MarianTokenizer:
    """One side: `source.spm` or `target.spm` with its vocabulary."""

    kind = "marian"

    def __init__(self, model: bytes, vocabulary: dict[str, int]):
        from sentencepiece import SentencePieceProcessor
        self._processor = SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self._ids = vocabulary
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        self.size = max(self._pieces) + 1
        self._unknown = vocabulary["<unk>"]
        self._special = {vocabulary.get(name) for name in ("</s>", "<pad>", "<s>")}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        tags = [TAG.match(text) for text in texts]
        rests = [text[tag.end():] if tag else text for text, tag in zip(texts, tags, strict=True)]
        pieces = self._processor.encode(rests, out_type=str)
        return [[self._ids.get(piece, self._unknown) for piece in
                 ([tag.group()] if tag else []) + line]
                for tag, line in zip(tags, pieces, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; padding, start and end are dropped, unknown is ⁇."""
        text, run = "", []
        for i in ids:
            if i == self._unknown:
                text += self._processor.decode_pieces(run) + UNKNOWN_TEXT + " "
                run = []
            elif i not in self._special:
                run.append(self._pieces.get(int(i), ""))
        text += self._processor.decode_pieces(run)
        return text.replace("▁", " ").replace("\n", " ").replace("\r", " ").strip()

    def piece(self, token: int) -> str:
        """The text of one id as the vocabulary has it."""
        return self._pieces.get(token, "<unk>")

    def id_of(self, piece: str) -> int | None:
        """The id of a piece, None if it is none."""
        return self._ids.get(piece)


def load_marian_tokenizers(directory: Path) -> tuple[MarianTokenizer, MarianTokenizer]:
    """Those of source and target. UserError(CHECKPOINT) for a file that is missing or damaged."""
    sides = []
    for side in ("source", "target"):
        vocabulary = directory / "vocab.json"
        if side == "target" and (directory / "target_vocab.json").exists():
            vocabulary = directory / "target_vocab.json"
        model = directory / f"{side}.spm"
        try:
            ids = json.loads(vocabulary.read_text(encoding="utf-8"))
            sides.append(MarianTokenizer(model.read_bytes(), ids))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise UserError(CHECKPOINT, f"{directory}: {model.name} or {vocabulary.name} cannot be "
                            f"read: {error}") from None
    return sides[0], sides[1]

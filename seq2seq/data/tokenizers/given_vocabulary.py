"""A vocabulary from a SentencePiece model of the user.

Padding, start, end and unknown become the ids 0 to 3, as in every vocabulary trained here, because
both sides of a model have the same special ids. The other pieces keep their order and their
scores, so texts are split as by the original model. Its own special tokens may have any ids and
names; padding, start and end may be missing.
"""

from collections.abc import Sequence

from seq2seq.config.data_config import SUBWORD_TOKENIZERS
from seq2seq.config.special_tokens import LIST_SPECIALS
from seq2seq.data.tokenizers.sentencepiece_model import model_type, read_pieces, with_special_pieces
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.paths import expand_path


def read_own_tokenizers(files: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers (source, target) of two SentencePiece models; the same object twice for one.

    UserError(DATA) with the name of the file if it is not a unigram or bpe model.
    """
    tokenizers = [read_own_tokenizer(file) for file in files]
    return tokenizers[0], tokenizers[-1]


def read_own_tokenizer(file: str) -> SentencePieceTokenizer:
    """The tokenizer of a SentencePiece model with the special ids of this project."""
    from sentencepiece import SentencePieceProcessor

    try:
        with open(expand_path(file), "rb") as opened:
            model = opened.read()
    except OSError as error:
        raise _unusable(file, f"cannot be read ({error.strerror})") from None
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise _unusable(file, "is not a SentencePiece model") from None
    if (kind := model_type(model)) not in SUBWORD_TOKENIZERS:
        raise _unusable(file, f"is a SentencePiece model of type {kind}")
    special = {processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()}
    pieces = [piece for i, piece in enumerate(read_pieces(model)) if i not in special]
    for piece in pieces:
        if piece.text in LIST_SPECIALS:
            raise _unusable(file, f"has {piece.text} as a piece of text, not as a special token")
    return SentencePieceTokenizer(kind, with_special_pieces(model, LIST_SPECIALS, pieces))


def _unusable(file: str, reason: str) -> UserError:
    expected = "expected a unigram or bpe model that spm_train wrote (a .model file)"
    return UserError(DATA, f"config.data.vocab: {file} {reason}: {expected}")

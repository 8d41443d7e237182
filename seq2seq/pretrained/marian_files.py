"""The vocabularies of a MarianMT directory."""

from pathlib import Path

from seq2seq.data.tokenizers.marian_tokenizer import END, PAD, UNKNOWN, MarianTokenizer
from seq2seq.pretrained.json_fields import JsonFields, read_bytes, read_json
from seq2seq.pretrained.tokenizer_files import check_tokenizer_class
from seq2seq.runtime.errors import CHECKPOINT, UserError

FILES = "tokenizer_config.json", "source.spm", "target.spm", "vocab.json", "target_vocab.json"


def load_marian_tokenizers(directory: Path) -> tuple[MarianTokenizer, MarianTokenizer]:
    """The tokenizers (source, target). UserError(CHECKPOINT) if a file is missing or damaged."""
    check_tokenizer_class(directory, ("MarianTokenizer",))
    path = directory / "tokenizer_config.json"
    if path.exists():
        fields = JsonFields(path, read_json(path))
    else:
        exists = (directory / "target_vocab.json").exists()
        fields = JsonFields(path, {"separate_vocabs": exists})
    names = {"eos_token": END, "unk_token": UNKNOWN, "pad_token": PAD}
    for field, expected in {**names, "sp_model_kwargs": {}}.items():
        got = fields.get(field) or expected
        if (got.get("content", got) if isinstance(got, dict) else got) != expected:
            fields.refuse(field, repr(expected))
    separate = fields.boolean("separate_vocabs", False)
    target_vocabulary = "target_vocab.json" if separate else "vocab.json"
    return (
        _load_side(directory / "source.spm", directory / "vocab.json"),
        _load_side(directory / "target.spm", directory / target_vocabulary),
    )


def _load_side(model: Path, vocabulary: Path) -> MarianTokenizer:
    ids = read_json(vocabulary)
    try:
        return MarianTokenizer(read_bytes(model), ids)
    except ValueError as error:
        raise UserError(CHECKPOINT, f"{vocabulary} is malformed: {error}") from None
    except RuntimeError as error:
        raise UserError(CHECKPOINT, f"{model} cannot be read: {error}") from None

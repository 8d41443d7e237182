"""Files of tokenizers as they are written: the same ids here and in transformers."""

import json

import pytest
from sentencepiece import SentencePieceProcessor

from seq2seq.config.data_config import DataConfig
from seq2seq.pretrained.models import TRANSFORMERS_FAMILIES
from tests.support.models.tiny_marian import SENTENCES
from tests.support.models.tiny_tokenizers import CODES, T5, model, write

ROWS = {row.model_type: row for row in TRANSFORMERS_FAMILIES}
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
FAIRSEQ_MODEL = "sentencepiece__bpe__model"


def pieces(content):
    return SentencePieceProcessor(model_proto=content).get_piece_size()


def layouts():
    """The model type, the files and the rows of each layout of files, by name."""
    t5, bpe, unigram = model(**T5), model("bpe"), model()
    tagged = model(**T5, user_defined_symbols="<2ko>,<2de>,<extra_id_0>")
    numbers = [*enumerate(FAIRSEQ), *enumerate([*CODES, "<mask>"], pieces(bpe) + 1)]
    added = {str(i): {"content": piece, "special": True} for i, piece in numbers}
    processor = SentencePieceProcessor(model_proto=bpe)
    texts = [processor.id_to_piece(i) for i in range(3, pieces(bpe))]
    words = {piece: i for i, piece in enumerate([*FAIRSEQ, *sorted(texts), "madeupword0"])}
    letters = {piece: i for i, piece in enumerate([*FAIRSEQ, *map(chr, range(97, 123)), "en"])}
    return {
        "T5": ("t5", {"spiece__model": t5}, pieces(t5) + 128),
        "T5 with fewer rows": ("t5", {"spiece__model": t5}, pieces(t5) + 7),
        "MADLAD": ("t5", {"spiece__model": tagged}, pieces(tagged) + 3),
        "ByT5": ("t5", {"tokenizer_config__json": {"tokenizer_class": "ByT5Tokenizer"}}, 384),
        "mT5": ("mt5", {"spiece__model": t5}, pieces(t5) + 128),
        "umT5": ("umt5", {"spiece__model": t5}, pieces(t5) + 128),
        "Pegasus": ("pegasus", {"spiece__model": t5}, pieces(t5) + 105),
        "NLLB": (
            "m2m_100",
            {FAIRSEQ_MODEL: bpe, "tokenizer_config__json": {"added_tokens_decoder": added}},
            pieces(bpe) + 7,
        ),
        "mBART": ("mbart", {FAIRSEQ_MODEL: unigram}, pieces(unigram) + 27),
        "mBART-50": ("mbart", {FAIRSEQ_MODEL: unigram}, pieces(unigram) + 54),
        "M2M-100": ("m2m_100", {FAIRSEQ_MODEL: bpe, "vocab__json": words}, len(words) + 108),
        "WMT21": (
            "m2m_100",
            {FAIRSEQ_MODEL: bpe, "vocab__json": words,
             "tokenizer_config__json": {"language_codes": "wmt21"}},
            len(words) + 8,
        ),
        "BART": ("bart", {"vocab__json": letters, "merges__txt": "#version: 0.2\ne n\n"}, 31),
    }  # fmt: skip


def written(row, directory, rows, copy):
    """The tokenizer of a directory, and the directory that is written for it."""
    if row.model_type == "bart":
        pytest.importorskip("tokenizers")
    tokenizer = row.tokenizer(directory, rows)
    return tokenizer, write(copy, **row.tokenizer_files(tokenizer, DataConfig()))


@pytest.mark.parametrize("name", layouts())
def test_the_files_of_a_tokenizer_are_read_as_the_same_tokenizer(tmp_path, name):
    kind, files, rows = layouts()[name]
    directory = write(tmp_path / "first", **files)
    tokenizer, copy = written(ROWS[kind], directory, rows, tmp_path / "copy")
    back = ROWS[kind].tokenizer(copy, rows)
    assert (back.kind, back.serialized()) == (tokenizer.kind, tokenizer.serialized())


@pytest.mark.slow
@pytest.mark.parametrize("name", layouts())
def test_transformers_reads_the_same_ids_from_the_files(tmp_path, name):
    """Also from a tokenizer.json that transformers has written."""
    transformers = pytest.importorskip("transformers")
    kind, files, rows = layouts()[name]
    # AutoTokenizer of transformers 5.23 does not find the class for umT5.
    reader = transformers.T5Tokenizer if kind == "umt5" else transformers.AutoTokenizer
    directory = write(tmp_path / "first", **files)
    for number in range(2 if name in ("T5", "Pegasus", "NLLB", "mBART-50", "BART") else 1):
        tokenizer, copy = written(ROWS[kind], directory, rows, tmp_path / f"copy{number}")
        (copy / "config.json").write_text(json.dumps({"model_type": kind}))
        reference = reader.from_pretrained(copy)
        for line in SENTENCES[:6]:
            ids = reference(line, add_special_tokens=False).input_ids
            assert ids == tokenizer.encode(line)
        for piece in map(tokenizer.piece, range(tokenizer.size)):
            if name != "ByT5" or not piece.startswith("<0x"):
                assert reference.convert_tokens_to_ids(piece) == tokenizer.id_of(piece)
        directory = tmp_path / "saved"
        reference.save_pretrained(directory)

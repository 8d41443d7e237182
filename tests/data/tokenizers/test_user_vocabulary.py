"""A SentencePiece model of the user as a vocabulary, compared with SentencePieceProcessor."""

import io
import random

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import END, LIST_SPECIALS, PAD, START, UNKNOWN
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.given_vocabulary import read_own_tokenizer, read_own_tokenizers
from seq2seq.data.tokenizers.sentencepiece_model import read_pieces
from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError

LINES = [
    f"{subject} {verb} {object_noun} ."
    for subject in ("der hund", "die übung", "das haus")
    for verb in ("sieht", "sucht", "findet")
    for object_noun in ("den mann", "die frau", "ein kind")
]
LAYOUTS = {
    "ours": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    "default": {},  # <unk> <s> </s>, no padding
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "Marian": {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1},
    "unusual": {
        "unk_id": 7, "pad_id": 3, "bos_id": 11, "eos_id": 5,
        "pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]",
    },
}  # fmt: skip


def spm(kind="unigram", **options):
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type=kind,
        vocab_size=options.pop("vocab_size", 60),
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def processor_of(model):
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=model)


def written(path, model):
    path.write_bytes(model)
    return str(path)


def texts(processor):
    """Lines, unknown characters, the texts of special tokens, and other pieces."""
    pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
    choose = random.Random(0)
    return [*LINES, "", "鯨 <num>haus<sep>", *("".join(choose.choices(pieces, k=5)) for _ in LINES)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_have_the_pieces_of_the_users_model(layout, kind, tmp_path):
    options = {"user_defined_symbols": ["<num>"], "control_symbols": ["<sep>"]}
    if layout == "T5":
        options |= {"byte_fallback": True, "vocab_size": 400, "add_dummy_prefix": False}
    model = spm(kind, **LAYOUTS[layout], **options)
    processor, tokenizer = processor_of(model), read_own_tokenizer(written(tmp_path / "m", model))
    assert (tokenizer.kind, tokenizer.piece(UNKNOWN)) == (kind, "<unk>")
    assert [tokenizer.piece(i) for i in range(4)] == list(LIST_SPECIALS)
    special = {processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()}
    missing = 4 - len(special - {-1})
    assert tokenizer.size == processor.get_piece_size() + missing
    names = {processor.unk_id(): "<unk>"}
    for text in texts(processor):
        ids, expected = tokenizer.encode(text), processor.encode(text)
        assert [tokenizer.piece(i) for i in ids] == [
            names.get(i, processor.id_to_piece(i)) for i in expected
        ]
        assert not {PAD, START, END} & {*ids}
        decoded = processor.decode(expected).replace("\n", " ").replace("\r", " ")
        assert tokenizer.decode([START, *ids, END, PAD]) == decoded


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_layout_of_special_ids_does_not_change_a_vocabulary(kind, tmp_path):
    usual, unusual = (
        read_own_tokenizer(written(tmp_path / name, spm(kind, **LAYOUTS[name])))
        for name in ("ours", "unusual")
    )
    assert usual.encode_many(LINES) == unusual.encode_many(LINES)
    scores = [
        {piece.text: piece.score for piece in read_pieces(tokenizer.serialized())}
        for tokenizer in (usual, unusual)
    ]
    assert scores[0] == scores[1]
    assert usual.encode_many(LINES) == processor_of(spm(kind, **LAYOUTS["ours"])).encode(LINES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_copy_is_a_sentencepiece_model_with_our_special_ids(layout, tmp_path):
    copy = read_own_tokenizer(written(tmp_path / "m", spm(**LAYOUTS[layout]))).serialized()
    processor = processor_of(copy)
    ids = processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
    assert ids == (PAD, START, END, UNKNOWN)
    assert [processor.is_control(i) for i in range(4)] == [True, True, True, False]
    (tmp_path / "copy").write_bytes(copy)
    again = read_own_tokenizer(str(tmp_path / "copy"))
    assert again.encode_many(LINES) == SentencePieceTokenizer("unigram", copy).encode_many(LINES)


def test_one_file_is_a_joint_vocabulary_and_two_are_separate(tmp_path):
    first = written(tmp_path / "first", spm())
    second = written(tmp_path / "second", spm("bpe"))
    source, target = read_own_tokenizers([first])
    assert source is target
    source, target = read_own_tokenizers([first, second])
    assert (source.kind, target.kind) == ("unigram", "bpe")


def refused(file):
    with pytest.raises(UserError) as caught:
        read_own_tokenizer(str(file))
    assert caught.value.code == DATA and "\n" not in str(caught.value)
    assert str(file) in str(caught.value) and "config.data.vocab" in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_not_a_usable_model_is_refused(tmp_path):
    assert "cannot be read (No such file" in refused(tmp_path / "missing.model")
    assert "cannot be read (Is a directory)" in refused(tmp_path)
    file = tmp_path / "file"
    for content in (b"", b"a text\n", b"\x80\x04]q\x00.", spm()[:-999]):
        file.write_bytes(content)
        assert "is not a SentencePiece model" in refused(file)
    for kind in ("word", "char"):
        file.write_bytes(spm(kind))
        assert f"of type {kind}: expected a unigram or bpe model" in refused(file)
    file.write_bytes(spm(user_defined_symbols=["<pad>"]))
    assert "has <pad> as a piece of text" in refused(file)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab": "a,b"}, "data.vocab must be one file"),
        ({"vocab": "a", "joint_vocab": False}, "SOURCE,TARGET"),
        ({"vocab": "a,", "joint_vocab": False}, "SOURCE,TARGET"),
        ({"vocab": "a,b,c", "joint_vocab": False}, "SOURCE,TARGET"),
        ({"vocab": "a", "user_defined": "<x>"}, "data.user_defined is not supported"),
        ({"vocab": "a", "byte_fallback": True}, "data.byte_fallback is not supported"),
        ({"vocab": "gs://bucket/a"}, "config.data.vocab is remote"),
        ({"vocab": "a,gs://bucket/a", "joint_vocab": False}, "config.data.vocab is remote"),
    ],
)
def test_fields_that_contradict_a_given_vocabulary_are_refused(fields, message):
    config = Config(data=DataConfig(**fields))
    config.model.tied_embeddings = "two-way"
    with pytest.raises(UserError, match=message) as caught:
        config.validate()
    assert caught.value.code == CONFIGURATION


def test_a_given_vocabulary_and_an_initial_model_are_refused():
    config = Config(data=DataConfig(vocab="a"))
    config.training.init_from = "runs/other"
    with pytest.raises(UserError, match="data.vocab is not supported with training.init_from"):
        config.validate()

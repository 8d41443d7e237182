"""Reading the pieces of a SentencePiece model, compared with SentencePieceProcessor."""

import io
from itertools import product

import pytest

from seq2seq.data.tokenizers.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    overlaps,
    read_pieces,
    with_pieces,
)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def model(request):
    from sentencepiece import SentencePieceTrainer

    file = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([f"wort {i} und übung" for i in range(99)]),
        model_writer=file,
        model_type=request.param,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        user_defined_symbols=["<num>"],
        control_symbols=["<sep>"],
        minloglevel=2,
    )
    return file.getvalue()


def processor_of(model):
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_proto=model)


def test_pieces_scores_and_types_are_those_of_sentencepiece(model):
    pieces, processor = read_pieces(model), processor_of(model)
    ids = list(range(processor.get_piece_size()))
    assert [piece.text for piece in pieces] == processor.id_to_piece(ids)
    assert [piece.score for piece in pieces] == processor.get_score(ids)
    assert [piece.type == CONTROL for piece in pieces] == processor.is_control(ids)
    assert [piece.type == UNKNOWN for piece in pieces] == processor.is_unknown(ids)
    assert [piece.type == BYTE for piece in pieces] == processor.is_byte(ids)
    assert [piece.text for piece in pieces if piece.type == USER_DEFINED] == ["<num>"]
    assert sum(piece.type == NORMAL for piece in pieces) == len(ids) - 3 - 1 - 1 - 256


def test_the_same_pieces_give_a_model_that_segments_as_before(model):
    pieces, text = read_pieces(model), "übung <num> und 鯨 wörter 77"
    same = with_pieces(model, pieces)
    assert len(same) == len(model)
    expected = processor_of(model).encode(text, out_type=str)
    assert processor_of(same).encode(text, out_type=str) == expected
    moved = processor_of(with_pieces(model, pieces[3:] + pieces[:3]))
    assert moved.encode(text, out_type=str) == expected
    assert moved.id_to_piece(0) == pieces[3].text


def test_a_removed_piece_is_never_used(model):
    text = "wort und übung"
    used = next(p for p in processor_of(model).encode(text, out_type=str) if len(p) > 1)
    processor = processor_of(with_pieces(model, [p for p in read_pieces(model) if p.text != used]))
    assert used not in processor.encode(text, out_type=str)
    assert processor.decode(processor.encode(text)) == text


def texts(longest):
    for length in range(1, longest + 1):
        yield from map("".join, product("ab", repeat=length))


def test_overlaps_equals_a_search_of_all_short_texts():
    def expected(text, other):
        """Some text has `other` at 3, and `text` with an end of it and a character outside."""
        for around in texts(6):
            if len(around) != 6:
                continue
            whole = around[:3] + other + around[3:]
            inside = range(3, 3 + len(other))
            for start in range(len(whole) - len(text) + 1):
                covered = range(start, start + len(text))
                if whole[start:].startswith(text) and (
                    {2, 3} <= {*covered} or {inside[-1], inside[-1] + 1} <= {*covered}
                ):
                    return True
        return False

    for text, other in product(texts(3), texts(3)):
        if text != other:
            assert overlaps(text, other) == expected(text, other), (text, other)

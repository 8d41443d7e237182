"""Lines of pieces: encoding and decoding are inverse, and agree with those of text."""

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.special_tokens import OUR_IDS, Special
from seq2seq.data.tokenizers.marian_tokenizer import MarianTokenizer
from seq2seq.data.tokenizers.piece_tokenizer import PieceTokenizer, tokenizers_for_pieces
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.models.tiny_marian import SENTENCES

TEXTS = [*SENTENCES[:9], "", "鯨 😀 ▁ <num> <s> </s> <pad> <unk>", "  a  b  "]


def tokenizer_of(kind):
    """(tokenizer, its special ids)"""
    trained = "unigram" if kind == "marian" else kind
    config = DataConfig(tokenizer=trained, vocab_size=400, byte_fallback=trained == "unigram")
    tokenizer, _ = train_tokenizers(config, SENTENCES, SENTENCES)
    if kind != "marian":
        return tokenizer, OUR_IDS
    ids = {tokenizer.piece(i): tokenizer.size - 1 - i for i in range(tokenizer.size)}
    special = Special(ids["<pad>"], ids["<pad>"], ids["</s>"], ids["<unk>"])
    return MarianTokenizer(tokenizer.serialized(), ids), special


@pytest.fixture(scope="module", params=["unigram", "bpe", "words", "marian"])
def both(request):
    tokenizer, special = tokenizer_of(request.param)
    return tokenizer, PieceTokenizer(tokenizer, special, "source_pieces"), special


def test_the_pieces_of_a_text_have_its_ids(both):
    tokenizer, pieces, _ = both
    for text in TEXTS:
        ids = tokenizer.encode(text)
        line = " ".join(map(tokenizer.piece, ids))
        assert pieces.encode(line) == ids
        assert pieces.encode(f"  {line.replace(' ', '   ')} ") == ids
        assert pieces.decode(ids) == line
    assert pieces.encode_many(TEXTS) == [pieces.encode(text) for text in TEXTS]


def test_every_piece_has_its_id_but_padding_start_and_end_are_unknown(both):
    tokenizer, pieces, special = both
    added = {special.pad, special.start, special.end}
    for i in range(tokenizer.size):
        assert pieces.encode(tokenizer.piece(i)) == [special.unknown if i in added else i]
        assert pieces.decode([i]) == ("" if i in added else tokenizer.piece(i))
    assert pieces.encode("of-no-vocabulary") == [special.unknown]
    assert (pieces.size, pieces.kind) == (tokenizer.size, f"pieces of {tokenizer.kind}")


def test_a_vocabulary_with_spaces_in_pieces_is_refused_by_option():
    characters, _ = tokenizer_of("characters")
    for option, sides in (("source_pieces", (True, False)), ("target_pieces", (False, True))):
        with pytest.raises(UserError, match=f"{option} is not supported .* got ' '") as refused:
            tokenizers_for_pieces((characters, characters), OUR_IDS, *sides)
        assert refused.value.code == CONFIGURATION
    words, _ = tokenizer_of("words")
    source, target = tokenizers_for_pieces((characters, words), OUR_IDS, False, True)
    assert source is characters and target.kind == "pieces of words"
    assert (
        tokenizers_for_pieces((words, characters), OUR_IDS, True, False)[0].kind
        == "pieces of words"
    )

"""What a vocabulary does to the characters of a text: rewrites, lacks, or lets `clean` replace."""

import json
import unicodedata
from array import array

import pytest

from seq2seq.config.data_config import NORMALIZATIONS, DataConfig
from seq2seq.config.special_tokens import OUR_IDS
from seq2seq.data.corpora.corpus import CollectedBlock
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.tokenizers.byte_tokenizer import ByteTokenizer
from seq2seq.data.tokenizers.characters import INVISIBLE, Characters
from seq2seq.data.tokenizers.piece_tokenizer import PieceTokenizer
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens.encoding import encode_pairs

SOURCE = ["a b"] * 20
TARGETS = ["你好，世界！（三）", "½ ™ ① x² … ℃ ﬁ ＡＢ"] * 10
SENTENCES = ["Der Hund sieht den König .", "Die Frau mag Fisch ."] * 5


def tokenizer_of(texts, kind="unigram", normalization="identity", **options):
    config = DataConfig(tokenizer=kind, normalization=normalization, vocab_size=60, **options)
    return train_tokenizers(config, texts, texts)[0]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_vocabulary_rewrites_text_as_its_normalization_says(normalization):
    expected = TARGETS
    if normalization != "identity":
        expected = [unicodedata.normalize("NFKC", text) for text in TARGETS]
    if normalization.endswith("_cf"):
        expected = [text.casefold() for text in expected]
    assert DataConfig().normalization == "identity"
    tokenizer = tokenizer_of([*TARGETS, "1⁄2 b", *SOURCE], normalization=normalization)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TARGETS] == expected


def test_training_data_is_reported_where_a_vocabulary_lacks_or_rewrites_it():
    texts = CollectedBlock(
        ["a b { c"] * 10 + SOURCE[10:], TARGETS, array("q", range(20)), None, Counts()
    )
    notes = {}
    for normalization in ("nmt_nfkc", "identity"):
        tokenizer = tokenizer_of([*SOURCE, *TARGETS, "1⁄2"], normalization=normalization)
        around = DataConfig(source_begin="b", target_begin="b", source_end="b")  # no text
        kept = encode_pairs(texts, tokenizer, tokenizer, around, of_texts := {})[1]
        assert len(kept) == 20
        counts = Counts(kept=20, notes=of_texts)
        assert Counts.from_json(json.loads(json.dumps(counts.to_json()))) == counts
        notes[normalization] = list(counts.merged(Counts()).report("train"))[1:]
    lacking = "  10 source lines have characters that the vocabulary lacks (50 %), such as {, c"
    rewritten = (
        "  20 target lines are rewritten by the vocabulary, so that no translation can equal them"
    )
    examples = " (100 %), such as '你好，世界！（三）' → '你好,世界!(三)', '½ ™' → '1⁄2 TM'"
    assert notes == {"identity": [lacking], "nmt_nfkc": [lacking, rewritten + examples]}


INVISIBLE_IN_WORDS = [f"H{c}und" for c in "\u00ad\u2060\u200b\u200d\ufeff\ufe0f\u034f\0\x01"]
AROUND = ["\u202aHund\u202c", "\u2066Hund\u2069", "\u202bHund\u200f", "\U000e0041Hund"]
OTHERS = [  # source, clean source, what is replaced, what is still unknown
    ("Kö\u00a0nig\u2028mag", "Kö nig mag", ("\u00a0", "\u2028"), ()),
    ("\uff26isch", "Fisch", ("\uff26",), ()),  # full-width F
    ("Hund { ru } 😀", "Hund { ru } 😀", (), ("{", "}", "😀")),
    ("Hund \u202eПри", "Hund При", ("\u202e",), ("П", "р", "и")),
    ("½", "½", (), ("½",)),  # 1⁄2 is not in the vocabulary either
    ("", "", (), ()),
]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "characters"])
def test_characters_that_a_vocabulary_lacks_are_replaced_by_what_it_has_or_reported(kind):
    tokenizer = tokenizer_of(SENTENCES, kind)
    characters = Characters(tokenizer)
    for text in SENTENCES:
        assert characters.clean(text) == (text, ())
    for text in (*INVISIBLE_IN_WORDS, *AROUND):
        clean, replaced = characters.clean(text)
        assert clean == "Hund" and set(replaced) == set(text) - set("Hund")
    for text, expected, replaced, unknown in OTHERS:
        clean, gone = characters.clean(text)
        assert (clean, gone) == (expected, replaced)
        assert characters.unknown(clean, tokenizer.encode(clean)) == unknown


def test_what_a_vocabulary_has_is_never_replaced():
    """Invisible characters too, and the joiners of a script that uses them, if the vocabulary was
    trained with a space in their place."""
    invisible = tokenizer_of([*SENTENCES, "Hu\u00adnd ﬁ Fi\u200bsch"] * 3)
    text = "Hu\u00adnd ﬁ Fi\u200bsch"
    assert Characters(invisible).clean(text) == (text, ())
    assert Characters(ByteTokenizer()).clean("Hu\u00ad\u200b\u202e") == ("Hu\u00ad\u200b\u202e", ())
    pieces = PieceTokenizer(tokenizer_of(SENTENCES), OUR_IDS, "source_pieces")
    assert Characters(pieces).clean("▁Hu\u00ad nd") == ("▁Hu\u00ad nd", ())
    assert Characters(pieces).unknown("▁ x▁", pieces.encode("▁ x▁")) == ("x▁",)
    spaced = Characters(tokenizer_of(["می خواهم Hund"] * 5, normalization="nmt_nfkc"))
    assert spaced.clean("می\u200cخواهم Hu\u200cnd") == ("می\u200cخواهم Hund", ("\u200c",))
    unspaced = Characters(tokenizer_of(["می خواهم Hund"] * 5))
    assert unspaced.clean("می\u200cخواهم Hu\u200cnd") == ("میخواهم Hund", ("\u200c",))
    hyphen = Characters(tokenizer_of(["Hu\u00adnd"], "words"))  # in a piece, but no piece alone
    assert hyphen.clean("Hu\u00adnd") == ("Hu\u00adnd", ())
    words = Characters(tokenizer_of(SENTENCES, "words"))
    assert words.clean("Hu\u00adnd\u00a0\tＦisch") == ("Hund\u00a0\tFisch", ("\u00ad", "Ｆ"))


def test_invisible_characters_are_those_of_unicode():
    """Format characters, except those that are visible, and control characters but white space."""
    for code in [*range(0x1E000), *range(0xE0000, 0xE1000)]:
        character = chr(code)
        category = unicodedata.category(character)
        if INVISIBLE.match(character):
            assert not character.isspace() and category in ("Cf", "Cc", "Cn", "Mn", "Lo"), code
        elif category in ("Cf", "Cc") and not character.isspace():
            name = unicodedata.name(character)
            assert name.startswith(("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN", "INTERLINEAR")), code

"""Tokenizers of directories of transformers, compared with SentencePiece and arithmetic."""

from itertools import cycle
from types import SimpleNamespace

import pytest
from sentencepiece import SentencePieceProcessor

from seq2seq.data.tokenizers.languages import language_id
from seq2seq.data.tokenizers.sentencepiece_model import packed
from seq2seq.data.tokenizers.tokenizer import ids_without_piece
from seq2seq.data.tokenizers.vocabulary import make_tokenizer
from seq2seq.pretrained.bart import MBART
from seq2seq.pretrained.language_codes import M2M, MBART_25, MBART_50, WMT21
from seq2seq.pretrained.tokenizer_files import (
    load_byte_level_tokenizer,
    load_byte_tokenizer,
    load_m2m_tokenizer,
    load_mbart_tokenizer,
    load_nllb_tokenizer,
    load_pegasus_tokenizer,
    load_t5_tokenizer,
)
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from tests.support.models.tiny_marian import SENTENCES, sentencepiece
from tests.support.models.tiny_tokenizers import CODES, SPECIALS, T5, model, spelled, texts, write

FAIRSEQ = "sentencepiece__bpe__model"


def processor_of(content):
    return SentencePieceProcessor(model_proto=content)


def check_texts(tokenizer, processor, offset, unknown, dropped):
    """Ids and texts are SentencePiece's; `dropped` ids anywhere in a translation have no effect."""
    lines = texts() + spelled()
    expected = [
        [unknown if i == processor.unk_id() else i + offset for i in ids]
        for ids in processor.encode(lines)
    ]
    assert tokenizer.encode_many(lines) == expected
    assert any(unknown in ids for ids in expected)
    for line, ids in zip(lines, expected, strict=True):
        assert tokenizer.encode(line) == ids
        mixed = [
            dropped[0],
            *(i for pair in zip(ids, cycle(dropped), strict=False) for i in pair),
            dropped[-1],
        ]
        assert tokenizer.decode(mixed) == processor.decode(processor.encode(line))
        assert not {*dropped} & {*ids}
    again = make_tokenizer(tokenizer.kind, tokenizer.serialized())
    assert again.encode_many(lines) == expected and again.serialized() == tokenizer.serialized()
    assert (again.size, again.languages) == (tokenizer.size, tokenizer.languages)
    assert again.without_piece == tokenizer.without_piece
    for i in {*range(tokenizer.size)} - {*tokenizer.without_piece}:
        assert tokenizer.id_of(tokenizer.piece(i)) == i


def test_t5_has_the_ids_of_its_model_and_its_sentinels_behind_them(tmp_path):
    content = model(**T5)
    processor = processor_of(content)
    pieces = processor.get_piece_size()
    tokenizer = load_t5_tokenizer(write(tmp_path, spiece__model=content), pieces + 128)
    assert tokenizer.size == pieces + 100
    assert [tokenizer.id_of(f"<extra_id_{k}>") for k in (0, 1, 99)] == [
        pieces + 99, pieces + 98, pieces,
    ]  # fmt: skip
    assert ids_without_piece(tokenizer, pieces + 128) == [*range(pieces + 100, pieces + 128)]
    assert not tokenizer.languages
    unused = [*range(pieces, pieces + 128)]
    check_texts(tokenizer, processor, 0, 2, [0, 1, *unused])
    # Fewer rows than sentinels, and files that state the sentinels.
    assert load_t5_tokenizer(tmp_path, pieces + 7).size == pieces + 7
    write(tmp_path, tokenizer_config__json={"extra_ids": 0})
    assert load_t5_tokenizer(tmp_path, pieces + 7).size == pieces
    entries = {str(pieces + 3): {"content": "<extra_id_0>", "special": True}}
    write(tmp_path, tokenizer_config__json={"added_tokens_decoder": entries})
    stated = load_t5_tokenizer(tmp_path, pieces + 7)
    assert stated.id_of("<extra_id_0>") == pieces + 3
    assert ids_without_piece(stated, pieces + 6) == [pieces + i for i in (0, 1, 2, 4, 5)]


@pytest.mark.parametrize("kind", ["user_defined_symbols", "control_symbols"])
def test_languages_and_sentinels_inside_a_model_are_in_no_text(tmp_path, kind):
    """MADLAD has its languages, mT5 its sentinels in spiece.model."""
    symbols = "<2ko>,<2zh_Latn>,<extra_id_0>"
    content = model(**T5, **{kind: symbols})
    plain = processor_of(model(**T5, control_symbols=symbols))
    pieces = plain.get_piece_size()
    tokenizer = load_t5_tokenizer(write(tmp_path, spiece__model=content), pieces)
    assert tokenizer.languages == {"ko": 3, "zh_Latn": 4}
    assert tokenizer.size == pieces and tokenizer.id_of("<extra_id_0>") == 5
    assert tokenizer.model == content  # an export writes the original
    check_texts(tokenizer, plain, 0, 2, [0, 1, 3, 4, 5])


def added(codes, first, specials=("<s>", "<pad>", "</s>", "<unk>")):
    ids = {**{p: i for i, p in enumerate(specials)}, **{c: first + i for i, c in enumerate(codes)}}
    return [{"id": i, "content": piece, "special": True} for piece, i in ids.items()]


def test_nllb_has_fairseqs_ids_and_the_codes_of_each_file(tmp_path):
    content = model("bpe")
    processor = processor_of(content)
    pieces = processor.get_piece_size()
    first = pieces + 1
    write(tmp_path, **{FAIRSEQ: content})
    with pytest.raises(UserError, match="lists no language codes: expected them in") as caught:
        load_nllb_tokenizer(tmp_path, first + 7)
    assert caught.value.code == CHECKPOINT
    tokens = added([*CODES, "<mask>"], first)
    decoder = {str(token["id"]): token for token in tokens}
    listed = [*CODES[:2], {"content": CODES[2]}, CODES[3]]
    for name, file in (
        ("special_tokens_map__json", {"additional_special_tokens": listed}),
        ("tokenizer__json", {"added_tokens": tokens}),
        ("tokenizer_config__json", {"added_tokens_decoder": decoder}),
    ):
        write(tmp_path, **{name: file})
        tokenizer = load_nllb_tokenizer(tmp_path, first + 7)
        assert tokenizer.languages == {code: first + i for i, code in enumerate(CODES)}
        assert tokenizer.id_of("<mask>") == first + 4 == tokenizer.size - 1
        assert [*map(tokenizer.piece, range(4))] == ["<s>", "<pad>", "</s>", "<unk>"]
        assert ids_without_piece(tokenizer, first + 7) == [first + 5, first + 6]
        (tmp_path / name.replace("__", ".")).unlink()
    check_texts(tokenizer, processor, 1, 3, [0, 1, 2, *range(first, first + 7)])
    # transformers 5 puts <mask> before the codes of a model it made from the .model file.
    write(tmp_path, tokenizer__json={"added_tokens": added(["<mask>", *CODES], first)})
    assert load_nllb_tokenizer(tmp_path, first + 5).languages["eng_Latn"] == first + 2
    # An appended language; ids that the model does not have.
    write(tmp_path, tokenizer__json={"added_tokens": added([*CODES, "<mask>", "krc"], first)})
    assert load_nllb_tokenizer(tmp_path, first + 6).languages["krc"] == first + 5
    assert "krc" not in load_nllb_tokenizer(tmp_path, first + 5).languages
    write(tmp_path, tokenizer__json={"added_tokens": added([], first)})
    with pytest.raises(UserError, match="lists no language codes"):
        load_nllb_tokenizer(tmp_path, first + 7)


def test_mbart_has_25_or_52_codes(tmp_path):
    content = model()
    first = processor_of(content).get_piece_size() + 1
    write(tmp_path, **{FAIRSEQ: content})
    assert (len(MBART_25), len(MBART_50), len(M2M), len(WMT21)) == (25, 52, 100, 8)
    for rows, codes in ((first + 26, MBART_25), (first + 53, MBART_50)):
        tokenizer = load_mbart_tokenizer(tmp_path, rows)
        assert tokenizer.languages == {code: first + i for i, code in enumerate(codes)}
        assert tokenizer.id_of("<mask>") == first + len(codes) == rows - 1
        # en_XX is 250004 and ro_RO 250020 where the codes begin at 250001
        ids = tokenizer.languages["en_XX"], tokenizer.languages["ro_RO"]
        assert ids == (first + 3, first + 19)
    write(tmp_path, tokenizer_config__json={"tokenizer_class": "MBart50TokenizerFast"})
    tokenizer = load_mbart_tokenizer(tmp_path, first + 60)
    assert len(tokenizer.languages) == 52
    languages = list(tokenizer.languages.values())
    check_texts(tokenizer, processor_of(content), 1, 3, [0, 1, 2, *languages])


def test_a_code_that_was_added_to_mbart_is_behind_its_mask(tmp_path):
    content = model()
    first = processor_of(content).get_piece_size() + 1
    write(tmp_path, **{FAIRSEQ: content})
    write(tmp_path, special_tokens_map__json={"additional_special_tokens": ["uk_UA", *MBART_25]})
    languages = load_mbart_tokenizer(tmp_path, first + 30).languages
    assert languages == {c: first + i for i, c in enumerate(MBART_25)} | {"uk_UA": first + 26}
    write(tmp_path, special_tokens_map__json={"additional_special_tokens": MBART_50[::-1]})
    assert load_mbart_tokenizer(tmp_path, first + 60).languages["en_XX"] == first + 3
    for kind, number, end in (
        ("MBartTokenizer", 26, "{source}"), ("MBart50Tokenizer", 26, ""), ("", 26, ""),
        ("", 25, "{source}"),
    ):  # fmt: skip
        write(tmp_path, tokenizer_config__json={"tokenizer_class": kind} if kind else {})
        tokenizer = SimpleNamespace(languages=range(number))
        assert MBART.template(None, tmp_path, tokenizer).source_end == end


def test_added_tokens_of_old_files_have_their_ids_or_are_refused(tmp_path):
    content = model(**T5)
    size = processor_of(content).get_piece_size() + 100
    write(tmp_path, spiece__model=content, added_tokens__json={"<hl>": size})
    message = "added_tokens.json: the added token '<hl>' is not special.* or vocab.json$"
    with pytest.raises(UserError, match=message):
        load_t5_tokenizer(tmp_path, size + 1)
    write(tmp_path, special_tokens_map__json={"additional_special_tokens": ["<hl>"]})
    tokenizer = load_t5_tokenizer(tmp_path, size + 1)
    assert tokenizer.id_of("<hl>") == size and tokenizer.id_of("<extra_id_0>") == size - 1
    (tmp_path / "special_tokens_map.json").unlink()
    write(tmp_path, tokenizer__json={"added_tokens": [{"id": size, "content": "<hl>"}]})
    assert load_t5_tokenizer(tmp_path, size + 1).id_of("<hl>") == size  # of the newer file


@pytest.mark.parametrize("family", ["mbart", "mbart_50", "nllb", "m2m", "t5"])
def test_old_files_of_appended_tokens_leave_the_others_of_the_family(tmp_path, family):
    """added_tokens.json before transformers 4.34 has the tokens that were appended only."""
    content = model(**(T5 if family == "t5" else {}))
    pieces = processor_of(content).get_piece_size()
    load, codes, tail = {
        "mbart": (load_mbart_tokenizer, MBART_25, ["<mask>"]),
        "mbart_50": (load_mbart_tokenizer, MBART_50, ["<mask>"]),
        "nllb": (load_nllb_tokenizer, CODES, ["<mask>"]),
        "m2m": (load_m2m_tokenizer, [f"__{code}__" for code in M2M], []),
        "t5": (load_t5_tokenizer, [f"<extra_id_{k}>" for k in range(99, -1, -1)], []),
    }[family]
    first = pieces + (family not in ("m2m", "t5"))
    expected = {piece: first + i for i, piece in enumerate([*codes, *tail])}
    new = "<extra_id_100>" if family == "t5" else "__xxx__" if family == "m2m" else "xxx"
    appended = {new: first + len(expected), "<hl>": first + len(expected) + 1}
    if family == "m2m":
        vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *map(str, range(pieces - 4))]
        write(tmp_path, vocab__json={piece: i for i, piece in enumerate(vocabulary)})
    write(tmp_path, added_tokens__json=appended, **{FAIRSEQ: content, "spiece__model": content})
    rows = first + len(expected) + 2
    if family == "nllb":  # no file has its codes
        write(tmp_path, special_tokens_map__json={"additional_special_tokens": [*appended]})
        with pytest.raises(UserError, match="lists no language codes"):
            load(tmp_path, rows)
    names = [*codes, *appended] if family == "nllb" else [*appended]
    write(tmp_path, special_tokens_map__json={"additional_special_tokens": names})
    for files in (appended, expected | appended):  # later versions list all in this file too
        write(tmp_path, added_tokens__json=files)
        write(tmp_path, special_tokens_map__json={"additional_special_tokens": [*names, *files]})
        tokenizer = load(tmp_path, rows)
        for piece, i in (expected | appended).items():
            assert tokenizer.id_of(piece) == i, piece
        assert tokenizer.size == rows


def test_an_added_token_is_special_or_a_user_defined_piece_of_the_model(tmp_path):
    """transformers lists user-defined pieces, such as the sentinels of mT5, as added tokens."""
    content = model(**T5, user_defined_symbols="<x>")
    processor = processor_of(content)
    write(tmp_path, spiece__model=content)
    rows, number = processor.get_piece_size() + 100, processor.piece_to_id("<x>")
    expected = load_t5_tokenizer(tmp_path, rows).encode("a<x>b")
    assert number in expected
    for i in (number, number + 1):
        added = [{"id": i, "content": "<x>", "special": False}]
        write(tmp_path, tokenizer__json={"added_tokens": added})
        if i == number:
            assert load_t5_tokenizer(tmp_path, rows).encode("a<x>b") == expected
            continue
        with pytest.raises(UserError, match="'<x>' is not special.*; delete these to use token"):
            load_t5_tokenizer(tmp_path, rows)
    normal = processor.id_to_piece(9)  # at which the model does not split a text
    added = [{"id": 9, "content": normal, "special": False}]
    write(tmp_path, tokenizer__json={"added_tokens": added})
    with pytest.raises(UserError, match=f"the added token '{normal}' is not special"):
        load_t5_tokenizer(tmp_path, rows)
    write(tmp_path, vocab__json={normal: 9}, merges__txt="")
    with pytest.raises(UserError, match=f"the added token '{normal}' is not special"):
        load_byte_level_tokenizer(tmp_path, rows)


def test_pegasus_has_103_ids_before_those_of_its_model(tmp_path):
    content = model(**T5)
    processor = processor_of(content)
    rows = processor.get_piece_size() + 103
    tokenizer = load_pegasus_tokenizer(write(tmp_path, spiece__model=content), rows)
    assert tokenizer.size == rows and not tokenizer.without_piece and not tokenizer.languages
    ids = {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3, "<unk_2>": 4, "<unk_102>": 104}
    for piece, i in {**ids, "<unk>": 105}.items():
        assert tokenizer.id_of(piece) == i and tokenizer.piece(i) == piece
    check_texts(tokenizer, processor, 103, 105, [*range(105)])
    write(tmp_path, tokenizer_config__json={"offset": 0})
    with pytest.raises(UserError, match="offset=0 is not supported: expected 103"):
        load_pegasus_tokenizer(tmp_path, rows)


def test_a_line_break_of_pegasus_stays_a_piece_of_a_line(tmp_path):
    content = model(**T5, user_defined_symbols="<n>")
    rows = processor_of(content).get_piece_size() + 103
    tokenizer = load_pegasus_tokenizer(write(tmp_path, spiece__model=content), rows)
    line = "ein Hund.<n>Zwei Hunde"
    ids = tokenizer.encode(line)
    assert ids.count(tokenizer.id_of("<n>")) == 1 and tokenizer.decode(ids) == line
    transformers = pytest.importorskip("transformers")
    reference = transformers.PegasusTokenizer.from_pretrained(tmp_path)
    assert reference(line).input_ids == [*ids, 1]
    assert reference.decode(ids, skip_special_tokens=True) == line


def test_m2m_has_the_ids_of_its_vocabulary_and_its_codes_behind_them(tmp_path):
    content = model("bpe")
    processor = processor_of(content)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    names += sorted(map(processor.id_to_piece, range(3, processor.get_piece_size())))
    vocabulary = {piece: i for i, piece in enumerate(names)}
    write(tmp_path, vocab__json=vocabulary, **{FAIRSEQ: content})
    tokenizer = load_m2m_tokenizer(tmp_path, len(names) + 108)
    # en is 128022 and fr 128028 where the list begins at 128004
    assert (tokenizer.languages["en"], tokenizer.languages["fr"]) == (
        len(names) + 18,
        len(names) + 24,
    )
    assert ids_without_piece(tokenizer, len(names) + 108) == [
        *range(len(names) + 100, len(names) + 108)
    ]
    fewer = load_m2m_tokenizer(tmp_path, len(names) + 3)  # than codes
    assert fewer.size == len(names) + 3 and [*fewer.languages] == M2M[:3]
    again = make_tokenizer(tokenizer.kind, tokenizer.serialized())
    assert again.encode_many(texts()) == tokenizer.encode_many(texts())
    assert again.languages == tokenizer.languages
    write(tmp_path, tokenizer_config__json={"language_codes": "wmt21"})
    tokenizer = load_m2m_tokenizer(tmp_path, len(names) + 8)
    assert tokenizer.languages == {code: len(names) + i for i, code in enumerate(WMT21)}
    entries = {str(len(names) + 1): {"content": "__xy__", "special": True}}
    write(tmp_path, tokenizer_config__json={"added_tokens_decoder": entries})
    assert load_m2m_tokenizer(tmp_path, 200).languages == {"xy": len(names) + 1}


def test_t5_and_pegasus_return_what_transformers_returns(tmp_path):
    transformers = pytest.importorskip("transformers")
    content = model(**T5)
    write(tmp_path, spiece__model=content)
    lines = [*SENTENCES[:6], "나는 밥을 먹었다.", "Zwei 犬 und Мужчина", "ein Hund"]
    for load, name in (
        (load_t5_tokenizer, "T5Tokenizer"),
        (load_pegasus_tokenizer, "PegasusTokenizer"),
    ):
        reference = getattr(transformers, name).from_pretrained(tmp_path)
        tokenizer = load(tmp_path, len(reference))
        assert len(reference) == tokenizer.size
        assert [[*ids, 1] for ids in tokenizer.encode_many(lines)] == reference(lines).input_ids
        for piece in ("<extra_id_0>", "<extra_id_99>", "<mask_1>", "<unk_77>", "<unk>", "▁Hunde"):
            if (i := tokenizer.id_of(piece)) is not None:
                assert i == reference.convert_tokens_to_ids(piece)


def test_an_unknown_language_is_named_with_the_nearest_codes():
    languages = {"eng_Latn": 5, "kor_Hang": 6, "pes_Arab": 7}
    assert language_id(languages, "kor_Hang", "--target_language") == 6
    for typed, message in (
        (
            "kor",
            "--target_language is unknown: expected one of the 3 .*'kor'; did you mean kor_Hang",
        ),
        ("eng-latn", "did you mean eng_Latn"),
        ("xx", "codes: eng_Latn, kor_Hang, pes_Arab"),
        ("", "codes: eng_Latn"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            language_id(languages, typed, "--target_language")
        assert caught.value.code == CONFIGURATION
    with pytest.raises(UserError, match="expected a multilingual model") as caught:
        language_id({}, "de", "line 3: source_language", DATA)
    assert caught.value.code == DATA


@pytest.mark.parametrize(
    "load", [load_t5_tokenizer, load_nllb_tokenizer, load_mbart_tokenizer, load_pegasus_tokenizer]
)
def test_a_damaged_or_missing_file_is_named(tmp_path, load):
    pegasus = load in (load_t5_tokenizer, load_pegasus_tokenizer)
    name = "spiece__model" if pegasus else FAIRSEQ
    good = sentencepiece(texts(), 150, **(T5 if pegasus else {}))

    def refused(match, rows=500):
        with pytest.raises(UserError, match=match) as caught:
            load(tmp_path, rows)
        assert caught.value.code == CHECKPOINT and "\n" not in str(caught.value)

    refused(f"{name.replace('__', '.')} cannot be read: No such file")
    write(tmp_path, **{name: b"version https://git-lfs"})
    refused(f"{name.replace('__', '.')} is malformed")
    write(tmp_path, **{name: good})
    refused("does not fit config.json: expected at most vocab_size=20 ids", rows=20)
    for file, content in (
        ("tokenizer_config__json", "["),
        ("tokenizer_config__json", "[" * 100_000),
        ("tokenizer_config__json", decoder({"x": {"content": "a"}})),
        ("tokenizer_config__json", decoder({"7": "a"})),
        ("tokenizer_config__json", decoder({"-7": {"content": "<a>"}})),
        ("tokenizer_config__json", decoder({"450": {"content": "a", "special": False}})),
        ("tokenizer__json", {"added_tokens": [{"content": "<a>"}]}),
        ("tokenizer__json", {"added_tokens": [{"content": "a", "id": [1]}]}),
    ):
        write(tmp_path, **{file: content})
        refused(file.replace("__", "."))
        (tmp_path / file.replace("__", ".")).unlink()
    write(tmp_path, tokenizer_config__json=decoder({"120": {"content": "de_DE"}}))
    refused("the id 120 stands for '.*' and for 'de_DE'")


def decoder(entries):
    return {"added_tokens_decoder": entries}


def test_a_file_larger_than_any_vocabulary_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.pretrained.json_fields.MOST_BYTES", 1000)
    with pytest.raises(UserError, match="spiece.model is too large: .* 1000 bytes"):
        load_t5_tokenizer(write(tmp_path, spiece__model=model(**T5)), 300)
    write(tmp_path, tokenizer_config__json={"comment": "x" * 1000})
    with pytest.raises(UserError, match="tokenizer_config.json is too large"):
        load_byte_tokenizer(tmp_path, 300)


@pytest.mark.parametrize(
    "content",
    [
        {"offset": 0, "special": {"<unk>": 1 << 60}},
        {"offset": -1, "special": {"<unk>": 0}},
        {"offset": 0, "special": {"<unk>": "0"}},
        {"offset": 0, "special": {}},
        {"offset": 0, "special": {"<unk>": 2, "</s>": 2}},
        {"offset": 0, "special": {"<unk>": 20}},
        {"offset": 0},
    ],
)
def test_a_damaged_stored_vocabulary_is_refused(content):
    make_tokenizer("sentencepiece_ids", stored({"offset": 0, "special": {"<unk>": 2}}))
    with pytest.raises((ValueError, KeyError, TypeError)):
        make_tokenizer("sentencepiece_ids", stored(content))


def stored(content):
    return packed(model(**T5), content)


def test_byt5_has_an_id_for_each_byte(tmp_path):
    tokenizer = load_byte_tokenizer(tmp_path, 384)
    assert tokenizer.encode("aé\n") == [100, 198, 172, 13]
    assert tokenizer.id_of("<extra_id_0>") == 259 and tokenizer.piece(383) == "<extra_id_124>"
    for line in texts() + spelled():
        ids = tokenizer.encode(line)
        assert ids == [byte + 3 for byte in line.encode()]
        assert tokenizer.decode([0, *ids, 300, 1]) == line
    broken = [100, 198, 103, 2, 0xFF + 3, 172]  # a, half of é, d, unknown, two invalid bytes
    assert tokenizer.decode(broken) == "ad⁇" and tokenizer.decode([13, 16]) == "  "
    assert [tokenizer.id_of(tokenizer.piece(i)) for i in range(384)] == [*range(384)]
    assert make_tokenizer("bytes", tokenizer.serialized()).size == 384 == tokenizer.size
    with pytest.raises(ValueError, match="expected an empty vocabulary"):
        make_tokenizer("bytes", b"x")
    with pytest.raises(UserError, match="expected at most vocab_size=300 ids, got 384"):
        load_byte_tokenizer(tmp_path, 300)
    transformers = pytest.importorskip("transformers")
    reference = transformers.ByT5Tokenizer()
    assert reference("aé\n").input_ids == [100, 198, 172, 13, 1]
    assert reference.convert_tokens_to_ids(SPECIALS[-1]) == tokenizer.id_of(SPECIALS[-1])

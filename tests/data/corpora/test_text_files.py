"""Text files: lines, pairs, and the one-line errors of invalid files."""

import gzip
import hashlib
import io
import os
import random
import re

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import check_corpus, read_corpus
from seq2seq.files.lines import truncated_lines
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.logs import throttled
from tests.support.compressed import COMPRESS

LINES = 101
ODD = "\u2028 \u2029 \u0085 \v \f \x1c \0 \r"  # none of these ends a line


@pytest.fixture
def text(tmp_path, monkeypatch):
    """Writes files train.de and train.en of raw bytes and returns a function that reads them."""
    monkeypatch.chdir(tmp_path)

    def read(source: bytes, target: bytes, **settings):
        (tmp_path / "train.de").write_bytes(source)
        (tmp_path / "train.en").write_bytes(target)
        return read_corpus("text:train.de,train.en", "train", DataConfig(**settings))

    return read


def lines(word, count=LINES):
    return "".join(f"{word} {i}\n" for i in range(count)).encode()


def refused(code, call, *args, **settings):
    with pytest.raises(UserError) as caught:
        call(*args, **settings)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_line_i_of_one_file_belongs_to_line_i_of_the_other(text):
    corpus = text(lines("wort"), lines("word"))
    assert list(zip(corpus.source, corpus.target, strict=True)) == [
        (f"wort {i}", f"word {i}") for i in range(LINES)
    ]
    assert corpus.where(76) == "train.de:77"
    assert not corpus.counts.dropped


def test_a_last_line_without_a_line_feed_is_a_line(text):
    assert text(b"a\nb", b"c\nd\n").source == ["a", "b"]


def test_only_line_feeds_end_lines_and_odd_characters_are_text(text):
    corpus = text(f"a{ODD}b\nc\n".encode(), b"x\ny\n")
    assert corpus.source == [f"a{ODD}b", "c"]


def test_one_carriage_return_and_one_byte_order_mark_are_stripped(text):
    mark = "\ufeff"
    corpus = text(f"{mark}{mark}a\r\n{mark}b\r\r\n".encode(), f"{mark}c\r\nd".encode())
    assert corpus.source == [f"{mark}a", f"{mark}b\r"]
    assert corpus.target == ["c", "d"]


def test_a_pair_with_a_blank_side_is_dropped_and_counted(text):
    corpus = text(b"a\n \t\nc\n\ne\n", b"v\nw\n\nx\nz\n")
    assert list(zip(corpus.source, corpus.target, strict=True)) == [("a", "v"), ("e", "z")]
    assert corpus.counts.dropped == {"blank": 3}
    assert corpus.counts.examples == {"blank": ["train.de:2", "train.en:3", "train.de:4"]}
    assert [corpus.where(i) for i in range(2)] == ["train.de:1", "train.de:5"]


def test_only_the_first_five_places_of_a_reason_are_recorded(text):
    corpus = text(b"a\n" + 11 * b"\n", lines("b", 12))
    assert corpus.counts.dropped == {"blank": 11}
    assert len(corpus.counts.examples["blank"]) == 5


@pytest.mark.parametrize("more", [-7, -1, 1, 7])
def test_files_of_different_length_are_refused_with_both_counts(text, more):
    source_count, target_count = f"train.de has {LINES} lines", f"train.en has {LINES + more}"
    assert f"{source_count}, {target_count}" in refused(
        DATA, text, lines("a"), lines("b", LINES + more)
    )
    source_count, target_count = f"train.de has {LINES + more} lines", f"train.en has {LINES}"
    assert f"{source_count}, {target_count}" in refused(
        DATA, text, lines("a", LINES + more), lines("b")
    )


def test_bytes_that_are_not_utf8_are_refused_with_line_and_column(text):
    source = lines("wört").replace(
        "wört 77\n".encode(), "wört 77 zwölf\xff\n".encode("latin-1").replace(b"\xf6", "ö".encode())
    )
    message = refused(DATA, text, source, lines("word"))
    assert message == (
        "1 invalid line: expected UTF-8, got byte 0xff in column 14 of train.de:78; convert the "
        "file, or set --config.data.on_bad_utf8=replace or skip"
    )


def test_all_lines_that_are_not_utf8_are_reported_at_once(text):
    """In both files; the first five places in the order of the lines."""
    source, target = [b"a\n"] * 11, [b"x\n"] * 11
    for number in (2, 3, 7, 8, 11):
        source[number - 1] = b"a\xff\n"
    target[2] = target[3] = b"\xfe\n"
    message = refused(DATA, text, b"".join(source), b"".join(target))
    places = "train.de:2 train.de:3 train.en:3 train.en:4 train.de:7".split()
    assert re.findall(r"byte (\S+) in column (\d) of (\S+)[,;]", message) == [
        ("0xff", "2", place) if "de" in place else ("0xfe", "1", place) for place in places
    ]
    assert message.startswith("7 invalid lines: expected UTF-8, got byte") and ", …; " in message


def test_bytes_that_are_not_utf8_can_be_replaced_or_skipped_and_are_counted(text):
    source, target = b"a\nb\xff\nc\n", b"x\ny\nz\n"
    corpus = text(source, target, on_bad_utf8="replace")
    assert (corpus.source, corpus.counts.replaced) == (["a", "b\ufffd", "c"], 1)
    assert corpus.counts.examples == {"replaced bytes that are not UTF-8": ["train.de:2"]}
    corpus = text(source, target, on_bad_utf8="skip")
    assert (corpus.source, corpus.target) == (["a", "c"], ["x", "z"])
    assert corpus.counts.dropped == {"not UTF-8": 1}
    assert corpus.counts.examples == {"not UTF-8": ["train.de:2"]}
    corpus = text(target, source, on_bad_utf8="skip")
    assert corpus.counts.examples == {"not UTF-8": ["train.en:2"]}


def test_a_corpus_of_blank_lines_is_refused_with_the_counts(text):
    assert "0 of 5 pairs left: 5 blank" in refused(DATA, text, b"\n\n\n\n\n", lines("a", 5))


def test_reverse_swaps_the_sides_and_their_files(text):
    corpus = text(b"a\nb\n", b"x\ny\n", reverse=True)
    assert (corpus.source, corpus.target) == (["x", "y"], ["a", "b"])
    assert corpus.where(1) == "train.en:2"


def test_the_fingerprint_of_a_file_depends_on_its_content(text):
    first, same = text(b"a\nb\n", b"x\ny\n"), text(b"a\nb\n", b"x\ny\n")
    different = text(b"a\nb\n", b"x\nz\n")
    assert first.fingerprints == same.fingerprints
    changed = [
        name
        for name in first.fingerprints
        if first.fingerprints[name] != different.fingerprints[name]
    ]
    assert changed == ["train.en"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_read_as_plain_ones(text, tmp_path, suffix):
    plain = text(lines("wort"), lines("word"))
    for name in ("train.de", "train.en"):
        raw = (tmp_path / name).read_bytes()
        (tmp_path / f"{name}{suffix}").write_bytes(COMPRESS[suffix](raw))
    packed = read_corpus(f"text:train.de{suffix},train.en{suffix}", "train", DataConfig())
    assert packed[:3] == plain[:3]
    assert list(packed.fingerprints.values()) == list(plain.fingerprints.values())


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-11],
        lambda raw: b"<html>" + raw,
        lambda raw: raw[:31] + b"\xff" * 17 + raw[48:],
    ],
)
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_compressed_file_is_named(tmp_path, damage, suffix):
    path = tmp_path / f"pairs.tsv{suffix}"
    raw = COMPRESS[suffix](b"".join(b"%d\t%d\n" % (i, i * i) for i in range(997)))
    path.write_bytes(damage(raw))
    message = refused(DATA, read_corpus, f"tsv:{path}", "train", DataConfig())
    assert f"{path} is damaged or cut off" in message


def test_two_tab_separated_fields_are_a_pair(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeffa b\tx\r\n\tblank\nc\ty z".encode())
    corpus = read_corpus(f"tsv:{path}", "train", DataConfig())
    assert (corpus.source, corpus.target) == (["a b", "c"], ["x", "y z"])
    assert corpus.where(1) == f"{path}:3"


@pytest.mark.parametrize(("line", "columns"), [(b"", 1), (b"one", 1), (b"a\tb\tc", 3)])
def test_another_number_of_columns_is_refused_with_its_line(tmp_path, line, columns):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tb\n" + line + b"\n")
    assert refused(DATA, read_corpus, f"tsv:{path}", "train", DataConfig()) == (
        f"1 invalid line: expected 2 tab-separated columns, got {columns} at {path}:2; correct "
        "the file, or drop such lines with --config.data.on_bad_line=skip"
    )


@pytest.fixture
def invalid(tmp_path):
    """A TSV file of 31 lines, of which every third one has one to four columns, but not two."""
    path = tmp_path / "pairs.tsv"
    columns = {n: (1, 3, 4)[n // 3 % 3] for n in range(3, 32, 3)}
    path.write_bytes(b"".join(b"\t".join([b"a"] * columns.get(n, 2)) + b"\n" for n in range(1, 32)))
    return path, columns


def test_all_lines_with_a_wrong_number_of_columns_are_reported_at_once(invalid):
    path, columns = invalid
    message = refused(DATA, read_corpus, f"tsv:{path}", "train", DataConfig())
    got = ", ".join(f"{columns[n]} at {path}:{n}" for n in (3, 6, 9, 12, 15))
    assert message.startswith(
        f"{len(columns)} invalid lines: expected 2 tab-separated columns, got {got}, …; "
    )
    path.write_bytes(path.read_bytes() + b"\xff\ta\n")
    both = refused(DATA, read_corpus, f"tsv:{path}", "train", DataConfig())
    assert both.startswith(message) and f"got byte 0xff in column 1 of {path}:32;" in both


def test_lines_with_a_wrong_number_of_columns_can_be_skipped_and_are_counted(invalid):
    path, columns = invalid
    corpus = read_corpus(f"tsv:{path}", "train", DataConfig(on_bad_line="skip"))
    assert list(corpus.numbers) == [n for n in range(1, 32) if n not in columns]
    assert corpus.counts.dropped == {"wrong number of columns": len(columns)}
    places = [f"{path}:{n}" for n in (3, 6, 9, 12, 15)]
    assert corpus.counts.examples == {"wrong number of columns": places}


def test_a_file_of_invalid_lines_only_has_no_pair_left(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\nb\n")
    message = refused(DATA, read_corpus, f"tsv:{path}", "train", DataConfig(on_bad_line="skip"))
    assert "0 of 2 pairs left: 2 wrong number of columns" in message


def test_missing_empty_and_directory_are_refused_with_the_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name, what in (("absent", "not exist"), ("empty", "is empty"), ("folder", "directory")):
        message = refused(DATA, check_corpus, f"tsv:{name}", "train", DataConfig())
        assert str(tmp_path / name) in message
        assert what in message
    with gzip.open("empty.gz", "wb"):
        pass
    assert "empty" in refused(DATA, read_corpus, "tsv:empty.gz", "train", DataConfig())


def test_home_and_variables_in_paths_are_expanded(tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    for spec in ("tsv:~/pairs.tsv", "tsv:$PLACE/pairs.tsv"):
        assert read_corpus(spec, "train", DataConfig()).source == ["a"]


def test_a_pipe_is_a_file():
    read, write = os.pipe()
    os.write(write, b"a\tb\n")
    os.close(write)
    assert read_corpus(f"tsv:/dev/fd/{read}", "train", DataConfig()).source == ["a"]
    os.close(read)


def test_the_pair_of_an_extremely_long_line_is_dropped_without_reading_it_whole(text, monkeypatch):
    for module in ("data.corpora.text_files", "data.corpora.collector", "files.lines"):
        monkeypatch.setattr(f"seq2seq.{module}.LONGEST", 11)
    corpus = text(b"a\n" + b"b" * 997 + b"\nc\n" + b"d" * 12 + b"\ne\n", lines("x", 5))
    assert corpus.source == ["a", "c", "e"] and list(corpus.numbers) == [1, 3, 5]
    assert list(corpus.counts.dropped.values()) == [2]
    (places,) = corpus.counts.examples.values()
    assert places == ["train.de:2", "train.de:4"]
    assert (
        corpus.fingerprints["train.de"]
        == hashlib.sha256(b"a\n" + b"b" * 997 + b"\nc\n" + b"d" * 12 + b"\ne\n").hexdigest()
    )
    for ending in (b"", b"\n", b"\r\n"):  # a last line without or with a line end
        kept = list(truncated_lines(io.BytesIO(b"f" * 19 + ending)))
        assert len(kept) == 1 and len(kept[0]) > 11
        assert list(truncated_lines(io.BytesIO(b"f" * 11 + ending))) == [b"f" * 11]


def test_the_longest_line_of_a_tsv_file_is_kept_and_a_longer_one_is_dropped(tmp_path, monkeypatch):
    for module in ("data.corpora.text_files", "data.corpora.collector", "files.lines"):
        monkeypatch.setattr(f"seq2seq.{module}.LONGEST", 11)
    (tmp_path / "pairs.tsv").write_bytes(b"abcde\tfghij\nabcde\tfghijk\n")
    corpus = read_corpus(f"tsv:{tmp_path / 'pairs.tsv'}", "train", DataConfig())
    assert (corpus.source, corpus.target) == (["abcde"], ["fghij"])
    assert sum(corpus.counts.dropped.values()) == 1


def test_progress_is_logged_while_a_corpus_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", 3)
    (tmp_path / "pairs.tsv").write_bytes(b"a\tx\n" * 7)
    logged = []
    read_corpus("tsv:pairs.tsv", "train", DataConfig(), logged.append)
    assert logged == [f"pairs.tsv: {count} pairs read" for count in (3, 6, 7)]


@pytest.mark.parametrize("seed", range(30))
def test_lines_are_the_same_in_chunks_of_any_size(seed, monkeypatch):
    """bytes.split finds the lines; a longer line keeps more than LONGEST bytes."""
    monkeypatch.setattr("seq2seq.files.lines.LONGEST", 5)
    choose = random.Random(seed)
    data = bytes(choose.choices(b"ab\r\n", (9, 9, 2, 3), k=choose.randint(0, 400)))
    expected = [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")]
    digest = hashlib.sha256()
    monkeypatch.setattr("seq2seq.files.lines.CHUNK", choose.randint(1, 40))
    truncated = list(truncated_lines(io.BytesIO(data), digest))
    if data:
        assert len(truncated) == len(expected)
        for line, whole_line in zip(truncated, expected, strict=True):
            assert line == whole_line or (
                len(whole_line) > 5 and whole_line.startswith(line) and len(line) > 5
            )
            assert len(line) <= max(5 + 8, 40)
    else:
        assert truncated == []
    assert digest.digest() == hashlib.sha256(data).digest()


def test_lines_of_progress_are_throttled(monkeypatch):
    clock, logged = iter([0.0, 1.0, 5.0, 6.0, 10.5]), []
    monkeypatch.setattr("seq2seq.runtime.logs.time.monotonic", lambda: next(clock))
    log = throttled(logged.append)
    for line in "abcd":
        log(line)
    assert logged == ["b", "d"]

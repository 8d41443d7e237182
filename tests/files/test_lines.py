"""Lines of text files: compressed ones, and bytes that are not UTF-8."""

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import tracemalloc
import zipfile

import pytest

from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.inputs import Input, check_input
from seq2seq.files.lines import LONGEST, check_file, raw_lines, text_lines
from seq2seq.files.output_files import check_outputs, write_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.streams import note
from tests.support.compressed import COMPRESS

ZSTD = b"\x28\xb5\x2f\xfd\x04\x00\x21\x00\x00ein\n"  # without the checksum that its header has


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_recognised_by_name_and_by_content(tmp_path, suffix):
    compress, text = COMPRESS[suffix], "ein\nzwei ä\n".encode()
    for name, content in (
        (f"a{suffix}", compress(text)),
        ("a", compress(text)),
        ("two", compress(text[:6]) + compress(text[6:])),
        ("padded", compress(text) + bytes(8)),
    ):
        (tmp_path / name).write_bytes(content)
        assert list(text_lines(str(tmp_path / name))) == ["ein", "zwei ä"]
    (tmp_path / "empty").write_bytes(compress(b""))
    assert list(text_lines(str(tmp_path / "empty"))) == []
    (tmp_path / f"d{suffix}").write_text("ein\n")
    (tmp_path / "rest").write_bytes(compress(text) + b"rest")
    (tmp_path / "cut").write_bytes(compress(text)[:-3])
    for name in (f"d{suffix}", "rest", "cut"):
        with pytest.raises(UserError, match="damaged or cut off") as refused:
            list(text_lines(str(tmp_path / name)))
        assert refused.value.code == DATA


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_small_file_with_a_line_of_megabytes_needs_little_memory(tmp_path, suffix):
    path = tmp_path / "a"
    path.write_bytes(COMPRESS[suffix](b"a" * (40 << 20) + b"\nb\n"))
    tracemalloc.start()
    try:
        assert [len(line) for line in raw_lines(str(path))] == [LONGEST + 8, 1]
        assert tracemalloc.get_traced_memory()[1] < 25 << 20
    finally:
        tracemalloc.stop()


def test_zstd_without_its_library_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(ZSTD)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for call in (
        lambda: list(text_lines(str(tmp_path / "a"))),
        lambda: check_file(str(tmp_path / "missing.zst")),
        lambda: check_input(str(tmp_path / "missing.zst")),
        lambda: check_outputs([str(tmp_path / "out.zst")], False),
    ):
        with pytest.raises(UserError, match=r"library zstandard; pip .*'\.\[zstd\]'$") as refused:
            call()
        assert refused.value.code == CONFIGURATION


@pytest.mark.parametrize("name", ["in", "in.gz", "in.xz", "in.bz2", "in.zst"])
def test_files_are_compressed_as_their_names_say_and_reproducibly(tmp_path, name):
    if name.endswith("zst"):
        pytest.importorskip("zstandard")
    paths = [tmp_path / folder / name for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        assert write_lines(str(path), ["ein", "zwei ä"], overwrite=False) == 2
        assert list(text_lines(str(path))) == ["ein", "zwei ä"]
    first, second = (path.read_bytes() for path in paths)
    assert first == second and (first == "ein\nzwei ä\n".encode()) == (name == "in")


def test_files_that_begin_like_a_compressed_one_are_text(tmp_path):
    for content, lines in ((b"", []), (b"\x1f", ["\x1f"])):
        (tmp_path / "c").write_bytes(content)
        assert list(text_lines(str(tmp_path / "c"))) == lines


def packed(tar: bool) -> bytes:
    """An archive of one file, in memory."""
    content, archive = io.BytesIO(), io.BytesIO(b"ein\nzwei\n")
    if tar:
        with tarfile.open(fileobj=content, mode="w") as file:
            file.addfile(tarfile.TarInfo("a"), archive)
    else:
        with zipfile.ZipFile(content, "w") as file:
            file.writestr("a", archive.read())
    return content.getvalue()


TEXTS = [
    "A dog runs.\nIt barks at 5.\n",
    "Собака лает.\n",
    "一只狗在公园里跑\n一\n",
    "કૂતરો દોડે છે\n",
    "한국어",
]
OTHER_FORMATS = {
    "compressed twice": [
        gzip.compress(gzip.compress(b"ein\n")),
        lzma.compress(bz2.compress(b"ein\n")),
        bz2.compress(ZSTD),
        gzip.compress(lzma.compress(b"ein\n")),
    ],
    "compressed with lz4: .* with lz4 -d": [b"\x04\x22\x4d\x18\x40ein\n"],
    "a zip archive": [packed(False)],
    "a tar archive": [packed(True), gzip.compress(packed(True))],
    **{
        f"text in {name}: .* iconv -f {name} -t UTF-8": [text.encode(name) for text in TEXTS[:4]]
        for name in ("UTF-16LE", "UTF-16BE")
    },
    "text in UTF-16: ": [text.encode("utf-16") for text in TEXTS],
    "text in UTF-32: ": [text.encode("utf-32") for text in TEXTS],
    r"lines that end in \\r: expected \\n; .* tr '\\r' '\\n'": [b"ein\rzwei\r", b"ein\r\rzwei"],
}


@pytest.mark.parametrize("message", OTHER_FORMATS)
def test_a_file_that_is_not_text_in_utf8_is_refused_by_its_content(tmp_path, message):
    path = tmp_path / "a"
    for content in OTHER_FORMATS[message]:
        path.write_bytes(content)
        for read in (lambda: text_lines(str(path), note), lambda: raw_lines(str(path))):
            with pytest.raises(UserError, match=message) as refused:
                list(read())
            assert refused.value.code == DATA


def test_text_with_bytes_of_other_formats_is_read(tmp_path):
    """NULs, control characters, one carriage return, what an archive begins with in letters."""
    path = tmp_path / "a"
    for content in (
        b"a\0\nb\0c\n", b"\0\n\n", b"\0\x01\x02a\n", b"a\rb", b"a\r\nb\r\n", b"BZh9 1AY\nPK\n",
        b"Z\xfcrich\0 ab\n" * 10, "Ā一\0\n".encode(), b"abc\0\n", b"\0",
    ):  # fmt: skip
        path.write_bytes(content)
        expected = [
            line.removesuffix("\r") for line in content.decode(errors="replace").split("\n")
        ]
        assert list(text_lines(str(path), lambda _: None)) == expected[: content.count(b"\n")] + [
            line for line in expected[content.count(b"\n") :] if line
        ]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_stream_is_read_from_stdin(monkeypatch, suffix):
    reader, writer = os.pipe()
    os.write(writer, COMPRESS[suffix](b"ein\nzwei\n"))
    os.close(writer)
    with open(reader) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert list(text_lines("-")) == ["ein", "zwei"]


def test_the_prefix_of_a_job_applies_to_the_lines_without_a_prefix(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "prefix": "own"}\n{"text": "c", "prefix": ""}\n')
    for prefix, expected in (("the", ["the", "own", ""]), ("", [None, "own", ""])):
        items = Input(str(path), "", FORMATS["jsonl"], False, prefix).items()
        assert [item.prefix for _, item in items] == expected


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
@pytest.mark.parametrize("shift", range(4))
def test_a_line_that_is_too_long_ends_with_a_whole_character_and_keeps_its_invalid_bytes(
    tmp_path, capsys, character, shift
):
    path, start = tmp_path / "in.txt", b"\xff" + b"-" * shift
    path.write_bytes(start + character.encode() * LONGEST + b"\nzwei\n")
    long, short = text_lines(str(path), note)
    characters = (LONGEST - len(start)) // len(character.encode())
    assert long == f"\ufffd{'-' * shift}{character * characters}" and short == "zwei"
    assert capsys.readouterr().err.splitlines() == [
        f"{path}:1: longer than {LONGEST:,} bytes, truncated",
        f"{path}:1: not UTF-8, bytes replaced",
    ]


@pytest.mark.parametrize("bad", [0, 1, 5, 6, 1200])
def test_replaced_bytes_are_reported_once_as_five_places_and_a_count(tmp_path, capsys, bad):
    path = tmp_path / "in.txt"
    path.write_bytes(b"eins\n" + b"zwei \xff\n" * bad + b"drei")
    lines = Input(str(path), "", FORMATS["text"], False)
    assert lines.count() == bad + 2
    report = [f"{path}:{number}: not UTF-8, bytes replaced" for number in range(2, 2 + min(bad, 5))]
    if bad > 5:
        report.append(f"{path}: bytes replaced in {bad:,} lines that are not UTF-8")
    assert capsys.readouterr().err.splitlines() == report
    texts = [item.text for _, item in lines.items(range(bad + 2))]
    assert texts == ["eins", *["zwei \ufffd"] * bad, "drei"] and capsys.readouterr().err == ""

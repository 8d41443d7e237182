"""Lines of text files: compressed ones, and bytes that are not UTF-8."""

import gzip
import os

import pytest

from seq2seq.decoding.command.formats import FORMATS
from seq2seq.decoding.command.inputs import Input
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.lines import LONGEST, text_lines
from seq2seq.runtime.streams import note


def test_gzip_is_recognised_by_name_and_by_content(tmp_path):
    for name, content in (
        ("a.gz", gzip.compress("ein\nzwei ä\n".encode())),
        ("a", gzip.compress("ein\nzwei ä\n".encode())),
        ("b", "ein\nzwei ä".encode()),
    ):
        (tmp_path / name).write_bytes(content)
        assert list(text_lines(str(tmp_path / name))) == ["ein", "zwei ä"]
    for content, lines in ((b"", []), (b"\x1f", ["\x1f"])):
        (tmp_path / "c").write_bytes(content)
        assert list(text_lines(str(tmp_path / "c"))) == lines
    (tmp_path / "d.gz").write_text("ein\n")
    with pytest.raises(UserError, match="damaged") as refused:
        list(text_lines(str(tmp_path / "d.gz")))
    assert refused.value.code == DATA


def test_a_compressed_stream_is_read_from_stdin(monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(b"ein\nzwei\n"))
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

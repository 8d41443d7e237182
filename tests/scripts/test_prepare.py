"""scripts/prepare_*.py: conversion of published files to pairs, and errors of malformed lines."""

import gzip
import io
import json
import zipfile

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import read_corpus
from seq2seq.runtime.errors import CONFIGURATION, DATA, OUTPUT
from seq2seq.scripts import prepare_cmudict, prepare_fairytaleqa, prepare_samsum, prepare_scan
from tests.support.in_process import call_in_process

DICTIONARY = b"'EM  AH M\r\nREAD  R EH D\r\nREAD  R IY D\r\nREAD  R EH D\r\nA  AH\r\nA(1)  EY\r\n"


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs a script in `tmp_path`; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(script, *arguments):
        done = call_in_process(script, *arguments)
        return done.code, done.out, "".join(f"{line}\n" for line in done.err)

    return run


def refused(code, result):
    """The one line on stderr of a command that exited with `code`."""
    assert (result[0], result[1]) == (code, "")
    assert result[2].startswith("error: ") and result[2].count("\n") == 1, result[2]
    return result[2]


def scan_line(i):
    return f"IN: jump {'and walk ' * i}OUT: I_JUMP{' I_WALK' * i}"


@pytest.mark.parametrize(("name", "end"), [("a.txt", "\n"), ("a.txt", "\r\n"), ("a.txt.gz", "\n")])
def test_scan_lines_become_pairs(tmp_path, call, name, end):
    raw = "".join(scan_line(i) + end for i in range(7)).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    code, out, err = call(prepare_scan, f"--input={name}", "--output=a.tsv")
    assert (code, out, err) == (0, "", "a.tsv: 7 pairs\n")
    corpus = read_corpus(f"tsv:{tmp_path / 'a.tsv'}", "train", DataConfig())
    again = [
        f"IN: {source} OUT: {target}"
        for source, target in zip(corpus.source, corpus.target, strict=True)
    ]
    assert again == [scan_line(i) for i in range(7)]
    assert {path.name for path in tmp_path.iterdir()} == {name, "a.tsv"}


def test_every_nth_scan_pair_is_held_out(tmp_path, call):
    (tmp_path / "a.txt").write_text("".join(f"{scan_line(i)}\n" for i in range(11)))
    code, _, err = call(
        prepare_scan,
        "--input=a.txt",
        "--output=train.tsv",
        "--valid=valid.tsv",
        "--valid_every=3",
    )
    assert (code, err) == (0, "train.tsv: 8 pairs\nvalid.tsv: 3 pairs\n")
    counts = {
        name: [line.count("I_WALK") for line in (tmp_path / name).read_text().splitlines()]
        for name in ("train.tsv", "valid.tsv")
    }
    assert counts == {"train.tsv": [0, 1, 3, 4, 6, 7, 9, 10], "valid.tsv": [2, 5, 8]}


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (CONFIGURATION, ["--valid=v.tsv"]),
        (CONFIGURATION, ["--valid_every=5"]),
        (OUTPUT, ["--valid=./a.tsv", "--valid_every=5", "--overwrite"]),
    ],
)
def test_wrong_flags_to_hold_out_pairs_are_refused(tmp_path, call, code, options):
    (tmp_path / "a.txt").write_text(scan_line(1))
    message = refused(code, call(prepare_scan, "--input=a.txt", "--output=a.tsv", *options))
    assert ("two outputs are the same file" if code == OUTPUT else "--valid") in message
    assert not (tmp_path / "a.tsv").exists()


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"IN: OUT: I_JUMP",
        b"IN: jump OUT:",
        b"jump\tI_JUMP",
        b"IN: jump OUT: I_JUMP OUT: I_JUMP",
        b"IN: j\xff OUT: I_JUMP",
    ],
)
def test_a_malformed_scan_line_is_named_and_nothing_is_written(tmp_path, call, bad):
    (tmp_path / "a.txt").write_bytes(scan_line(1).encode() + b"\n" + bad + b"\n")
    message = refused(DATA, call(prepare_scan, "--input=a.txt", "--output=a.tsv"))
    assert "a.txt:2: " in message
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ([], ["' E M\tAH M", "R E A D\tR EH D", "R E A D\tR IY D", "A\tAH", "A\tEY"]),
        (["--distinct"], ["' E M\tAH M", "R E A D\tR EH D", "A\tAH"]),
        (["--distinct", "--without=other"], ["' E M\tAH M", "A\tAH"]),
    ],
)
def test_a_dictionary_becomes_pairs_of_characters_and_phonemes(tmp_path, call, options, pairs):
    (tmp_path / "cmu").write_bytes(DICTIONARY)
    (tmp_path / "other").write_bytes(b"READ  R IY D\r\n")
    code, out, err = call(prepare_cmudict, "--input=cmu", "--output=a.tsv", *options)
    words = len({pair.split("\t")[0] for pair in pairs})
    assert (code, out, err) == (0, "", f"a.tsv: {len(pairs)} pairs, {words} words\n")
    assert (tmp_path / "a.tsv").read_bytes().decode() == "".join(f"{pair}\n" for pair in pairs)


def test_a_word_is_right_if_it_equals_any_of_its_pronunciations(tmp_path, call):
    (tmp_path / "cmu.gz").write_bytes(gzip.compress(DICTIONARY))
    for outputs, rate in (
        ("AH M|R IY D|EY", "0.00 % (0 of 3 "),
        ("AH M|R EH D|AH", "0.00 % (0 "),
        ("AH M|R EH|AH EY", "66.67 % (2 of 3 "),
        ("||", "100.00 % (3 of 3 "),
    ):
        (tmp_path / "out").write_text("".join(f"{line}\n" for line in outputs.split("|")))
        code, out, err = call(prepare_cmudict, "--input=cmu.gz", "--score=out")
        assert (code, err) == (0, "") and out.startswith(f"word error rate {rate}")


def test_outputs_for_other_words_are_refused_with_both_counts(tmp_path, call):
    (tmp_path / "cmu").write_bytes(DICTIONARY)
    (tmp_path / "out").write_text("AH M\n" * 5)
    message = refused(DATA, call(prepare_cmudict, "--input=cmu", "--score=out"))
    assert "out has 5 lines" in message and "cmu has 3 different words" in message


@pytest.mark.parametrize("bad", [b"", b"WORD", b"WORD  ", b"WORD W ER D", b"  W ER D", b"A B  AH"])
def test_a_malformed_dictionary_line_is_named_and_nothing_is_written(tmp_path, call, bad):
    (tmp_path / "cmu").write_bytes(DICTIONARY + bad + b"\r\n")
    message = refused(DATA, call(prepare_cmudict, "--input=cmu", "--output=a.tsv"))
    assert "cmu:7: " in message
    assert [path.name for path in tmp_path.iterdir()] == ["cmu"]


def test_output_and_score_exclude_each_other(tmp_path, call):
    (tmp_path / "cmu").write_bytes(DICTIONARY)
    for options in ([], ["--output=a.tsv", "--score=out"]):
        assert "--score" in refused(CONFIGURATION, call(prepare_cmudict, "--input=cmu", *options))
    for flag in ("--distinct", "--overwrite"):
        done = call(prepare_cmudict, "--input=cmu", "--score=out", flag)
        assert f"{flag} has no effect with --score" in refused(CONFIGURATION, done)


@pytest.mark.parametrize(
    ("script", "content"),
    [(prepare_scan, scan_line(1).encode()), (prepare_cmudict, DICTIONARY)],
)
def test_an_existing_output_is_kept_without_overwrite(tmp_path, call, script, content):
    (tmp_path / "in").write_bytes(content)
    (tmp_path / "a.tsv").write_text("mine")
    arguments = script, "--input=in", "--output=a.tsv"
    assert "--overwrite" in refused(OUTPUT, call(*arguments))
    assert (tmp_path / "a.tsv").read_text() == "mine"
    assert call(*arguments, "--overwrite")[0] == 0
    assert (tmp_path / "a.tsv").read_text() != "mine"


def test_an_unreadable_input_or_unwritable_output_is_one_line(tmp_path, call):
    assert "does not exist" in refused(DATA, call(prepare_scan, "--input=no", "--output=a.tsv"))
    message = refused(OUTPUT, call(prepare_scan, "--input=no", "--output=no/a.tsv"))
    assert "cannot write no/a.tsv" in message


def write_samsum(path, **columns):
    """The archive of SAMSum with these columns in each of its splits; for `test` as text."""
    import pyarrow

    table = pyarrow.table(columns)
    stream = io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samsum/train/dataset.arrow", stream.getvalue())
        archive.writestr("samsum/test/dataset.arrow", b"no Arrow stream")


def test_chats_become_lines_and_empty_ones_are_omitted(tmp_path, call, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    dialogues = ["A: hi\r\nB:  what's\tup?\r\n", "", "A: bye"]
    write_samsum(tmp_path / "a.zip", dialogue=dialogues, summary=["A greets\nB.", "x", "A leaves."])
    code, out, err = call(prepare_samsum, "--input=~/a.zip", "--output=a.tsv")
    assert (code, out, err) == (0, "", "a.tsv: 2 pairs, 1 omitted\n")
    assert (tmp_path / "a.tsv").read_text() == (
        "A: hi <turn> B: what's up?\tA greets B.\nA: bye\tA leaves.\n"
    )


def test_what_is_not_the_archive_of_samsum_is_one_line(tmp_path, call):
    write_samsum(tmp_path / "a.zip", dialogue=["a"], summary=["b"])
    write_samsum(tmp_path / "b.zip", dialogue=["a"], id=["b"])
    (tmp_path / "c.zip").write_bytes(b"no archive")
    for arguments in (
        ("--input=a.zip", "--split=test"), ("--input=a.zip", "--split=validation"),
        ("--input=b.zip",), ("--input=c.zip",), ("--input=missing.zip",),
    ):  # fmt: skip
        error = refused(DATA, call(prepare_samsum, *arguments, "--output=a.tsv"))
        assert "expected samsum.zip with samsum/" in error
    assert not (tmp_path / "a.tsv").exists()


def test_questions_have_their_answer_and_section_as_source(tmp_path, call):
    entries = [
        {"section": "It  was\nwinter.", "answer": "winter", "question": "When was it?", "x": 1},
        {"section": "A b.", "answer": "b", "question": "What?"},
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("".join(f"{json.dumps(entry)}\n" for entry in entries))
    code, out, err = call(prepare_fairytaleqa, "--input=a.jsonl.gz", "--output=a.tsv")
    assert (code, out, err) == (0, "", "a.tsv: 2 pairs\n")
    assert (tmp_path / "a.tsv").read_text() == (
        "winter <section> It was winter.\tWhen was it?\nb <section> A b.\tWhat?\n"
    )


INCOMPLETE = [
    "x",
    "[1]",
    '{"answer": "a", "section": "b"}',
    '{"answer": 1, "section": "b", "question": "c"}',
    '{"answer": " ", "section": "b", "question": "c"}',
]


@pytest.mark.parametrize("line", INCOMPLETE)
def test_a_line_without_question_answer_and_section_is_refused(tmp_path, call, line):
    good = json.dumps(dict.fromkeys(("answer", "section", "question"), "a"))
    (tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n")
    error = refused(DATA, call(prepare_fairytaleqa, "--input=a.jsonl", "--output=a.tsv"))
    assert "a.jsonl:2: expected a JSON object with the texts answer, section, question" in error
    assert not (tmp_path / "a.tsv").exists()

"""Rows 22 to 28: invalid training data passed to train.py."""

import gzip
import random
import re

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.registry import read_corpus
from tests.acceptance.command_line import train
from tests.support.tiny import WORDS, write_corpus

LINES = 1000
BROKEN_LOADER = """
from seq2seq.data.batching import batches
from seq2seq.config.tree import Config

def get_config():
    pack_rows = batches.pack_rows
    made = []
    def broken(*arguments):
        made.append(1)
        if len(made) == 3:
            raise RuntimeError("the disk failed")
        return pack_rows(*arguments)
    batches.pack_rows = broken
    return Config()
"""


def numbered(word, count=LINES):
    return "".join(f"{word} {i}\n" for i in range(1, count + 1)).encode()


def two_files(path, source, target):
    (path / "train.de").write_bytes(source)
    (path / "train.en").write_bytes(target)
    return "text:train.de,train.en"


def report(done):
    """The log line on the training pairs."""
    return next(line for line in done.err if line.startswith("train: "))


@pytest.mark.row(
    22,
    "missing file, directory, empty file, data set not prepared",
    "exit 3 before any device; the full path; the command that prepares it",
)
def test_missing_data(tmp_path, record_property):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name, reason in (
        ("absent", "does not exist"),
        ("folder", "is a directory"),
        ("empty", "is empty"),
    ):
        done = train(f"tsv:{name}", tmp_path / "run", devices=0, cwd=tmp_path)
        assert done.code == 3 and reason in done.error and str(tmp_path / name) in done.error
    done = train(
        "tfds:wmt14_translate/de-en",
        tmp_path / "run",
        devices=0,
        cwd=tmp_path,
        environment={"TFDS_DATA_DIR": str(tmp_path)},
    )
    assert done.code == 3 and "prepare it with: " in done.error and str(tmp_path) in done.error
    message = done.error.replace(str(tmp_path), "DIRECTORY")
    record_property("seen", f"4 of 4, as in “{message[:110]}…”")


@pytest.mark.row(
    23, "line counts differ by +1, −1, +7 on either side", "exit 3 before training: both counts"
)
def test_files_of_different_length(tmp_path, record_property):
    for more in (1, -1, 7):
        for counts in ((LINES, LINES + more), (LINES + more, LINES)):
            corpus = two_files(tmp_path, numbered("wort", counts[0]), numbered("word", counts[1]))
            done = train(corpus, tmp_path / "run", devices=0, cwd=tmp_path)
            expected = f"train.de has {counts[0]} lines, train.en has {counts[1]}"
            assert done.code == 3 and expected in done.error
    record_property("seen", f"6 of 6, as in “{expected}”")


@pytest.mark.row(
    24,
    "a byte that is not UTF-8 at line 777",
    "exit 3: file, line, column, flag to set; replaced or skipped lines are counted",
)
def test_bytes_that_are_not_utf8(tmp_path, record_property):
    bad = numbered("zwölf wort").replace(b" 777\n", b"\xff777\n")
    corpus = two_files(tmp_path, bad, numbered("word"))
    done = train(corpus, tmp_path / "run", devices=0, cwd=tmp_path)
    message = (
        "1 invalid line: expected UTF-8, got byte 0xff in column 11 of train.de:777; "
        "convert the file, or set --config.data.on_bad_utf8=replace or skip"
    )
    assert (done.code, done.error) == (3, message)
    for choice, kept in (
        ("replace", "1,000 pairs kept, 0 dropped, 1 lines with replaced bytes"),
        ("skip", "999 pairs kept, 1 dropped (1 not UTF-8)"),
    ):
        done = train(
            corpus,
            tmp_path / "run",
            f"--config.data.on_bad_utf8={choice}",
            "--dry_run",
            cwd=tmp_path,
            here=True,
        )
        assert done.code == 0 and kept in report(done)
        assert any(line.endswith(": train.de:777") for line in done.err)
    record_property("seen", f"“{message}”; replace: 1,000 pairs; skip: 999")


@pytest.mark.row(
    25,
    "CRLF, lone CR, BOM, NUL, U+2028/2029/0085/VT/FF/FS, no final newline",
    "lines end at \\n only; pairs stay aligned; one CR and the BOM are removed",
)
def test_unusual_characters_in_lines(tmp_path, record_property):
    unusual = "\u2028 \u2029 \u0085 \v \f \x1c \0 \r".split(" ")
    source = [f"wort {i}{unusual[i % len(unusual)]} x" for i in range(LINES)]
    target = [f"word {unusual[-1 - i % len(unusual)]} {i}" for i in range(LINES)]
    corpus = two_files(
        tmp_path,
        "\ufeff".encode() + "\r\n".join(source).encode(),
        "\n".join(target).encode() + b"\n",
    )
    done = train(corpus, tmp_path / "run", "--dry_run", cwd=tmp_path, here=True)
    assert done.code == 0 and report(done).startswith("train: 1,000 pairs kept, 0 dropped")
    paths = ",".join(str(tmp_path / name) for name in ("train.de", "train.en"))
    loaded = read_corpus(f"text:{paths}", "train", DataConfig())
    assert (loaded.source, loaded.target) == (source, target)
    record_property("seen", "1,000 lines of 8 kinds: 1,000 pairs, each with its own number")


@pytest.mark.row(
    26,
    "blank lines, 1 MB line, 10 MB without a space, TSV of 1 or 3 fields, truncated .gz",
    "pairs dropped, counted by reason with 5 places; TSV, .gz: exit 3 with the place; "
    "memory below twice that of the clean file",
)
def test_lines_that_are_not_sentences(tmp_path, record_property):
    choose = random.Random(0)
    clean = [" ".join(choose.choices(WORDS, k=3)) for _ in range(500)]
    flags = "--config.data.tokenizer=unigram", "--config.data.vocab_size=48", "--dry_run"
    lines = "".join(f"{line}\n" for line in clean).encode()
    corpus = two_files(tmp_path, lines, lines)
    for _ in range(2):  # the first run compiles, which also takes memory
        done = train(corpus, tmp_path / "run", *flags, cwd=tmp_path)
        assert done.code == 0, done.err
    peak = done.peak
    source = b"".join(
        [lines, b"\n" * 7, b"eins\n", b"eins " * 200_000 + b"\n", b"z" * 10_000_000 + b"\n"]
    )
    target = b"".join([lines, b"\n" * 3, b"eins\n" * 4, b" \n", b"eins\n" * 2])
    done = train(two_files(tmp_path, source, target), tmp_path / "run", *flags, cwd=tmp_path)
    assert done.code == 0, done.err
    assert report(done).startswith(
        "train: 500 pairs kept, 10 dropped (8 blank, 1 longer than "
        "1,048,576 bytes, 1 source longer than 960 characters)"
    )
    places = ", ".join(f"train.de:{n}" for n in range(501, 506))
    for part in (f"blank: {places}", "bytes: train.de:510", "characters: train.de:509"):
        assert any(part in line for line in done.err), part
    assert done.peak < 2 * peak
    seen = f"10 dropped for 3 reasons; {done.peak / peak:.2f} times the memory"
    for line, count in (("eins", 1), ("a\tb\tc", 3), ("a\tb\tc\td", 4)):
        (tmp_path / "bad.tsv").write_text(f"a\tb\n{line}\n")
        done = train("tsv:bad.tsv", tmp_path / "run", devices=0, cwd=tmp_path)
        assert done.code == 3 and f"columns, got {count} at bad.tsv:2;" in done.error
    whole = gzip.compress(b"".join(b"%d\t%d\n" % (i, i * i) for i in range(997)))
    (tmp_path / "truncated.tsv.gz").write_bytes(whole[:-100])
    done = train("tsv:truncated.tsv.gz", tmp_path / "run", devices=0, cwd=tmp_path)
    assert done.code == 3 and re.match(
        r"truncated.tsv.gz is damaged or cut off \(the first [\d,]+ lines were read", done.error
    )
    record_property("seen", seen)


@pytest.mark.row(
    27,
    "all pairs dropped; fewer pairs than a batch; one pair",
    "exit 3 with the counts if no pair is left; few pairs train; no endless loop",
)
def test_few_or_no_pairs(tmp_path, record_property):
    long = "eins zwei drei vier fünf sechs sieben acht neun\tEINS\n" * 500
    (tmp_path / "long.tsv").write_text(long)
    done = train(
        "tsv:long.tsv", tmp_path / "none", "--config.data.source_length=8", devices=0, cwd=tmp_path
    )
    message = "0 of 500 pairs left: 500 source longer than 7 tokens"
    assert done.code == 3 and message in done.error
    for pairs in (1, 3):
        corpus = write_corpus(tmp_path / f"{pairs}.tsv", pairs)
        done = train(corpus, tmp_path / f"run{pairs}", here=True)
        assert done.code == 0 and f"train: {pairs} pairs kept" in report(done), done.err
    record_property("seen", f"“{message}”; 1 and 3 pairs train")


@pytest.mark.row(
    28,
    "an exception in the thread that makes batches",
    "the command ends with the error and the place in the data; traceback in the log",
)
def test_an_exception_in_the_loader(tmp_path, record_property):
    (tmp_path / "broken.py").write_text(BROKEN_LOADER)
    done = train(
        write_corpus(tmp_path / "pairs.tsv", 113),
        tmp_path / "run",
        first=[f"--config={tmp_path / 'broken.py'}"],
    )
    message = "RuntimeError: the disk failed, while making batch 2 of window 0 of epoch 0"
    assert done.code == 1 and done.error.startswith(message)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "Traceback" in log and "in broken" in log and message.split(", ")[1] in log
    record_property("seen", f"“{message}”")

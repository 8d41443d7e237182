"""Readers of the parts of a mixture: any blocks give the same pairs, in each of several passes."""

import json
import os
import pickle
import random
import tracemalloc
import unicodedata

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import Block
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.corpora.part_reader import collect_block
from seq2seq.data.corpora.registry import open_parts, read_corpus
from seq2seq.runtime.errors import DATA, UserError
from tests.support.compressed import COMPRESS

SIDES = [b"a", b"b", b"a b", "ö".encode(), b"\xff", b"b\xfe", b"", b" ", b"x" * 20]
GOOD = SIDES[:4]


@pytest.fixture
def small_limits(monkeypatch):
    """Sets the largest block; a line is too long above 11 bytes."""
    for module in ("data.corpora.text_files", "data.corpora.collector", "files.lines"):
        monkeypatch.setattr(f"seq2seq.{module}.LONGEST", 11)

    def limit(lines, size=1 << 20):
        monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", lines)
        monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_BYTES", size)

    return limit


def write_odd_files(path, choose, sides):
    """A text corpus, a TSV and a weighted TSV of 60 lines, and their specifications."""
    rows = [(choose.choice(sides), choose.choice(sides)) for _ in range(60)]
    columns = [choose.choice([1, 2, 2, 2, 2, 2, 3] if sides is SIDES else [2]) for _ in rows]
    weights = [choose.choice([b"1", b"0.5", b"-1"] if sides is SIDES else [b"2"]) for _ in rows]
    a, b = path / "a", path / "b"
    a.write_bytes(b"".join(source + b"\n" for source, _ in rows))
    b.write_bytes(b"".join(target + b"\n" for _, target in rows))
    tsv, weighted = path / "a.tsv", path / "w.tsv"
    fields = [b"\t".join((*row, b"c")[:n]) for row, n in zip(rows, columns, strict=True)]
    tsv.write_bytes(b"\n".join(fields))
    lines = zip(fields, weights, strict=True)
    weighted.write_bytes(b"\n".join(b"\t".join(line) for line in lines))
    return f"text:{a},{b}", f"tsv:{tsv}", f"weighted_tsv:{weighted}"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sides", [SIDES, GOOD], ids=["some", "all"])
def test_the_pairs_do_not_depend_on_the_blocks(tmp_path, small_limits, seed, sides):
    """Neither do the counts, their order, the places, and the messages for invalid lines."""
    choose = random.Random(seed)
    specs = write_odd_files(tmp_path, choose, sides)
    mixture = f"0.5*tag:>>x<<:{specs[0]} + {specs[1]} + {specs[2]}"
    for bad_utf8, bad_line in (("error", "error"), ("replace", "skip"), ("skip", "skip")):
        config = DataConfig(
            on_bad_utf8=bad_utf8, on_bad_line=bad_line, reverse=seed % 2 == 1, deduplicate=seed > 1
        )

        def read(spec, split, config=config):
            try:
                corpus = read_corpus(spec, split, config)
            except UserError as error:
                return str(error)
            return corpus, list(corpus.counts.dropped), list(corpus.counts.examples)

        for spec, split in ((mixture, "train"), *((spec, "valid") for spec in specs)):
            small_limits(1 << 14)
            whole = read(spec, split)
            assert isinstance(whole, str) == (bad_utf8 == "error" and sides is SIDES)
            for lines, size in ((1, 99), (2, 99), (3, 99), (7, 99), (99, 30)):
                small_limits(lines, size)
                assert read(spec, split) == whole


def usable(side, config):
    """The text of one side; None if the pair is dropped. Without a fast way for many lines."""
    if len(side) > 11:
        return None
    try:
        text = side.decode()
    except UnicodeDecodeError:
        text = side.decode("utf-8", "replace") if config.on_bad_utf8 == "replace" else ""
    return text if text.strip() else None


@pytest.mark.parametrize("bad_utf8", ["replace", "skip"])
@pytest.mark.parametrize("lines", [1, 4, 1 << 14])
def test_the_kept_pairs_are_those_of_a_loop_over_the_lines(tmp_path, small_limits, lines, bad_utf8):
    small_limits(lines)
    text, tsv, _ = write_odd_files(tmp_path, random.Random(lines), SIDES)
    config = DataConfig(on_bad_utf8=bad_utf8, on_bad_line="skip")
    sides = [open(path, "rb").read().split(b"\n")[:-1] for path in text[5:].split(",")]
    rows = dict(enumerate(zip(*sides, strict=True), 1))
    fields = [line.split(b"\t") for line in open(tsv[4:], "rb").read().split(b"\n")]
    columns = {n: row for n, row in enumerate(fields, 1) if sum(map(len, row)) + len(row) <= 12}
    columns = {n: row for n, row in columns.items() if len(row) == 2}
    for spec, pairs in ((text, rows), (tsv, columns)):
        texts = {n: [usable(side, config) for side in row] for n, row in pairs.items()}
        expected = {n: tuple(pair) for n, pair in texts.items() if None not in pair}
        corpus = read_corpus(spec, "train", config)
        assert list(corpus.numbers) == list(expected)
        assert list(zip(corpus.source, corpus.target, strict=True)) == list(expected.values())
        assert sum(corpus.counts.dropped.values()) == 60 - len(expected)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"".join(b"a %d\tb %d\n" % (i, i) for i in range(9)))
    return path


def reader_of(spec, split="train", **options):
    (reader,) = open_parts(spec, split, DataConfig(**options))
    return reader


def test_a_small_corpus_is_read_once(path):
    reader = reader_of(f"3*tsv:{path}")
    assert (reader.hashes, reader.weight, reader.names) == ({}, 3.0, (str(path), str(path)))
    first, logged = list(reader.blocks()), []
    path.unlink()
    assert list(reader.blocks(logged.append)) == first
    assert not logged and list(reader.hashes) == [str(path)]


def test_a_large_corpus_is_read_again_and_must_not_change(path, monkeypatch):
    monkeypatch.setattr("seq2seq.data.corpora.part_reader.LARGE", path.stat().st_size - 1)
    reader, again = reader_of(f"tsv:{path}"), reader_of(f"tsv:{path}")
    first = list(reader.blocks())
    for _ in range(2):
        blocks = list(reader.blocks())
        assert blocks == first and blocks[0] is not first[0]
    list(again.blocks())
    path.write_bytes(path.read_bytes().replace(b"a 5", b"A 5"))
    with pytest.raises(UserError, match=f"{path} changed while it was used: expected sha256") as no:
        list(again.blocks())
    assert no.value.code == DATA


def test_a_pass_that_is_not_complete_is_not_kept(path, monkeypatch):
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_LINES", 4)
    reader = reader_of(f"tsv:{path}")
    next(reader.blocks())
    assert not reader.hashes and len(list(reader.blocks())) == 3


def test_a_pipe_is_kept_in_memory(monkeypatch):
    monkeypatch.setattr("seq2seq.data.corpora.part_reader.LARGE", -1)
    read, write = os.pipe()
    os.write(write, b"a\tb\n")
    os.close(write)
    reader = reader_of(f"tsv:/dev/fd/{read}")
    assert reader.num_bytes == 0 and reader.identity() is None
    assert list(reader.blocks()) == list(reader.blocks()) == [Block(1, ([b"a\tb"],))]
    os.close(read)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_bytes_of_compressed_files_count_four_times(path, tmp_path, suffix):
    packed = tmp_path / f"a{suffix}"
    packed.write_bytes(COMPRESS[suffix](path.read_bytes()))
    size = path.stat().st_size
    assert reader_of(f"tsv:{path}").num_bytes == size
    assert reader_of(f"text:{path},{packed}").num_bytes == size + 4 * packed.stat().st_size


def test_the_identity_depends_on_all_that_determines_the_text(path, tmp_path, monkeypatch):
    spec, split = f"tsv:{path}", "train"
    identity = reader_of(spec).identity()
    assert json.loads(json.dumps(identity)) == identity
    readers = [
        reader_of(f"weighted_tsv:{path}"),
        reader_of(f"tag:x:{spec}"),
        reader_of(f"tag:y:{spec}"),
        reader_of(spec, reverse=True),
        reader_of(spec, on_bad_utf8="skip"),
        reader_of(spec, on_bad_line="skip"),
        reader_of(spec, deduplicate=True),
        reader_of(spec, "valid"),
        reader_of(f"text:{path},{path}"),
    ]
    identities = [json.dumps(reader.identity()) for reader in readers]
    assert len({json.dumps(identity), *identities}) == 1 + len(readers)
    monkeypatch.chdir(tmp_path)
    assert reader_of("2*tsv:pairs.tsv").identity() == identity
    changed = path.stat().st_mtime_ns + 1
    os.utime(path, ns=(changed, changed))
    assert reader_of(spec).identity() != identity
    path.write_bytes(path.read_bytes() + b"a\tb\n")
    os.utime(path, ns=(changed, changed))
    assert reader_of(spec).identity()["files"] == [[str(path), path.stat().st_size, changed]]
    assert reader_of(spec, split, deduplicate=True).identity()["deduplicate"]
    assert not reader_of(spec, "valid", deduplicate=True).identity()["deduplicate"]


def test_blocks_can_be_collected_in_another_process(path):
    """A block, its part and its result can be sent: pickled, without the reader."""
    config = DataConfig(reverse=True)
    reader = reader_of(f"tag:>>x<<:tsv:{path}", reverse=True)
    (block,) = reader.blocks()
    sent = pickle.loads(pickle.dumps((reader.part, config, "train", block)))
    collected = pickle.loads(pickle.dumps(collect_block(*sent)))
    assert collected.source == [f">>x<< b {i}" for i in range(9)]
    assert collected.target == [f"a {i}" for i in range(9)]
    assert list(collected.numbers) == [*range(1, 10)]
    assert collected.counts == Counts(kept=9) and collected.loss_weights is None


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_reading_a_large_corpus_needs_the_memory_of_one_block(tmp_path, monkeypatch, name):
    """Of long lines; the bytes of a block are the limit, not its lines."""
    monkeypatch.setattr("seq2seq.data.corpora.part_reader.LARGE", 0)
    monkeypatch.setattr("seq2seq.data.corpora.blocks.BLOCK_BYTES", 1 << 20)
    path = tmp_path / name
    compress = COMPRESS.get(path.suffix, bytes)
    path.write_bytes(compress(b"".join(b"%d" % i * 30_000 + b"\tb\n" for i in range(10, 300))))
    reader = reader_of(f"tsv:{path}")
    tracemalloc.start()
    try:
        total = sum(len(line) for block in reader.blocks() for line in block.columns[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 20e6 and peak < 10e6


def test_the_identity_is_that_of_the_files_when_they_were_opened(path):
    reader = reader_of(f"tsv:{path}")
    before = reader.identity()
    reader.check_unchanged()
    os.utime(path, ns=(0, 5))
    assert reader.identity() == before != reader_of(f"tsv:{path}").identity()
    with pytest.raises(UserError, match=f"{path} changed while it was read; run") as changed:
        reader.check_unchanged()
    assert changed.value.code == DATA
    path.unlink()
    with pytest.raises(UserError, match=f"{path} cannot be read: No such file") as missing:
        reader.check_unchanged()
    assert missing.value.code == DATA


def test_a_pipe_cannot_change():
    read, write = os.pipe()
    os.close(write)
    reader = reader_of(f"tsv:/dev/fd/{read}")
    reader.check_unchanged()
    os.close(read)
    reader.check_unchanged()


def test_the_title_has_each_name_once(path):
    copy = path.with_name("other")
    copy.write_bytes(path.read_bytes())
    assert reader_of(f"tsv:{path}").title == str(path)
    assert reader_of(f"text:{path},{copy}").title == f"{path}, {copy}"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_texts_and_tags_are_composed_unless_data_nfc_is_off(form, tmp_path):
    """Whether all pairs of a block are usable, which has a path of its own, or one is not."""
    pair = [unicodedata.normalize(form, text) for text in ("Café", "한국어")]
    tag = unicodedata.normalize(form, ">>é<<")
    for more in ("", "blank\t\n"):
        path = tmp_path / "pairs.tsv"
        path.write_text("\t".join(pair) + "\n" + more, encoding="utf-8")
        for nfc in (True, False):
            corpus = read_corpus(f"tag:{tag}:tsv:{path}", "train", DataConfig(nfc=nfc))
            expected = "NFC" if nfc else form
            texts = [unicodedata.normalize(expected, text) for text in (">>é<< Café", "한국어")]
            assert [*corpus.source, *corpus.target] == texts

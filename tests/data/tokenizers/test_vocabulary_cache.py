"""The cache of vocabularies: trained once, again if damaged, one entry for each key."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from threading import Barrier

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.tokenizers import vocabulary_cache, vocabulary_sample
from seq2seq.data.tokenizers.vocabulary import tokenizer_sha256
from seq2seq.data.tokenizers.vocabulary_cache import cached_tokenizers, vocabulary_key
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.files import output_files as files

IDENTITIES = [{"corpus": "tsv:/a.tsv", "files": [["/a.tsv", 17, 99]]}]
KEY = {"version": 1, "text": "한"}
TEXT = ["abba cada baba daca", "dada caba"] * 9


def trained(kind="bpe", **fields):
    return train_tokenizers(DataConfig(tokenizer=kind, vocab_size=30, **fields), TEXT, TEXT[::-1])


class Trainer:
    """A `train` function that counts its calls."""

    def __init__(self, tokenizers=None):
        self.calls, self._tokenizers = 0, tokenizers or trained("words")

    def __call__(self):
        self.calls += 1
        return self._tokenizers


def entries(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "words", "characters"])
def test_a_vocabulary_is_trained_once(kind, joint, tmp_path):
    expected = trained(kind, joint_vocab=joint)
    train = Trainer(expected)
    for _ in range(3):
        cached = cached_tokenizers(tmp_path / "new" / "vocabularies", KEY, train)
        assert list(map(tokenizer_sha256, cached)) == list(map(tokenizer_sha256, expected))
        assert (cached[0] is cached[1]) == joint
    assert train.calls == 1
    assert len(entries(tmp_path / "new" / "vocabularies")) == 1  # no temporary directory is left


def test_each_key_has_its_own_entry(tmp_path):
    first, second = Trainer(trained("words")), Trainer(trained("bpe"))
    for _ in range(2):
        assert cached_tokenizers(tmp_path, {"a": 1}, first)[0].kind == "words"
        assert cached_tokenizers(tmp_path, {"a": 2}, second)[0].kind == "bpe"
    assert (first.calls, second.calls) == (1, 1)
    cached_tokenizers(tmp_path, {"a": 1, "b": [2]}, first)
    cached_tokenizers(tmp_path, {"b": [2], "a": 1}, first)  # the order of the fields has no meaning
    assert first.calls == 2


@pytest.mark.parametrize("name", ["key.json", "tokenizers.json", "joint.txt"])
@pytest.mark.parametrize("damage", ["missing", "changed", "truncated", "not UTF-8"])
def test_a_damaged_entry_is_trained_again_and_replaced(name, damage, tmp_path):
    train = Trainer()
    cached_tokenizers(tmp_path, KEY, train)
    (entry,) = tmp_path.iterdir()
    content = (entry / name).read_bytes()
    if damage == "missing":
        (entry / name).unlink()
    else:
        changed = {"changed": b"{}", "truncated": content[:-1], "not UTF-8": b"\xff" + content}
        (entry / name).write_bytes(changed[damage])
    for _ in range(2):
        assert cached_tokenizers(tmp_path, KEY, train)[0].kind == "words"
    assert train.calls == 2
    assert entries(tmp_path) == [entry.name]
    assert (entry / name).read_bytes() == content


@pytest.mark.parametrize("fails", [1, 99])
def test_an_entry_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch, fails):
    """A read that fails once is tried again; one that fails each time is no damage."""
    train, real, calls = Trainer(), Path.read_bytes, []
    cached_tokenizers(tmp_path, KEY, train)
    (entry,) = tmp_path.iterdir()
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in entry.iterdir()}

    def read(path):
        calls.append(path)
        if path.name == "joint.txt" and calls.count(path) <= fails:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "PAUSES", (0.0, 0.0))
        patch.setattr(Path, "read_bytes", read)
        assert cached_tokenizers(tmp_path, KEY, train)[0].kind == "words"
    assert train.calls == (1 if fails == 1 else 2)
    for path, facts in before.items():
        assert (path.stat().st_ino, path.read_bytes()) == facts
    assert entries(tmp_path) == [entry.name]


def test_an_entry_of_another_key_is_not_used(tmp_path):
    """Its name is a hash, but its key decides."""
    train = Trainer()
    cached_tokenizers(tmp_path, KEY, train)
    (entry,) = tmp_path.iterdir()
    (entry / "key.json").write_text(json.dumps(KEY | {"text": "other"}, sort_keys=True))
    cached_tokenizers(tmp_path, KEY, train)
    assert train.calls == 2


def test_several_processes_may_write_the_same_entry(tmp_path):
    """All find no entry, train, and write at the same time."""
    together = Barrier(6)

    def run(_):
        def train():
            together.wait(timeout=30)
            return trained("words")

        return cached_tokenizers(tmp_path, KEY, train)[0].kind

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(run, range(6))) == ["words"] * 6
    assert len(entries(tmp_path)) == 1
    train = Trainer()
    cached_tokenizers(tmp_path, KEY, train)
    assert train.calls == 0


def test_a_writer_leaves_the_entry_that_another_one_has_written(tmp_path):
    inodes = []

    def train():
        cached_tokenizers(tmp_path, KEY, Trainer())  # another process, which is faster
        (entry,) = tmp_path.iterdir()
        inodes.append((entry / "key.json").stat().st_ino)
        return trained("words")

    cached_tokenizers(tmp_path, KEY, train)
    (entry,) = tmp_path.iterdir()
    assert [(entry / "key.json").stat().st_ino] == inodes


def test_an_entry_that_cannot_be_written_is_trained_each_time(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    train = Trainer()
    for _ in range(2):
        assert cached_tokenizers(tmp_path / "file", KEY, train)[0].kind == "words"
    assert train.calls == 2


def test_a_full_disk_leaves_no_incomplete_entry(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    train = Trainer()
    with monkeypatch.context() as patch:
        patch.setattr(vocabulary_cache, "write_atomic", full)
        assert cached_tokenizers(tmp_path, KEY, train)[0].kind == "words"
    assert entries(tmp_path) == []
    for _ in range(2):
        cached_tokenizers(tmp_path, KEY, train)
    assert train.calls == 2


CHANGES = {
    "tokenizer": "bpe",
    "target_tokenizer": "words",
    "joint_vocab": False,
    "vocab_size": 7999,
    "target_vocab_size": 77,
    "user_defined": "<num>",
    "normalization": "nfkc",
    "byte_fallback": True,
    "corpus": "tag:>>t<<:tsv:/a.tsv",  # its tags
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_field_of_a_vocabulary_changes_its_key(name):
    config = DataConfig(corpus="tsv:/a.tsv")
    changed = replace(config, **{name: CHANGES[name]})
    assert vocabulary_key(IDENTITIES, changed) != vocabulary_key(IDENTITIES, config)


def test_the_key_changes_with_the_text_and_the_sample(monkeypatch):
    config = DataConfig(corpus="tsv:/a.tsv")
    key = vocabulary_key(IDENTITIES, config)
    assert json.loads(json.dumps(key)) == key
    assert vocabulary_key([IDENTITIES[0] | {"reverse": True}], config) != key
    assert vocabulary_key(IDENTITIES * 2, config) != key
    for module, name in (
        (vocabulary_cache, "VERSION"),
        (vocabulary_cache, "SAMPLE_PAIRS"),
        (vocabulary_cache, "SAMPLE_CHARACTERS"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 17)
            assert vocabulary_key(IDENTITIES, config) != key
    assert vocabulary_cache.SAMPLE_PAIRS == vocabulary_sample.SAMPLE_PAIRS


def test_other_fields_do_not_change_the_key():
    """Those that change the text are part of the identities of the corpora."""
    config = DataConfig(corpus="tsv:/a.tsv")
    unused = {"valid": "tsv:/v.tsv", "source_length": 99, "data_dir": "/d"}
    assert vocabulary_key(IDENTITIES, replace(config, **unused)) == vocabulary_key(
        IDENTITIES, config
    )
    known = set(CHANGES) | set(unused) | {
        "test", "reverse", "nfc", "on_bad_utf8", "on_bad_line", "deduplicate", "vocab",
        "vocab_sha256", "target_length", "max_length_ratio", "source_begin", "source_end",
        "target_begin", "target_start", "source_language", "target_language",
    }  # fmt: skip
    assert {field.name for field in fields(DataConfig)} == known  # decide for a new field

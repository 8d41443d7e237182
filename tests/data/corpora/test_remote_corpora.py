"""Corpora by URL: the same pairs, hashes and cached token ids as those of local files."""

import gzip
import os

import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora import part_reader
from seq2seq.data.corpora.held_out import named_corpora
from seq2seq.data.corpora.registry import check_corpus, open_parts, read_corpus
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.data.tokens import corpus_cache, encoded_corpus
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.data.tokens.encoded_corpus import encode_parts
from seq2seq.files import remote
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError

NAMES = ("a.de", "a.en", "a.tsv", "w.tsv", "z.tsv.gz")
LINES = 40


@pytest.fixture
def paths(storage, tmp_path, monkeypatch):
    """The same files in a directory, $LOCAL, and in the storage, $REMOTE."""
    tsv = "".join(f"a {i}\tb {i}\n" for i in range(LINES))
    contents = {
        "a.de": "".join(f"a {i}\n" for i in range(LINES)).encode(),
        "a.en": "".join(f"b {i}\n" for i in range(LINES)).encode(),
        "a.tsv": tsv.encode(),
        "w.tsv": tsv.replace("\n", "\t0.5\n").encode(),
        "z.tsv.gz": gzip.compress(tsv.encode()),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        storage[name] = content
    monkeypatch.setenv("LOCAL", str(tmp_path))
    monkeypatch.setenv("REMOTE", storage.url)
    monkeypatch.setattr(remote, "PART", 100)
    return tmp_path


SPECS = (
    "text:{}/a.de,{}/a.en",
    "tsv:{}/a.tsv",
    "weighted_tsv:{}/w.tsv",
    "tsv:{}/z.tsv.gz",
    "2*tag:>>x<<:text:{}/a.de,{}/a.en + tsv:{}/a.tsv",
)


def at(spec, place):
    return spec.replace("{}", place)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("place", ["$REMOTE", "memory://bucket"])
def test_pairs_and_hashes_are_those_of_local_files(paths, spec, place):
    local = read_corpus(at(spec, "$LOCAL"), "train", DataConfig())
    there = read_corpus(at(spec, place), "train", DataConfig())
    assert len(local.source) >= LINES
    same = ("source", "target", "numbers", "loss_weights", "counts")
    assert all(getattr(there, name) == getattr(local, name) for name in same)
    hashes = {at(name.replace("$LOCAL", "{}"), place): h for name, h in local.fingerprints.items()}
    assert there.fingerprints == hashes
    assert there.where(3) == f"{there.names[0]}:4"


@pytest.mark.parametrize("spec", SPECS)
def test_sizes_are_those_of_local_files_and_versions_those_of_objects(paths, spec):
    for local, there in zip(*(open_parts(at(spec, place), "train", DataConfig())
                              for place in ("$LOCAL", "$REMOTE")), strict=True):  # fmt: skip
        assert there.num_bytes == local.num_bytes > 0
        identity = there.identity()
        assert identity["corpus"].startswith(("text:memory://bucket/", "tsv:memory://bucket/",
                                              "weighted_tsv:memory://bucket/"))  # fmt: skip
        for url, size, stamp in identity["files"]:
            assert url.startswith("memory://bucket/") and (size, stamp) == remote.info(url)


def test_a_part_that_is_local_and_remote_has_the_versions_of_both(paths):
    (reader,) = open_parts("text:$LOCAL/a.de,$REMOTE/a.en", "train", DataConfig())
    (local, size, time), (there, *version) = reader.identity()["files"]
    assert local == str(paths / "a.de")
    assert [size, time] == [(paths / "a.de").stat().st_size, (paths / "a.de").stat().st_mtime_ns]
    assert there == "memory://bucket/a.en" and tuple(version) == remote.info(there)


def test_a_pipe_and_an_object_are_not_cached(paths):
    os.mkfifo(paths / "pipe")
    (reader,) = open_parts("text:$LOCAL/pipe,$REMOTE/a.en", "train", DataConfig())
    assert reader.identity() is None


def test_a_large_object_must_not_change_between_two_passes(paths, storage, monkeypatch):
    monkeypatch.setattr(part_reader, "LARGE", 10)
    (reader,) = open_parts("tsv:$REMOTE/a.tsv", "train", DataConfig())
    assert len(list(reader.blocks())) == len(list(reader.blocks())) > 0
    reader.check_unchanged()
    storage["a.tsv"] = storage["a.tsv"].replace(b"a 5", b"A 5")
    with pytest.raises(UserError, match="a.tsv changed while it was used: expected sha256") as no:
        list(reader.blocks())
    assert no.value.code == DATA
    with pytest.raises(UserError, match="a.tsv changed while it was read") as refused:
        reader.check_unchanged()
    assert refused.value.code == DATA


def test_missing_objects_and_secrets_are_refused_before_anything_is_read(paths):
    with pytest.raises(UserError, match="memory://bucket/none does not exist") as refused:
        check_corpus("text:$REMOTE/a.de,$REMOTE/none", "train", DataConfig())
    assert refused.value.code == DATA
    with pytest.raises(UserError, match="the corpus has a user name") as refused:
        check_corpus("tsv:gs://me:secret@bucket/a", "train", DataConfig())
    assert refused.value.code == CONFIGURATION and "secret" not in str(refused.value)


def test_urls_can_be_several_validation_sets():
    sets = named_corpora("news=tsv:gs://b/a.tsv; web=text:gs://b/c,s3://d/e", "config.data.valid")
    assert sets == {"news": "tsv:gs://b/a.tsv", "web": "text:gs://b/c,s3://d/e"}
    assert named_corpora("tsv:gs://b/x=1/a.tsv", "config.data.valid") == {
        "": "tsv:gs://b/x=1/a.tsv"
    }


def encode(spec, cache):
    config = DataConfig(corpus=spec, tokenizer="words")
    words = " ".join(map(str, range(LINES)))
    tokenizers = train_tokenizers(config, [f"a {words}"], [f"b {words}"], [])
    readers = open_parts(spec, "train", config)
    return len(encode_parts(readers, config, tokenizers, cache, lambda line: None))


def refuse(*_):
    raise AssertionError("no text is read and no storage asked")


def entries(cache):
    return {path.name for path in cache.corpora.iterdir() if path.is_dir()}


def test_token_ids_of_an_object_are_cached_until_another_version_is_written(
    paths, storage, monkeypatch
):
    cache = CorpusCache(paths / "cache", 0)
    assert encode("tsv:$REMOTE/a.tsv", cache) == LINES
    (first,) = entries(cache)
    with monkeypatch.context() as patch:
        patch.setattr(encoded_corpus, "encoded_blocks", refuse)
        assert encode("tsv:memory://bucket/a.tsv", cache) == LINES
    storage["a.tsv"] = storage["a.tsv"].replace(b"a 5", b"a 6")
    info = remote.info
    with monkeypatch.context() as patch:  # what is not used now stays, without a request
        patch.setattr(remote, "info", lambda url: refuse() if "a.tsv" in url else info(url))
        encode("weighted_tsv:$REMOTE/w.tsv", cache)
    assert first in entries(cache) and len(entries(cache)) == 2
    encode("tsv:$REMOTE/a.tsv", cache)
    assert first not in entries(cache) and len(entries(cache)) == 2


def test_an_object_that_changes_while_it_is_tokenized_leaves_no_entry(paths, storage, monkeypatch):
    cache, real_blocks = CorpusCache(paths / "cache", 0), encoded_corpus.encoded_blocks

    def changing(*arguments):
        yield from real_blocks(*arguments)
        storage["a.tsv"] = storage["a.tsv"]

    monkeypatch.setattr(encoded_corpus, "encoded_blocks", changing)
    with pytest.raises(UserError, match="a.tsv changed while it was read") as refused:
        encode("tsv:$REMOTE/a.tsv", cache)
    assert refused.value.code == DATA and entries(cache) == set()


@pytest.mark.parametrize("url", ["gs://b/a", "s3://b/a"])
def test_an_entry_is_outdated_by_another_version_of_its_url_only(url):
    def key(*versions):
        return {"text": {"files": [list(version) for version in versions]}}

    one, two = (url, 3, "one"), (url, 3, "two")
    assert corpus_cache._is_outdated(key(one), key(two))
    assert corpus_cache._is_outdated(key(one), key((url, 4, "one"), (f"{url}b", 3, "x")))
    assert not corpus_cache._is_outdated(key(one), key(one))
    assert not corpus_cache._is_outdated(key(one), key((f"{url}b", 3, "two")))
    assert corpus_cache._is_outdated(key(one, ("/proc/none", 1, 1)), key(one))

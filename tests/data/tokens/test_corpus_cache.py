"""The corpus cache: an entry is written once, found while its files are unchanged, deleted when it
is damaged or outdated, and never used by mistake."""

import errno
import fcntl
import gc
import json
import os
import resource
import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from absl import flags

from seq2seq.data.corpora.part_reader import LARGE
from seq2seq.data.tokens.corpus_cache import (
    CorpusCache,
    corpus_cache,
    define_cache_flag,
    deleting_damaged_stores,
)
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.data.tokens.token_store import open_store
from seq2seq.runtime.errors import DATA, INTERNAL, OUTPUT, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.workers import WorkerLost

PAIRS = Pairs(ragged([[5, 6], [7]]), ragged([[8], [9, 10, 11]]))
APPENDS = 40


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "data" / "a.tsv"
    path.parent.mkdir()
    path.write_text("a\tb\n")
    return path


@pytest.fixture
def cache(tmp_path):
    return CorpusCache(tmp_path / "cache", 0)


def key_of(path, **fields):
    """The key of the present version of a file, in the form of `store_key`."""
    stat = path.stat()
    return {"text": {"files": [[str(path), stat.st_size, stat.st_mtime_ns]]}, **fields}


class Write:
    """Writes the rest of an entry, and records how many appends there were before."""

    def __init__(self, key):
        self.key, self.before = key, []

    def __call__(self, directory):
        writer = StoreWriter(directory, self.key, 20)
        self.before.append(len(writer.appended))
        for number in range(len(writer.appended), APPENDS):
            self.append(writer, number)
        writer.finish({"made": 1})

    def append(self, writer, number):
        writer.append(PAIRS, np.array([2 * number, 2 * number + 1]), number)


def is_complete(entry):
    store, facts = entry
    index = np.arange(len(store))
    return (
        facts == {"made": 1}
        and store.select(index).source.ids.tolist() == [5, 6, 7] * APPENDS
        and store.select(index).target.ids.tolist() == [8, 9, 10, 11] * APPENDS
        and store.numbers(index).tolist() == list(range(2 * APPENDS))
    )


def entries(cache):
    return sorted(path for path in cache.corpora.iterdir() if path.is_dir())


def test_an_entry_is_written_once(cache, text):
    key, write = key_of(text), Write(key_of(text))
    assert cache.find(key) is None and not cache.directory.exists()
    assert is_complete(cache.find_or_write(key, write, no_log))
    assert is_complete(cache.find(key))
    assert is_complete(cache.find_or_write(key, write, no_log))
    assert write.before == [0] and len(entries(cache)) == 1
    assert cache.find(key | {"other": 1}) is None
    reordered = dict(reversed((key | {"other": 1}).items()))
    cache.find_or_write(reordered, Write(reordered), no_log)
    assert is_complete(cache.find(key | {"other": 1})) and len(entries(cache)) == 2


# Interrupted and failed writes


class Killed(BaseException):
    pass


def failing(key, error, after=3):
    """Writes an entry and fails after some appends."""
    write = Write(key)
    append = write.append

    def append_or_fail(writer, number):
        if number == after:
            raise error
        append(writer, number)

    write.append = append_or_fail
    return write


@pytest.mark.parametrize(
    "error",
    [Killed(), KeyboardInterrupt(), WorkerLost(INTERNAL, "lost"), OSError(errno.EIO, "broken")],
    ids=lambda error: type(error).__name__,
)
def test_an_interrupted_entry_is_not_used_and_is_continued(cache, text, error):
    key, write = key_of(text), Write(key_of(text))
    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        cache.find_or_write(key, failing(key, error), no_log)
    assert cache.find(key) is None
    assert is_complete(cache.find_or_write(key, write, no_log))
    assert write.before == [3]


def test_nothing_is_left_of_an_invalid_text(cache, text):
    key, write = key_of(text), Write(key_of(text))
    with pytest.raises(UserError, match="a.tsv:7 is invalid"):
        cache.find_or_write(key, failing(key, UserError(DATA, "a.tsv:7 is invalid")), no_log)
    assert entries(cache) == [] and cache.find(key) is None

    def refuse(directory):
        raise UserError(DATA, "invalid before the directory was created")

    with pytest.raises(UserError, match="^invalid before"):
        cache.find_or_write(key, refuse, no_log)
    cache.find_or_write(key, write, no_log)
    assert write.before == [0]


def test_a_full_disk_is_reported_and_the_entry_continued_when_there_is_space(cache, text):
    """A limit on the size of files fails like a full disk, at a byte inside of an append."""
    key, write = key_of(text), Write(key_of(text))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (997, limits[1]))
        with pytest.raises(UserError, match="cannot be written: File too large; free") as refused:
            cache.find_or_write(key, write, no_log)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = str(refused.value)
    assert refused.value.code == OUTPUT and "--corpus_cache=DIR" in message
    assert f"the corpus cache {entries(cache)[0]} cannot" in message
    assert cache.find(key) is None
    assert is_complete(cache.find_or_write(key, write, no_log))
    assert write.before[0] == 0 and 0 < write.before[1] < APPENDS


def test_a_directory_that_cannot_be_created_is_refused(text, tmp_path):
    cache, key = CorpusCache(text / "cache", 0), key_of(text)
    assert cache.find(key) is None
    with pytest.raises(UserError, match="cannot be written: Not a directory") as refused:
        cache.find_or_write(key, Write(key), no_log)
    assert refused.value.code == OUTPUT


@pytest.fixture
def read_only(monkeypatch):
    """Refuse all writes, as a read-only file system does; the tests run as root."""
    refused = OSError(errno.EROFS, "Read-only file system")

    def guarded(original, writes):
        def call(*arguments, **options):
            if writes(*arguments):
                raise refused
            return original(*arguments, **options)

        return call

    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    monkeypatch.setattr(os, "open", guarded(os.open, lambda _, flags, *rest: flags & writing))
    opens = guarded(open, lambda _, mode="r", *rest: not set(mode) <= set("rbt"))
    monkeypatch.setattr("builtins.open", opens)
    for name in ("unlink", "rmdir", "rename", "replace"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), lambda *paths: True))
    monkeypatch.setattr(os, "mkdir", guarded(os.mkdir, lambda path, *_: not os.path.isdir(path)))


def test_a_complete_entry_is_used_without_writing(cache, text, request):
    key = key_of(text)
    cache.find_or_write(key, Write(key), no_log)
    request.getfixturevalue("read_only")
    assert is_complete(cache.find_or_write(key, Write(key), no_log))
    with pytest.raises(UserError, match="cannot be written: Read-only file system") as refused:
        cache.find_or_write(key | {"other": 1}, Write(key), no_log)
    assert refused.value.code == OUTPUT


@pytest.mark.parametrize("name", ["cache", "corpora", "store.json", "ids.npy"])
def test_an_entry_that_may_not_be_read_is_not_found_and_not_deleted(cache, text, monkeypatch, name):
    key, refused = key_of(text), PermissionError(errno.EACCES, "Permission denied")
    cache.find_or_write(key, Write(key), no_log)
    before = {path: path.stat().st_mtime_ns for path in cache.directory.rglob("*.npy")}
    with monkeypatch.context() as patch:
        for function in ("open", "stat"):
            original = getattr(os, function)

            def guarded(path, *rest, original=original, function=function, **options):
                below = name in Path(os.fspath(path)).parts[:-1]
                if (below and "." not in name) or (
                    function == "open" and Path(os.fspath(path)).name == name
                ):
                    raise refused
                return original(path, *rest, **options)

            patch.setattr(os, function, guarded)
        assert cache.find(key) is None
        with pytest.raises(UserError, match="Permission denied") as caught:
            cache.find_or_write(key, Write(key), no_log)
        assert caught.value.code == OUTPUT
    assert {path: path.stat().st_mtime_ns for path in cache.directory.rglob("*.npy")} == before
    assert is_complete(cache.find(key))


# Damaged entries


@pytest.mark.parametrize("name", ["ids.npy", "offsets.npy", "numbers.npy", "store.json"])
@pytest.mark.parametrize("place", [0, 0.5, -1])
@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing", "empty"])
def test_a_damaged_entry_is_never_used_and_written_again(
    cache, text, monkeypatch, name, place, damage
):
    monkeypatch.setattr(
        "seq2seq.data.tokens.store_files.CHUNK", 256
    )  # the place may not be in the first chunk
    key = key_of(text)
    cache.find_or_write(key, Write(key), no_log)
    (entry,) = entries(cache)
    content = bytearray((entry / name).read_bytes())
    if damage == "missing":
        (entry / name).unlink()
    else:
        content[int(place * len(content)) if place > 0 else place] ^= 4
        cut = {"flipped": len(content), "shorter": len(content) - 2, "empty": 0}[damage]
        (entry / name).write_bytes(content[:cut])
    stored = cache.find(key)
    if stored:  # the damage is noticed when the chunk is read
        assert damage == "flipped" and name != "store.json"
        with pytest.raises(UserError, match=f"{entry / name} is damaged") as caught:
            with deleting_damaged_stores():
                is_complete(stored)
        assert caught.value.code == DATA
        assert f"{entry} was deleted, so run the same command again" in str(caught.value)
        assert not entry.exists()
    logged, write = [], Write(key)
    assert is_complete(cache.find_or_write(key, write, logged.append))
    assert write.before == [0]
    had_index = entry in [Path(line.split(" is damaged")[0]) for line in logged]
    assert had_index == (not stored and (name, damage) != ("store.json", "missing"))


def test_a_damaged_entry_that_cannot_be_deleted_is_reported(cache, text, monkeypatch):
    monkeypatch.setattr("seq2seq.data.tokens.store_files.CHUNK", 256)
    key = key_of(text)
    store, _ = cache.find_or_write(key, Write(key), no_log)
    (entry,) = entries(cache)
    path = entry / "numbers.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    for name in ("unlink", "rmdir"):
        error = PermissionError(errno.EACCES, "Permission denied")
        monkeypatch.setattr(os, name, Mock(side_effect=error))
    with pytest.raises(UserError, match=f"is damaged .*; delete {entry}, and the next") as caught:
        with deleting_damaged_stores():
            store.numbers(np.arange(len(store)))
    assert caught.value.code == DATA


def test_other_errors_delete_nothing(cache, text):
    key = key_of(text)
    cache.find_or_write(key, Write(key), no_log)
    with pytest.raises(UserError, match="^other$"), deleting_damaged_stores():
        raise UserError(DATA, "other")
    assert is_complete(cache.find(key))


# Outdated entries


def change_size(path):
    stat = path.stat()
    path.write_bytes(path.read_bytes() + b"a")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def change_time(path):
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def interrupt(cache, key):
    with pytest.raises(Killed):
        cache.find_or_write(key, failing(key, Killed()), no_log)
    gc.collect()  # the writer, which the traceback holds


@pytest.mark.parametrize("change", [change_size, change_time, Path.unlink])
@pytest.mark.parametrize("complete", [True, False])
def test_an_entry_of_a_changed_file_is_deleted_when_another_is_written(
    cache, text, change, complete
):
    other_file = text.with_name("other")
    other_file.write_text("c\td\n")
    for name in ("kept", "outdated"):
        key = key_of(other_file if name == "kept" else text)
        if name == "outdated":
            key["text"]["files"].insert(0, key_of(other_file)["text"]["files"][0])
        cache.find_or_write(key, Write(key), no_log) if complete else interrupt(cache, key)
    before = set(entries(cache))
    change(text)
    new = key_of(other_file, other=2)
    cache.find_or_write(new, Write(new), no_log)
    assert len(before & set(entries(cache))) == 1 and len(entries(cache)) == 2
    kept = Write(key_of(other_file))
    assert is_complete(cache.find_or_write(kept.key, kept, no_log))
    assert kept.before == ([] if complete else [3])


def test_an_outdated_entry_that_is_used_is_kept_until_it_is_not(cache, text):
    key = key_of(text)
    used = cache.find_or_write(key, Write(key), no_log)
    change_size(text)
    for number, count in ((1, 2), (2, 3)):
        new = key_of(text, number=number)
        cache.find_or_write(new, Write(new), no_log)
        assert is_complete(used) and len(entries(cache)) == count
    del used
    new = key_of(text, number=3)
    cache.find_or_write(new, Write(new), no_log)
    assert cache.find(key) is None and len(entries(cache)) == 3


def test_an_entry_is_kept_while_the_directory_of_its_files_is_missing(cache, text):
    """It may be on a file system that is not mounted."""
    key = key_of(text)
    cache.find_or_write(key, Write(key), no_log)
    text.parent.rename(text.parent.with_name("away"))
    other_file = text.parent.with_name("other")
    other_file.write_text("c\td\n")
    new = key_of(other_file)
    cache.find_or_write(new, Write(new), no_log)
    assert is_complete(cache.find(key))


@pytest.mark.parametrize(
    "key", [None, [], {}, {"text": 5}, {"text": {"files": [["a"]]}}, {"text": {"files": [5]}}]
)
def test_unknown_content_of_the_directory_is_left_alone(cache, text, key):
    unknown = cache.corpora / "unknown"
    unknown.mkdir(parents=True)
    (unknown / "store.json").write_text(json.dumps({"key": key}))
    (cache.corpora / "empty").mkdir()
    (cache.corpora / "file").touch()
    new = key_of(text)
    assert is_complete(cache.find_or_write(new, Write(new), no_log))
    assert {path.name for path in cache.corpora.iterdir()} > {"unknown", "empty", "file"}


# Several processes


def test_one_process_writes_an_entry_and_the_others_wait_and_use_it(cache, text):
    """Locks of threads conflict like those of processes: they belong to an open file."""
    key, started, go_on = key_of(text), threading.Event(), threading.Event()
    logged, loaded, write = [], [], Write(key)

    def slow(directory):
        started.set()
        assert go_on.wait(30)
        write(directory)

    def log(line):
        logged.append(line)
        if len(logged) == 2:
            go_on.set()

    def run():
        loaded.append(cache.find_or_write(key, slow, log))

    threads = [threading.Thread(target=run) for _ in range(3)]
    threads[0].start()
    assert started.wait(30)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(30)
    (entry,) = entries(cache)
    assert logged == [f"waiting for another process that writes {entry}"] * 2
    assert write.before == [0] and len(loaded) == 3 and all(map(is_complete, loaded))


def test_a_process_that_waited_for_one_that_failed_writes_the_entry(cache, text):
    key, started, waits = key_of(text), threading.Event(), threading.Event()
    refused = []

    def fail(directory):
        started.set()
        assert waits.wait(30)
        failing(key, UserError(DATA, "invalid"))(directory)

    def run():
        with pytest.raises(UserError) as caught:
            cache.find_or_write(key, fail, no_log)
        refused.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    write = Write(key)
    assert is_complete(cache.find_or_write(key, write, lambda _: waits.set()))
    thread.join(30)
    assert len(refused) == 1 and write.before == [0]


def test_the_lock_is_released(cache, text):
    key = key_of(text)
    with pytest.raises(Killed):
        cache.find_or_write(key, failing(key, Killed()), no_log)
    (lock,) = cache.corpora.glob("*.lock")
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# The flag


def test_the_flag_selects_the_directory_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HERE", str(tmp_path / "b"))
    monkeypatch.chdir(tmp_path)
    assert corpus_cache("off") is None
    default = corpus_cache("")
    assert (default.directory, default.smallest) == (tmp_path / "jax-transformer", LARGE)
    for flag, path in (("a", tmp_path / "a"), ("$HERE/c", tmp_path / "b" / "c")):
        cache = corpus_cache(flag)
        assert (cache.directory, cache.smallest) == (path, 0)
        assert cache.corpora == path / "corpora" and cache.vocabularies == path / "vocabularies"
    assert list(tmp_path.iterdir()) == []
    define_cache_flag()
    assert flags.FLAGS["corpus_cache"].default == ""
    delattr(flags.FLAGS, "corpus_cache")  # other tests of this process define it


def test_the_entry_is_a_store(cache, text):
    key = key_of(text)
    cache.find_or_write(key, Write(key), no_log)
    (entry,) = entries(cache)
    assert is_complete(open_store(entry))
    assert json.loads((entry / "store.json").read_text())["key"] == key

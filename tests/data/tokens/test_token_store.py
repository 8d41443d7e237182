"""A token store returns the pairs that it was given, from memory and from files; it reads a chunk
only after it has verified it."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seq2seq.data.tokens import store_files, token_store
from seq2seq.data.tokens.corpus_cache import deleting_damaged_stores
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.data.tokens.store_files import CHUNK, HEADER, INDEX, DamagedStore
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.data.tokens.token_store import in_use, memory_store, open_store, read_key
from seq2seq.files import output_files as files
from seq2seq.runtime.errors import DATA, UserError

FILES = ("ids.npy", "offsets.npy", "numbers.npy", "loss_weights.npy")


def random_pairs(count, seed, highest=60_000, weights=False, longest=8):
    random = np.random.default_rng(seed)
    sides = [
        [
            random.integers(4, highest, random.integers(1, longest + 1)).tolist()
            for _ in range(count)
        ]
        for _ in range(2)
    ]
    loss_weights = random.random(count).astype(np.float32) if weights else None
    return Pairs(*map(ragged, sides), loss_weights=loss_weights)


def listed(pairs):
    """[(source ids, target ids)] of each pair."""
    return [
        tuple(side.ids[side.offsets[i] : side.offsets[i + 1]].tolist() for side in pairs[:2])
        for i in range(len(pairs.source.lengths))
    ]


def numbered(parts):
    """The line numbers of several Pairs: 1, 3, 5, …"""
    counts = [len(pairs.source.lengths) for pairs in parts]
    return np.split(np.arange(1, 2 * sum(counts), 2), np.cumsum(counts)[:-1])


def written(directory, parts, largest_id=60_000, facts=None):
    writer = StoreWriter(directory, {"files": ["a"]}, largest_id)
    for pairs, numbers in zip(parts, numbered(parts), strict=True):
        writer.append(pairs, numbers, {"pairs": len(numbers)})
    writer.finish(facts or {"done": True})
    return open_store(directory)[0]


def everything(store):
    """All that a store returns, as lists."""
    index = np.arange(len(store))
    lengths = np.transpose(store.row_lengths(index)).tolist()
    return listed(store.select(index)), lengths, store.numbers(index).tolist()


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("highest", [60_000, 250_000])
@pytest.mark.parametrize("weights", [False, True])
def test_any_pairs_in_any_order_are_those_written(
    tmp_path, monkeypatch, in_memory, highest, weights
):
    monkeypatch.setattr(token_store, "LENGTHS_AT_ONCE", 7)
    parts = [random_pairs(n, n, highest, weights) for n in (11, 1, 29)]
    if in_memory:
        store = memory_store(parts, numbered(parts))
    else:
        store = written(tmp_path / "store", parts, highest)
    pairs = [pair for part in parts for pair in listed(part)]
    assert len(store) == len(pairs) == 41 and store.has_loss_weights == weights
    for index in ([], [40], [10, 11, 12], np.random.default_rng(0).integers(0, 41, 100)):
        index = np.array(index, np.int32)
        selected = store.select(index)
        assert listed(selected) == [pairs[i] for i in index]
        assert selected.source.ids.dtype == selected.target.ids.dtype == np.int32
        expected = [[len(side) + 1 for side in pairs[i]] for i in index]
        assert np.transpose(store.row_lengths(index)).tolist() == expected
        assert store.numbers(index).tolist() == [2 * i + 1 for i in index]
        if weights:
            of_all = np.concatenate([part.loss_weights for part in parts])
            np.testing.assert_array_equal(selected.loss_weights, of_all[index])
        else:
            assert selected.loss_weights is None
        store.release()


@pytest.mark.parametrize("largest_id, dtype", [(65_535, np.uint16), (65_536, np.int32)])
def test_the_files_are_npy_files(tmp_path, largest_id, dtype):
    pairs = random_pairs(7, 3, largest_id + 1, weights=True)
    pairs.source.ids[0] = largest_id
    written(tmp_path, [pairs], largest_id)
    ids, offsets, numbers, weights = (np.load(tmp_path / name) for name in FILES)
    assert ids.dtype == dtype and offsets.dtype == numbers.dtype == np.int64
    sequences = [side for pair in listed(pairs) for side in pair]
    assert ids.tolist() == [token for sequence in sequences for token in sequence]
    assert (
        np.diff(offsets).tolist() == [len(sequence) for sequence in sequences] and offsets[0] == 0
    )
    assert numbers.tolist() == numbered([pairs])[0].tolist()
    np.testing.assert_array_equal(weights, pairs.loss_weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FILES, INDEX])


@pytest.mark.parametrize("count", [0, 1, 10**12])
def test_numpy_reads_the_header(tmp_path, count):
    path = tmp_path / "x.npy"
    path.write_bytes(store_files.npy_header(np.dtype("<f4"), count))
    os.truncate(path, HEADER + 4 * count) if count < 10**12 else None
    with open(path, "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == ((count,), False, np.float32)
        assert file.tell() == HEADER


def test_a_store_without_pairs(tmp_path):
    nothing = Pairs(ragged([]), ragged([]))
    for store in (written(tmp_path, [nothing]), memory_store([nothing], [np.zeros(0, np.int64)])):
        assert len(store) == 0 and everything(store) == ([], [], [])


def test_an_id_above_the_largest_and_missing_loss_weights_are_refused(tmp_path):
    writer = StoreWriter(tmp_path, {}, 50)
    with pytest.raises(ValueError, match="51"):
        writer.append(Pairs(ragged([[50]]), ragged([[51]])), np.array([1]), {})
    writer.append(random_pairs(3, 0, 50), np.arange(3), {})
    with pytest.raises(ValueError, match="all pairs have loss weights"):
        writer.append(random_pairs(3, 0, 50, weights=True), np.arange(3), {})


# Verification


@pytest.fixture
def small_chunks(monkeypatch):
    """Blocks of 256 bytes; about six are mapped at once."""
    monkeypatch.setattr(store_files, "CHUNK", 256)
    monkeypatch.setattr(store_files, "REGION", 3)
    monkeypatch.setattr(store_files, "GROUP", 2)


def chunks_of(starts, stops, size):
    """The chunks of 256 bytes that the ranges of values occupy, value by value."""
    values = {
        value for start, stop in zip(starts, stops, strict=True) for value in range(start, stop)
    }
    return {(HEADER + size * value) // 256 for value in values} | {0}


def chunks_read(parts, index, method):
    """For each file, the chunks that a method of a store needs for `index`."""
    pairs = [pair for part in parts for pair in listed(part)]
    ends = np.cumsum([0] + [len(side) for pair in pairs for side in pair])
    needed = {name: {0} for name in FILES}  # the chunk of the header
    if method in ("select", "row_lengths"):
        needed["offsets.npy"] = chunks_of([2 * i for i in index], [2 * i + 3 for i in index], 8)
    if method == "select":
        first, last = ([ends[2 * i + k] for i in index] for k in (0, 2))
        needed["ids.npy"] = chunks_of(first, last, 2)
        needed["loss_weights.npy"] = chunks_of(index, [i + 1 for i in index], 4)
    if method == "numbers":
        needed["numbers.npy"] = chunks_of(index, [i + 1 for i in index], 8)
    return needed


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_found_exactly_when_its_chunk_is_read(tmp_path, small_chunks, seed):
    random = np.random.default_rng(seed)
    # Sequences of up to 300 ids occupy several chunks.
    parts = [random_pairs(120, seed, weights=True, longest=int(random.choice([8, 300])))]
    written(tmp_path, parts)
    name = FILES[seed % 4]
    content = bytearray((tmp_path / name).read_bytes())
    for _ in range(15):
        place = int(random.integers(len(content)))
        damaged = content.copy()
        damaged[place] ^= 1 << random.integers(8)
        (tmp_path / name).write_bytes(damaged)
        index = random.integers(0, 120, random.integers(1, 12)).tolist()
        method = str(random.choice(["select", "row_lengths", "numbers"]))
        detected = False
        try:
            getattr(open_store(tmp_path)[0], method)(np.array(index))
        except DamagedStore as error:
            detected = True
            assert error.directory == tmp_path and error.code == DATA
            assert f"{name} is damaged (the sha256 of chunk {place // 256}" in str(error)
        assert detected == (place // 256 in chunks_read(parts, index, method)[name])


@pytest.fixture
def verified(monkeypatch):
    """The (file, chunk) that are verified."""
    calls, verify = [], store_files.MappedArray._verify_chunk
    monkeypatch.setattr(
        store_files.MappedArray,
        "_verify_chunk",
        lambda self, chunk: calls.append((self._path.name, chunk)) or verify(self, chunk),
    )
    return calls


@pytest.mark.parametrize("method", ["select", "row_lengths", "numbers"])
def test_exactly_the_chunks_of_each_pair_are_verified(tmp_path, small_chunks, verified, method):
    parts = [random_pairs(120, 5, weights=True, longest=60)]
    store = written(tmp_path, parts)
    for i in range(120):
        for array in (store._ids, store._offsets, store._numbers, store._loss_weights):
            array._verified[1:] = False
        verified.clear()
        getattr(store, method)(np.array([i]))
        needed = chunks_read(parts, [i], method)
        assert set(verified) == {(name, n) for name in FILES for n in needed[name] - {0}}


def test_no_chunk_of_an_empty_range_is_verified(tmp_path, small_chunks, verified):
    array = written(tmp_path, [random_pairs(500, 0)])._ids
    verified.clear()
    everywhere = np.arange(len(array.values) + 1)
    assert sum(len(part) for part in array.groups(everywhere, everywhere)) == len(everywhere)
    assert not verified
    places = np.array([500, 600, 700])
    assert next(array.groups(places, places + [0, 1, 0])).tolist() == [0, 1, 2]
    assert verified == [("ids.npy", (HEADER + 1200) // 256)]


def test_a_chunk_is_verified_once(tmp_path, small_chunks, verified):
    store = written(tmp_path, [random_pairs(120, 0, weights=True, longest=50)])
    index = np.random.default_rng(0).permutation(120)
    for _ in range(2):
        store.select(index), store.numbers(index), store.row_lengths(index)
    sizes = {name: os.path.getsize(tmp_path / name) for name in FILES}
    expected = [(name, n) for name in FILES for n in range(-(-sizes[name] // 256))]
    assert sorted(verified) == sorted(expected)


def test_few_regions_are_mapped_at_once(tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr(store_files, "GROUP", 5)
    written(tmp_path, [random_pairs(1500, 0)])
    array = open_store(tmp_path)[0]._ids
    starts = np.random.default_rng(0).integers(0, len(array.values) - 9, 200)
    stops, seen, released = starts + np.arange(200) % 9, [], []
    monkeypatch.setattr(array, "release", lambda: released.append(len(seen)))
    for part in array.groups(starts, stops):
        assert len(seen) == (released or [0])[-1]
        seen.extend(part.tolist())
        places = [range(a, b) for a, b in zip(starts[part], stops[part], strict=True)]
        touched = {(HEADER + 2 * value) // (3 * 256) for place in places for value in place}
        assert len(touched) <= 5 + 2  # a range of 8 values can occupy two
    assert sorted(seen) == list(range(200)) and len(released) > len(array._verified) / 3 / 8
    released.clear()
    # Ranges in few regions are one part, however many they are.
    assert len(list(array.groups(starts[:3], stops[:3]))) == 1 and not released
    starts = np.arange(4 * 3 * 128, dtype=np.int64)
    assert len(list(array.groups(starts, starts + 1))) in (1, 2)


@pytest.mark.parametrize("name", [*FILES, INDEX])
@pytest.mark.parametrize("damage", ["shorter", "longer", "missing", "directory", "empty"])
def test_a_file_of_another_size_is_found_when_the_store_is_opened(tmp_path, name, damage):
    written(tmp_path, [random_pairs(9, 0, weights=True)])
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage != "missing":
        changed = {"shorter": content[:-2], "longer": content + b"x", "empty": b""}[damage]
        path.write_bytes(changed)
    with pytest.raises(DamagedStore) as caught:
        open_store(tmp_path)
    assert f"{path} is damaged (" in str(caught.value) and "\n" not in str(caught.value)
    assert f"delete {tmp_path}" in str(caught.value)


def test_a_flipped_bit_in_the_index_is_found_when_the_store_is_opened(tmp_path):
    written(tmp_path, [random_pairs(3, 0)], facts={"lines": 7})
    path, random = tmp_path / INDEX, np.random.default_rng(0)
    content = path.read_bytes()
    for place in range(len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedStore, match=f"{INDEX} is damaged"):
            open_store(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"sha256": 1}', '{"format_version": 1}']
)
def test_an_index_with_other_content_is_damaged(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(DamagedStore, match=f"{INDEX} is damaged"):
        open_store(tmp_path)


def test_another_format_version_is_refused(tmp_path, monkeypatch):
    written(tmp_path, [random_pairs(3, 0)])
    monkeypatch.setattr(store_files, "FORMAT_VERSION", 2)
    with pytest.raises(DamagedStore, match="format version 1"):
        open_store(tmp_path)


def test_the_index_holds_the_sha256_of_each_chunk(tmp_path):
    written(tmp_path, [random_pairs(9_000, 0)], facts={"a": [1, None]})
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["facts"] == {"a": [1, None]} == open_store(tmp_path)[1]
    assert sorted(index["files"]) == sorted(FILES[:3])
    for name, entry in index["files"].items():
        content = (tmp_path / name).read_bytes()
        chunks = [content[i : i + CHUNK] for i in range(0, len(content), CHUNK)]
        assert entry["bytes"] == len(content) and len(chunks) > 1
        assert entry["sha256"] == "".join(hashlib.sha256(chunk).hexdigest() for chunk in chunks)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_read_error_is_no_damage_and_is_tried_again(tmp_path, monkeypatch, number):
    store, calls, real = written(tmp_path, [random_pairs(9_000, 0)]), [], os.pread

    def failing(times):
        def pread(*arguments):
            calls.append(arguments)
            if len(calls) <= times:
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        return pread

    monkeypatch.setattr(files, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(os, "pread", failing(99))
    with pytest.raises(UserError, match=f"cannot be read: {os.strerror(number)}") as caught:
        with deleting_damaged_stores():
            store.numbers(np.array([8_999]))
    assert (caught.value.code, len(calls)) == (DATA, 3) and (tmp_path / "store.json").exists()
    calls.clear()
    monkeypatch.setattr(os, "pread", failing(2))
    assert store.numbers(np.array([8_999])).shape == (1,)


def resident(path):
    """The bytes of a mapped file that are in the memory of this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))


def test_release_returns_the_memory_of_all_files(tmp_path):
    store, index = written(tmp_path, [random_pairs(9_000, 0, weights=True)]), np.arange(9_000)
    for _ in range(2):
        store.select(index), store.numbers(index)
        assert all(resident(tmp_path / name) > 0 for name in FILES)
        store.release()
        assert all(resident(tmp_path / name) == 0 for name in FILES)


# Several processes


def test_a_store_that_is_deleted_closes_its_files(tmp_path):
    def files():
        return sorted(os.listdir("/proc/self/fd"))

    written(tmp_path, [random_pairs(3, 0, weights=True)])
    before = files()
    store = open_store(tmp_path)[0]
    assert len(files()) == len(before) + 1 + 2 * 4  # the map has its own
    del store
    assert files() == before
    (tmp_path / "numbers.npy").unlink()
    with pytest.raises(DamagedStore):
        open_store(tmp_path)
    assert files() == before


def test_a_store_is_in_use_while_it_is_written_or_open(tmp_path):
    directory = tmp_path / "store"
    assert not in_use(directory)
    writer = StoreWriter(directory, {}, 60_000)
    assert in_use(directory)
    writer.append(random_pairs(3, 0), np.arange(3), {})
    del writer  # as after a kill
    assert not in_use(directory)
    StoreWriter(directory, {}, 60_000).finish({})
    assert not in_use(directory)
    stores = [open_store(directory)[0], open_store(directory)[0]]
    assert in_use(directory)
    del stores
    assert not in_use(directory)


def test_a_store_that_may_be_in_use_is_in_use(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    written(tmp_path, [random_pairs(3, 0)])
    monkeypatch.setattr(os, "open", refused)
    assert in_use(tmp_path)


def test_the_key_is_read_from_a_store_and_an_unfinished_one(tmp_path):
    assert read_key(tmp_path) is None
    writer = StoreWriter(tmp_path, {"a": [1]}, 9)
    assert read_key(tmp_path) == {"a": [1]}
    writer.finish({})
    assert read_key(tmp_path) == {"a": [1]}
    (tmp_path / INDEX).write_text("[")
    assert read_key(tmp_path) is None


def test_a_store_that_is_written_again_does_not_disturb_its_readers(tmp_path):
    store = written(tmp_path, [random_pairs(9_000, 0)])
    writer = StoreWriter(tmp_path, {}, 60_000)
    writer.append(random_pairs(9_000, 1), np.arange(9_000), {})
    assert listed(store.select(np.arange(9_000))) == listed(random_pairs(9_000, 0))
    with pytest.raises(DamagedStore):
        open_store(tmp_path)


def test_the_store_can_be_imported_without_jax():
    modules = "seq2seq.data.tokens.token_store, seq2seq.data.tokens.store_writer"
    code = f"import sys, {modules}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

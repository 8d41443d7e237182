"""A store that was interrupted anywhere is the same as one that was not, after it is resumed."""

import errno
import os

import numpy as np
import pytest

from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.data.tokens.store_files import INDEX
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.data.tokens.token_store import JOURNAL, open_store

KEY = {"files": [["a", 1]]}


def part(number):
    """The arguments of append number 0, 1, 2, …"""
    random = np.random.default_rng(number)
    count = 3 * number % 7  # append 0 has no pairs
    sides = [[random.integers(4, 90, random.integers(1, 6)).tolist() for _ in range(count)] * 1]
    sides.append([ids[::-1] + [5] for ids in sides[0]])
    weights = random.random(count).astype(np.float32) if count else None
    pairs = Pairs(*map(ragged, sides), loss_weights=weights)
    return pairs, np.arange(count) + 100 * number, {"number": number}


def complete(directory, key=KEY, parts=5, largest_id=99):
    """Writes the rest of the appends; returns how many were there."""
    writer = StoreWriter(directory, key, largest_id)
    before = len(writer.appended)
    assert writer.appended == [{"number": number} for number in range(before)]
    for number in range(before, parts):
        writer.append(*part(number))
    writer.finish({"parts": parts})
    return before


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    directory = tmp_path_factory.mktemp("expected") / "store"
    assert complete(directory) == 0
    assert JOURNAL not in contents(directory)
    return contents(directory)


class Killed(BaseException):
    """Raised instead of a kill."""


def stop_at(monkeypatch, calls, error, half=False):
    """Fail at call number `calls` of pwrite, truncate, fsync, replace and unlink."""
    left = [calls]

    def wrap(name):
        original = getattr(os, name)

        def wrapped(*arguments, **named):
            left[0] -= 1
            if left[0] == 0:
                if half and name == "pwrite":
                    file, content, position = arguments
                    original(file, content[: len(content) // 2], position)
                raise error
            return original(*arguments, **named)

        monkeypatch.setattr(os, name, wrapped)

    for name in ("pwrite", "truncate", "fsync", "replace", "unlink"):
        wrap(name)
    return left


@pytest.mark.parametrize("half", [False, True])
def test_a_store_that_is_killed_anywhere_is_completed_as_if_it_were_not(
    tmp_path, monkeypatch, expected, half
):
    calls, resumed = 0, set()
    while True:
        calls += 1
        directory = tmp_path / str(calls)
        with monkeypatch.context() as patch:
            left = stop_at(patch, calls, Killed(), half)
            try:
                complete(directory)
            except Killed:
                pass
        if left[0] > 0:
            break
        if not (directory / INDEX).exists():
            resumed.add(complete(directory))
        assert {k: v for k, v in contents(directory).items() if k != JOURNAL} == expected
    assert resumed == {0, 1, 2, 3, 4, 5} and calls > 40


@pytest.mark.parametrize("calls", range(1, 6))  # four files and the journal
def test_an_append_to_a_full_disk_can_be_repeated(tmp_path, monkeypatch, expected, calls):
    writer = StoreWriter(tmp_path, KEY, 99)
    writer.append(*part(0))
    for number in range(1, 5):
        with monkeypatch.context() as patch:
            full = OSError(errno.ENOSPC, "No space left on device")
            stop_at(patch, calls, full, half=True)
            with pytest.raises(OSError, match="No space left"):
                writer.append(*part(number))
        assert len(writer.appended) == number
        writer.append(*part(number))
    writer.finish({"parts": 5})
    assert contents(tmp_path) == expected


@pytest.mark.parametrize(
    "name", ["ids.npy", "offsets.npy", "numbers.npy", "loss_weights.npy", JOURNAL]
)
@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing", "garbage"])
def test_an_append_that_was_damaged_is_written_again(tmp_path, expected, name, damage):
    writer = StoreWriter(tmp_path, KEY, 99)
    for number in range(4):
        writer.append(*part(number))
    del writer
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(content + b'{"facts": {}, "ends": [], "sha256": ""}\n[]\n\xff')
    elif damage == "flipped":
        content[-2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[:-1])
    before = complete(tmp_path)
    assert before == {"missing": 0 if name == JOURNAL else before, "garbage": 4}.get(damage, 3)
    assert contents(tmp_path) == expected


def test_a_write_may_be_divided(tmp_path, monkeypatch, expected):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:5], at))
    complete(tmp_path)
    assert contents(tmp_path) == expected


def test_the_files_are_on_the_disk_before_the_store_is_complete(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    name_of = lambda file: os.path.basename(os.readlink(f"/proc/self/fd/{file}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda file: events.append(name_of(file)) or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("complete") or replace(*paths))
    complete(tmp_path)
    before = events[: events.index("complete")]
    assert {"ids.npy", "offsets.npy", "numbers.npy", "loss_weights.npy"} < set(before)
    assert events[-1] == tmp_path.name  # the names of the files


@pytest.mark.parametrize("change", [{"key": {"files": [["a", 2]]}}, {"largest_id": 70_000}])
def test_another_key_or_dtype_starts_again(tmp_path, change):
    writer = StoreWriter(tmp_path, KEY, 99)
    writer.append(*part(3))
    del writer
    assert complete(tmp_path, **change) == 0
    assert open_store(tmp_path)[1] == {"parts": 5}


@pytest.mark.parametrize("name", ["ids.npy", "numbers.npy", JOURNAL])
def test_what_an_incomplete_append_wrote_is_removed(tmp_path, name):
    writer = StoreWriter(tmp_path, KEY, 99)
    writer.append(*part(1))
    before = contents(tmp_path)
    with open(tmp_path / name, "ab") as file:
        file.write(b"incomplete")
    assert len(StoreWriter(tmp_path, KEY, 99).appended) == 1
    assert contents(tmp_path) == before


def test_a_complete_store_is_replaced(tmp_path, expected):
    complete(tmp_path, parts=3)
    (tmp_path / JOURNAL).write_text("{}\n")  # a kill after store.json was written
    assert complete(tmp_path) == 0
    assert contents(tmp_path) == expected


def test_the_facts_can_be_any_json(tmp_path):
    facts = [{"α": 1.5, "b\r\n\u2028": [None, True]}, "x", {"1": {}}]
    writer = StoreWriter(tmp_path, KEY, 99)
    for fact in facts:
        writer.append(part(1)[0], part(1)[1], fact)
    assert writer.appended == facts == StoreWriter(tmp_path, KEY, 99).appended
    writer.finish(facts[0])
    assert open_store(tmp_path)[1] == facts[0]

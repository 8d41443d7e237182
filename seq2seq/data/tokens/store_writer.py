"""Writing a token store: append by append, with a journal, so that a kill loses one append at most.

The first line of progress.jsonl is the key and the dtype of the ids. Each further line is one
append: its facts, the size of each file after it, and the sha256 of the facts and of what it wrote.
"""

import hashlib
import json
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from seq2seq.data.tokens.pairs import Pairs
from seq2seq.data.tokens.store_files import (
    CHUNK,
    HEADER,
    INDEX,
    lock_as_used,
    npy_header,
    write_index,
)
from seq2seq.data.tokens.token_store import (
    IDS,
    JOURNAL,
    NUMBERS,
    OFFSETS,
    WEIGHTS,
    id_dtype,
    interleaved,
)
from seq2seq.files.output_files import sync_to_disk


class StoreWriter:
    """Writes the files of a store in a directory; resumes after a kill.

    With the same directory, key and dtype of the ids it resumes after the last complete append.
    Otherwise it deletes the files of the directory. The caller ensures that a directory has one
    writer at a time. All methods raise OSError if a file cannot be written, for example on a full
    disk; an append that failed can be repeated.
    """

    def __init__(self, directory: Path, key: Any, largest_id: int):
        """`key`: any JSON. `largest_id`: no id is larger."""
        self._directory, self._largest_id = directory, largest_id
        self._dtypes: dict[str, np.dtype] = {
            IDS: id_dtype(largest_id),
            OFFSETS: np.dtype("<i8"),
            NUMBERS: np.dtype("<i8"),
            WEIGHTS: np.dtype("<f4"),
        }
        self._key = key
        self._head = json.dumps({"key": key, "ids": self._dtypes[IDS].str}).encode("ascii") + b"\n"
        self.appended: list[Any] = []  # the facts of each append
        self._ends = {IDS: HEADER, OFFSETS: HEADER + 8, NUMBERS: HEADER}  # bytes of each file
        self._journal_end = len(self._head)
        directory.mkdir(parents=True, exist_ok=True)
        journal = self._locked_journal()
        if not self._resume():
            self._start(journal)

    def append(self, pairs: Pairs, numbers: Int[np.ndarray, " P"], facts: Any) -> None:
        """Write pairs and the line of each; `facts` (any JSON) are kept in `appended`.

        Either all pairs have loss weights or none has.
        """
        for side in pairs[:2]:
            if side.ids.max(initial=0) > self._largest_id:
                raise ValueError(f"token id {side.ids.max()} > largest_id {self._largest_id}")
        sequences = interleaved(pairs, self._dtypes[IDS])
        content = {
            IDS: sequences.ids,
            OFFSETS: sequences.offsets[1:] + self._count(IDS, self._ends),
            NUMBERS: numbers,
        }
        if pairs.loss_weights is not None:
            content[WEIGHTS] = pairs.loss_weights
        ends = dict(self._ends)
        for name, values in content.items():
            array = np.ascontiguousarray(values, self._dtypes[name])
            start = ends.get(name, HEADER)
            self._write(name, array.tobytes(), start)
            ends[name] = start + array.nbytes
        if WEIGHTS in ends and self._count(WEIGHTS, ends) != self._count(NUMBERS, ends):
            raise ValueError("either all pairs have loss weights or none has")
        entry = {"facts": facts, "ends": ends, "sha256": self._digest(facts, ends)}
        line = json.dumps(entry).encode("ascii") + b"\n"
        self._write(JOURNAL, line, self._journal_end)
        self._journal_end += len(line)
        self._ends = ends
        self.appended.append(json.loads(line)["facts"])

    def finish(self, facts: Any) -> None:
        """Complete the store; `facts` (any JSON) are returned by `open_store`."""
        for name, end in self._ends.items():
            self._write(name, npy_header(self._dtypes[name], self._count(name, self._ends)), 0)
            os.truncate(self._directory / name, end)
            sync_to_disk(self._directory / name)
        write_index(self._directory, list(self._ends), self._key, facts)
        (self._directory / JOURNAL).unlink()
        sync_to_disk(self._directory)

    def _locked_journal(self) -> int:
        """The journal, which is locked as used until this object is deleted."""
        file = os.open(self._directory / JOURNAL, os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, file)
        lock_as_used(file)
        return file

    def _start(self, journal: int) -> None:
        """An empty store. Old files are deleted, not truncated: other processes may read them."""
        for name in (INDEX, *self._dtypes):
            (self._directory / name).unlink(missing_ok=True)
        for name, end in self._ends.items():
            self._write(name, bytes(end), 0)  # the first offset is 0
        os.ftruncate(journal, 0)
        self._write(JOURNAL, self._head, 0)

    def _resume(self) -> bool:
        """Continue after the last append of the journal that is complete; False: start again."""
        lines = (self._directory / JOURNAL).read_bytes().splitlines(keepends=True)
        if (self._directory / INDEX).exists() or lines[:1] != [self._head]:
            return False
        for line in lines[1:]:
            try:
                entry = json.loads(line)
                facts, ends = entry["facts"], entry["ends"]
                if not line.endswith(b"\n") or self._digest(facts, ends) != entry["sha256"]:
                    break
            except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
                break
            self.appended.append(facts)
            self._ends = ends
            self._journal_end += len(line)
        for name, end in [*self._ends.items(), (JOURNAL, self._journal_end)]:
            with suppress(FileNotFoundError):  # written by the next append
                os.truncate(self._directory / name, end)
        return True

    def _count(self, name: str, ends: dict[str, int]) -> int:
        return (ends[name] - HEADER) // self._dtypes[name].itemsize

    def _digest(self, facts: Any, ends: dict[str, int]) -> str:
        """The sha256 of an append: its facts and what it wrote, read from the files."""
        digest = hashlib.sha256(json.dumps([facts, ends]).encode("ascii"))
        for name, end in ends.items():
            with open(self._directory / name, "rb") as file:
                file.seek(start := self._ends.get(name, HEADER))
                while start < end and (content := file.read(min(CHUNK, end - start))):
                    digest.update(content)
                    start += len(content)
        return digest.hexdigest()

    def _write(self, name: str, content: bytes, position: int) -> None:
        """Write bytes at a position of a file."""
        view = memoryview(content)
        file = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            while view:
                written = os.pwrite(file, view, position)
                view, position = view[written:], position + written
        finally:
            os.close(file)

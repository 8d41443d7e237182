"""Files of a token store: one-dimensional .npy files, verified chunk by chunk, and store.json.

A chunk is CHUNK bytes of a file. store.json holds the sha256 of each chunk, and its own. A chunk is
verified when it is first read, so opening a store takes the same time for any size.

    {"sha256": of the rest as one line of JSON,
     "format_version": 1, "key": …, "facts": …,
     "files": {"ids.npy": {"bytes": 1234, "sha256": one hexadecimal hash after the other}, …}}
"""

import fcntl
import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from seq2seq.files.output_files import retried, write_atomic
from seq2seq.runtime.errors import DATA, UserError

INDEX = "store.json"
FORMAT_VERSION = 1
HEADER = 128  # bytes of the header of a .npy file; enough for any number of values
CHUNK = 1 << 16  # bytes
# Memory use while many values are read. The kernel maps up to REGION chunks around a page that is
# read; after GROUP regions their pages are released.
REGION = 16
GROUP = 32
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class DamagedStore(UserError):
    """A token store that is incomplete or differs from what was written; delete `directory`.

    `problem` is the message without that advice.
    """

    def __init__(self, directory: Path, problem: str) -> None:
        super().__init__(DATA, f"{problem}; delete {directory}, and the next start writes it again")
        self.directory, self.problem = directory, problem


def damaged(path: Path, reason: object) -> DamagedStore:
    """The error for a damaged file of a store."""
    if isinstance(reason, OSError):
        reason = reason.strerror
    return DamagedStore(
        path.parent,
        f"{path} is damaged ({reason}): expected a complete store of token ids",
    )


def npy_header(dtype: np.dtype, count: int) -> bytes:
    """The first HEADER bytes of a .npy file with `count` values."""
    shape = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    magic = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    return magic + shape.encode("ascii").ljust(HEADER - 11) + b"\n"


class MemoryArray:
    """Values in memory, with the interface of a MappedArray."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def groups(
        self, starts: Int[np.ndarray, " n"], stops: Int[np.ndarray, " n"]
    ) -> Iterator[slice]:
        """All ranges as one group."""
        yield slice(None)

    def release(self) -> None:
        """No effect."""


class MappedArray:
    """The values of a .npy file that is mapped into memory. `groups` verifies what is read."""

    def __init__(self, path: Path, size: int, digests: str):
        """`size` and `digests` are from store.json. The first chunk is verified immediately.

        DamagedStore if the file is missing, has another size, or its first chunk is damaged;
        OSError if it cannot be opened for another reason, UserError(DATA) if it cannot be read.
        """
        self._path = path
        self._digests = bytes.fromhex(digests)
        self._verified = np.zeros(len(self._digests) // 32, bool)
        try:
            self._file = os.open(path, os.O_RDONLY)
        except MISSING as error:
            raise damaged(path, error) from None
        weakref.finalize(self, os.close, self._file)
        if (actual := os.fstat(self._file).st_size) != size:
            raise damaged(path, f"{actual:,} instead of {size:,} bytes")
        self._map = mmap.mmap(self._file, size, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._verify_chunk(0)
        header = BytesIO(self._map[:HEADER])
        np.lib.format.read_magic(header)
        _, _, dtype = np.lib.format.read_array_header_1_0(header)
        self.values = np.frombuffer(self._map, np.uint8)[HEADER:].view(dtype)

    def groups(
        self, starts: Int[np.ndarray, " n"], stops: Int[np.ndarray, " n"]
    ) -> Iterator[Int[np.ndarray, " group"]]:
        """Divide the ranges of values [start, stop) into groups of about GROUP regions at most.

        Yields the indices of the ranges of each group, after their chunks are verified. If there
        are several groups, the pages of one are released before the next. DamagedStore if a chunk
        differs from what was written.
        """
        order = np.argsort(starts)  # so that each region is in few groups
        starts, stops = starts[order], stops[order]
        size = self.values.itemsize
        last = (HEADER + (stops - 1) * size) // CHUNK  # of each range, a chunk
        # An empty range has no chunk: its first one is after its last one.
        first = np.where(stops > starts, (HEADER + starts * size) // CHUNK, last + 1)
        covered = np.maximum.accumulate(np.concatenate([[-1], last // REGION]))[:-1]
        added = np.maximum(last // REGION - np.maximum(first // REGION, covered + 1) + 1, 0)
        ends = np.flatnonzero(np.diff(np.cumsum(added) // GROUP)) + 1
        bounds = [0, *ends.tolist(), len(order)]
        for start, stop in pairwise(bounds if len(order) else []):
            self._verify(first[start:stop], last[start:stop])
            yield order[start:stop]
            if len(bounds) > 2:
                self.release()

    def release(self) -> None:
        """Unmap the resident pages; the next use maps them again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def _verify(self, first: Int[np.ndarray, " n"], last: Int[np.ndarray, " n"]) -> None:
        """Verify the chunks first[i], …, last[i] of all i that are not yet verified."""
        lowest = first.min()
        ends = np.bincount(last + 1 - lowest)
        open_ranges = np.cumsum(np.bincount(first - lowest, minlength=len(ends)) - ends)
        chunks = lowest + np.flatnonzero(open_ranges)
        for chunk in chunks[~self._verified[chunks]].tolist():
            self._verify_chunk(chunk)

    def _verify_chunk(self, chunk: int) -> None:
        try:  # not through the map, where a read error would end the process
            content = retried(partial(os.pread, self._file, CHUNK, chunk * CHUNK))
        except OSError as error:
            raise UserError(
                DATA,
                f"{self._path} cannot be read: {error.strerror}; check the disk or network file "
                "system, and run the same command again",
            ) from None
        if hashlib.sha256(content).digest() != self._digests[32 * chunk : 32 * chunk + 32]:
            raise damaged(self._path, f"the sha256 of chunk {chunk} differs from that in {INDEX}")
        self._verified[chunk] = True


def write_index(directory: Path, names: list[str], key: Any, facts: dict[str, Any]) -> None:
    """Write store.json for the complete files `names`. Raises OSError if writing fails."""
    files = {name: _described(directory / name) for name in names}
    content = {"format_version": FORMAT_VERSION, "key": key, "facts": facts, "files": files}
    content = json.loads(json.dumps(content))
    index = {"sha256": _index_digest(content)} | content
    write_atomic(directory / INDEX, json.dumps(index, indent=1) + "\n")


def read_index(directory: Path) -> tuple[dict[str, Any], int]:
    """The content of store.json, and the file, which is locked as used until it is closed.

    DamagedStore if it is missing, damaged or of another format version.
    """
    path = directory / INDEX
    try:
        file = os.open(path, os.O_RDONLY)
    except MISSING as error:
        raise damaged(path, error) from None
    try:
        lock_as_used(file)
        with open(file, "rb", closefd=False) as opened:
            index = json.loads(opened.read())
        if index.pop("sha256") != (digest := _index_digest(index)):
            raise damaged(path, "its sha256 differs")
        if index["format_version"] != FORMAT_VERSION:
            raise damaged(path, f"format version {index['format_version']}")
        return index | {"sha256": digest}, file
    except (ValueError, KeyError, TypeError, AttributeError, *MISSING):
        os.close(file)
        raise damaged(path, "invalid content") from None
    except BaseException:
        os.close(file)
        raise


def lock_as_used(file: int) -> None:
    """Mark an open file as used until it is closed or the process ends."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)


def is_locked(path: Path) -> bool:
    """Whether a file is marked as used, or this is unknown; False if it is missing."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(file)


def _index_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()


def _described(path: Path) -> dict[str, Any]:
    """The size of a file and the sha256 of each of its chunks."""
    with open(path, "rb") as file:
        digests = [
            hashlib.sha256(chunk).hexdigest() for chunk in iter(lambda: file.read(CHUNK), b"")
        ]
        return {"bytes": file.tell(), "sha256": "".join(digests)}

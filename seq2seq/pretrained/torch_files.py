"""Files of weights that torch.save writes (a zip archive since torch 1.6), read without torch.

A file is hostile until shown otherwise; torch_pickle.py interprets its pickle and executes nothing.
The sizes of the pickle and of the archive's directory are bounded, and each storage has the size of
its entry. Entries are stored, not compressed, do not overlap, and match their checksums when they
are read. They are mapped and never extracted, so that their names touch no file.
"""

import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from seq2seq.pretrained.torch_pickle import Machine, View
from seq2seq.pretrained.weight_format import DTYPES, Refused

MOST_BYTES = 1 << 22  # of the pickle; a model of 1,000 tensors has 0.3 MB
MOST_ENTRIES = 1 << 14
LOCAL_HEADER = 30  # bytes, before the name
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files before torch 1.6 begin


class TorchFile:
    """The tensors of a file, with the methods of an open safetensors file.

    Refused if it is not read, OSError if it cannot be.
    """

    def __init__(self, path: Path):
        self._path = path
        self._checked: set[str] = set()  # entries whose checksum is right
        with open(path, "rb") as file:
            if file.read(len(OLD_MAGIC)) == OLD_MAGIC:
                raise Refused("has the format of torch before 1.6, which is not supported")
        self._places = _entries(path)
        prefix = next(iter(self._places)).partition("/")[0]
        order = f"{prefix}/byteorder"
        if order in self._places and bytes(self._bytes(order, 16)) != b"little":
            raise Refused("has another byte order than little-endian")
        try:
            tensors = Machine(prefix).run(bytes(self._bytes(f"{prefix}/data.pkl", MOST_BYTES)))
        except Refused:
            raise
        except (ValueError, IndexError, KeyError) as error:
            raise Refused(f"is malformed: its pickle cannot be read: {str(error)[:80]}") from None
        if type(tensors) is not dict or not all(type(x) is View for x in tensors.values()):
            raise Refused("has other content than a dict of tensors")
        for view in tensors.values():
            itemsize = np.dtype(DTYPES[view.storage.type]).itemsize
            entry = self._places.get(view.storage.entry)
            if entry is None or entry.size != view.storage.size * itemsize:
                raise Refused("is malformed: a storage is missing or has another size than stated")
        self._tensors: dict[str, View] = tensors

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return [*self._tensors]

    def get_slice(self, name: str) -> View:
        """The shape and dtype of a tensor."""
        return self._tensors[name]

    def get_tensor(self, name: str) -> np.ndarray:
        """A tensor. Memory holds one copy of it."""
        storage, offset, shape, strides = self._tensors[name]
        numbers = self._bytes(storage.entry).view(DTYPES[storage.type])
        steps = [step * numbers.itemsize for step in strides]
        return np.array(np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps))

    def _bytes(self, name: str, most: int | None = None) -> np.ndarray:
        """An entry, mapped. Its checksum is compared when it is first read."""
        place = self._places.get(name)
        if place is None or place.size == 0 or (most is not None and place.size > most):
            raise Refused(f"is malformed: {name.partition('/')[2][:60]} is missing, empty or large")
        mapped = np.memmap(self._path, np.uint8, "r", place.start, (place.size,))
        content: np.ndarray = mapped.view(np.ndarray)
        if name not in self._checked:
            if zlib.crc32(content.data) != place.checksum:
                raise Refused("is damaged: an entry has another checksum; download it again")
            self._checked.add(name)
        return content


class Place(NamedTuple):
    """Where an entry of the archive lies."""

    start: int
    size: int
    checksum: int


def _entries(path: Path) -> dict[str, Place]:
    """The entries of an archive by name. Refused unless torch could have written them."""
    try:
        with ZipFile(path) as archive:
            infos, end = archive.infolist(), archive.start_dir
    except (BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise Refused(f"is no file of torch.save: {str(error)[:80]}") from None
    if not 0 < len(infos) <= MOST_ENTRIES:
        raise Refused(f"is malformed: expected 1 to {MOST_ENTRIES} entries, got {len(infos)}")
    prefix, places, regions = infos[0].filename.partition("/")[0], {}, []
    with open(path, "rb") as file:
        for info in infos:
            _check_name(info.filename, prefix)
            if info.compress_type != ZIP_STORED or info.compress_size != info.file_size:
                raise Refused("has compressed entries, which torch.save never writes")
            if info.flag_bits & 1 or info.filename in places:
                raise Refused("is malformed: entries are encrypted or have the same name")
            start = _content_start(file, info)
            places[info.filename] = Place(start, info.file_size, info.CRC)
            regions.append((info.header_offset, start + info.file_size))
    regions.sort()
    if any(a[1] > b[0] for a, b in pairwise([*regions, (end, end)])):
        raise Refused("is malformed: entries overlap each other or the directory")
    return places


def _content_start(file: Any, info: ZipInfo) -> int:
    """The first byte of an entry's content, by its local header."""
    if info.header_offset < 0:
        raise Refused("is malformed: an entry begins before the file")
    file.seek(info.header_offset)
    header = file.read(LOCAL_HEADER)
    lengths = [int.from_bytes(header[i : i + 2], "little") for i in (26, 28)]
    name = file.read(lengths[0])
    if header[:4] != b"PK\x03\x04" or name != info.orig_filename.encode():
        raise Refused("is malformed: an entry has no header or another name in it")
    return int(info.header_offset) + LOCAL_HEADER + sum(lengths)


def _check_name(name: str, prefix: str) -> None:
    folder, _, rest = name.partition("/")
    known = rest in ("data.pkl", "version", "byteorder") or rest.startswith(".")
    if folder != prefix or not (known or (rest.startswith("data/") and rest[5:].isdecimal())):
        raise Refused(f"is refused: torch.save writes no entry {name[:60]!r}")

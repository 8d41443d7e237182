"""Files of weights of transformers' Flax models (flax_model.msgpack), read without Flax.

The names are those of the PyTorch model: the keys of the tree with dots between them, and `weight`
for `kernel`, `scale` and `embedding`. A kernel is transposed.

A file is hostile until shown otherwise. This module interprets the few types of msgpack that a tree
of arrays needs, and refuses every other one. Every size is compared with that of the file before
anything is allocated; depth and number of keys are bounded. The file is mapped, so that memory
holds the array that is read; flax.serialization would hold all of them.
"""

import mmap
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seq2seq.pretrained.weight_format import DTYPES, MOST_DIMENSIONS, Refused

MOST_KEYS = 1 << 15  # of a file; a model of 1,000 arrays has about 2,500
MOST_DEPTH = 16
LONGEST = 100  # characters of a name
AS_WEIGHT = "kernel", "scale", "embedding"
FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ARRAY = 1  # the code of Flax's extension type
CHUNKED = "__msgpack_chunked_array__"  # the first key of an array of more than 1 GiB
# The first byte of an item: its type, and the bytes of the length or the number that follows.
TYPES = {
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xC7: ("extension", 1), 0xC8: ("extension", 2), 0xC9: ("extension", 4),
    0xCC: ("integer", 1), 0xCD: ("integer", 2), 0xCE: ("integer", 4), 0xCF: ("integer", 8),
    0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4),
    0xDC: ("list", 2), 0xDD: ("list", 4), 0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip


class Part(NamedTuple):
    """Consecutive numbers of the file."""

    start: int
    size: int  # bytes


class Array(NamedTuple):
    """An array of the file, in one part or in several; a kernel is stored transposed."""

    parts: tuple[Part, ...]
    stored_shape: tuple[int, ...]
    dtype: str  # as safetensors names it
    is_kernel: bool = False

    def get_shape(self) -> tuple[int, ...]:
        """The shape, as safetensors' slices return it."""
        return self.stored_shape[::-1] if self.is_kernel else self.stored_shape

    def get_dtype(self) -> str:
        """The name of the dtype, as safetensors' slices return it."""
        return self.dtype


class FlaxFile:
    """The arrays of a file, with the methods of an open safetensors file.

    Refused if it is not read, OSError if it cannot be.
    """

    def __init__(self, path: Path):
        self._path = path
        with open(path, "rb") as file:
            if not file.read(1):
                raise Refused("is empty; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                self._arrays = _Tree(content).arrays

    def keys(self) -> list[str]:
        """The names of the arrays, those of PyTorch."""
        return [*self._arrays]

    def get_slice(self, name: str) -> Array:
        """The shape and dtype of an array."""
        return self._arrays[name]

    def get_tensor(self, name: str) -> np.ndarray:
        """An array. Memory holds one copy of it."""
        array = self._arrays[name]
        mapped = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
        content: np.ndarray = np.concatenate(
            [mapped[part.start : part.start + part.size] for part in array.parts]
        )
        stored = content.view(DTYPES[array.dtype]).reshape(array.stored_shape)
        return stored.T if array.is_kernel else stored


def torch_name(keys: Sequence[str]) -> str:
    """The name in PyTorch of the array with these keys."""
    last = "weight" if keys[-1] in AS_WEIGHT else keys[-1]
    return ".".join((*keys[:-1], last))


class _Tree:
    """The arrays of a file by name. Refused unless it is a tree of arrays and nothing else."""

    def __init__(self, content: mmap.mmap):
        self.arrays: dict[str, Array] = {}
        self._content, self._position, self._keys = content, 0, 0
        self._read_map(self._expect("map"), ())
        if self._position != len(content):
            raise Refused("is malformed: its tree ends before the file")

    def _read_map(self, size: int, keys: tuple[str, ...]) -> None:
        if len(keys) > MOST_DEPTH:
            raise Refused(f"is malformed: its tree is deeper than {MOST_DEPTH} levels")
        for number in range(size):
            key = self._key()
            if key == CHUNKED and (number, size) == (0, 3) and keys:
                self._add(keys, self._chunked())
                return
            kind, length = self._header()
            if kind == "map":
                self._read_map(length, (*keys, key))
            elif kind == "extension":
                self._add((*keys, key), self._array(length))
            else:
                raise Refused(f"has other content than arrays: {'.'.join((*keys, key))[-60:]}")

    def _add(self, keys: tuple[str, ...], array: Array) -> None:
        name = torch_name(keys)
        if name in self.arrays:
            raise Refused(f"is malformed: it has {name[-60:]} twice")
        is_kernel = keys[-1] == "kernel"
        self.arrays[name] = array._replace(is_kernel=is_kernel)

    def _array(self, length: int) -> Array:
        """An array after the header of its extension type: a list of shape, dtype and content."""
        code, end = self._take(1)[0], self._position + length
        if code != ARRAY:
            raise Refused(f"has other content than arrays: the extension type {code}")
        if self._expect("list") != 3:
            raise Refused("is malformed: an array has other fields than Flax writes")
        shape = tuple(self._expect("integer") for _ in range(self._rank("list")))
        dtype = self._text()
        if dtype not in FLOATS:
            raise Refused(f"has arrays of dtype {dtype[:20]}: expected {', '.join(FLOATS)}")
        part = self._part(self._expect("bytes"))
        if self._position != end:
            raise Refused("is malformed: an array has another size than stated")
        return _checked((part,), shape, FLOATS[dtype])

    def _chunked(self) -> Array:
        """An array in chunks: a map of a mark, the shape, and arrays of one dimension."""
        if self._take(1) != b"\xc3" or self._key() != "shape":
            raise Refused("is malformed: an array in chunks has no shape")
        shape = tuple(self._numbered(i, "integer") for i in range(self._rank("map")))
        if self._key() != "chunks":
            raise Refused("is malformed: an array in chunks has none")
        chunks = [self._array(self._numbered(i, "extension")) for i in range(self._expect("map"))]
        if len({(chunk.dtype, len(chunk.stored_shape)) for chunk in chunks}) != 1:
            raise Refused("is malformed: the chunks of an array differ")
        parts = tuple(part for chunk in chunks for part in chunk.parts)
        return _checked(parts, shape, chunks[0].dtype)

    def _numbered(self, number: int, kind: str) -> int:
        """The header of the item of a map whose keys are the numbers from 0."""
        if self._key() != str(number):
            raise Refused("is malformed: the chunks of an array are in another order")
        return self._expect(kind)

    def _rank(self, kind: str) -> int:
        rank = self._expect(kind)
        if rank > MOST_DIMENSIONS:
            raise Refused(f"is malformed: an array has {rank} dimensions")
        return rank

    def _key(self) -> str:
        self._keys += 1
        if self._keys > MOST_KEYS:
            raise Refused("is malformed: its tree has too many keys")
        return self._text()

    def _text(self) -> str:
        """A name: of a key or a dtype."""
        size = self._expect("text")
        text = self._take(size).decode("ascii", "replace") if size <= LONGEST else ""
        if not re.fullmatch(r"\w+", text, re.ASCII):
            raise Refused("is malformed: a key or a dtype is no name")
        return text

    def _expect(self, kind: str) -> int:
        """The length or the number of the next item, which must be of this type."""
        found, number = self._header()
        if found != kind:
            raise Refused(f"is malformed: expected the msgpack type {kind}, got {found}")
        return number

    def _header(self) -> tuple[str, int]:
        """The type of the next item, and its length or, of an integer, its value."""
        first = self._take(1)[0]
        for kind, start, end in (
            ("integer", 0x00, 0x7F), ("map", 0x80, 0x8F), ("list", 0x90, 0x9F),
            ("text", 0xA0, 0xBF),
        ):  # fmt: skip
            if start <= first <= end:
                return kind, first - start
        if 0xD4 <= first <= 0xD8:
            return "extension", 1 << (first - 0xD4)
        if first not in TYPES:
            raise Refused(f"has other content than arrays: the msgpack type 0x{first:02x}")
        kind, width = TYPES[first]
        return kind, int.from_bytes(self._take(width), "big")

    def _take(self, size: int) -> bytes:
        part = self._part(size)
        return self._content[part.start : part.start + size]

    def _part(self, size: int) -> Part:
        """The next bytes, which are not read."""
        start, self._position = self._position, self._position + size
        if self._position > len(self._content):
            raise Refused("is truncated or malformed: an item ends after the file")
        return Part(start, size)


def _checked(parts: tuple[Part, ...], shape: tuple[int, ...], dtype: str) -> Array:
    size = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if not 0 < size == sum(part.size for part in parts):
        raise Refused("is malformed: an array is empty or has another size than its shape")
    return Array(parts, shape, dtype)

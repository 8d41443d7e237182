"""Compressed files: gzip, xz, bzip2 and zstd; recognised by content or name, read and written.

A member is one complete compressed stream. A file may have several: their contents are joined.
"""

import bz2
import gzip
import io
import lzma
import re
from collections.abc import Callable
from types import ModuleType
from typing import BinaryIO, NamedTuple, Protocol, cast

from seq2seq.runtime.errors import CONFIGURATION, UserError

CHUNK = 1 << 20  # bytes that are read at once
PIECE = 1 << 8  # compressed bytes that are decompressed at once; of zstd they are at most 8 MiB
ENOUGH = 1 << 16  # bytes that the other formats decompress at once


class Decompressor(Protocol):
    """The decompressor of one member, as in bz2 and lzma."""

    @property
    def eof(self) -> bool: ...  # the end of the member is reached

    @property
    def needs_input(self) -> bool: ...  # there is no more content before more data

    @property
    def unused_data(self) -> bytes: ...  # that follow the member

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decompressed(io.RawIOBase):
    """The joined contents of the members of a compressed file. A read waits only for the data that
    it needs. EOFError if the file is damaged or cut off."""

    def __init__(
        self,
        file: io.BufferedReader,
        decompressor: Callable[[], Decompressor],
        error: type[Exception],
    ):
        """`error` is the exception of `decompressor` for damaged data."""
        self._file, self._new, self._error = file, decompressor, error
        self._member: Decompressor | None = None  # None: no member has begun
        self._data = memoryview(b"")  # read, not decompressed
        self._content = memoryview(b"")  # decompressed, not returned

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._content:
            piece = b""
            if not self._member or self._member.needs_input:
                self._data = self._data or memoryview(self._file.read1(CHUNK))
                piece, self._data = bytes(self._data[:PIECE]), self._data[PIECE:]
                if not piece and self._member:
                    raise EOFError("it ends before the end of the compressed data")
                if not piece:
                    return 0
            self._content = memoryview(self._decompressed(piece))
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _decompressed(self, piece: bytes) -> bytes:
        if not self._member:
            piece = piece.lstrip(b"\0")  # padding between members
            if not piece:
                return b""
            self._member = self._new()
        try:
            content = self._member.decompress(piece, ENOUGH)
        except self._error as error:
            raise EOFError(str(error)) from None
        if self._member.eof:
            self._data = memoryview(self._member.unused_data + bytes(self._data))
            self._member = None
        return content


class Compression(NamedTuple):
    """A format of compressed files."""

    suffix: str  # of the names of files
    signature: re.Pattern[bytes]  # the start of a file; no text in UTF-8 begins with it
    decompressed: Callable[[io.BufferedReader], io.RawIOBase]
    compressed: Callable[[BinaryIO], object]  # what is written to it is written compressed
    library: Callable[[], object] = lambda: None  # UserError(CONFIGURATION) if it is missing


def _zstandard() -> ModuleType:
    """The library zstandard; UserError(CONFIGURATION) without it."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UserError(
            CONFIGURATION,
            "zstd is not supported by this installation: expected the library zstandard; "
            "pip install -e '.[zstd]'",
        ) from None
    return zstandard


class _ZstdDecompressor:
    """A `Decompressor` of zstandard, whose own cannot limit what it returns."""

    needs_input = True

    def __init__(self) -> None:
        self._frame = _zstandard().ZstdDecompressor().decompressobj()

    def decompress(self, data: bytes, _: int, /) -> bytes:
        return self._frame.decompress(data)

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data


COMPRESSIONS = (
    Compression(
        ".gz",
        re.compile(rb"\x1f\x8b"),
        lambda file: cast(io.RawIOBase, gzip.GzipFile(fileobj=file)),
        lambda file: gzip.GzipFile("", "wb", fileobj=file, mtime=0),
    ),
    Compression(
        ".xz",
        re.compile(rb"\xfd7zXZ\0"),
        lambda file: Decompressed(file, lzma.LZMADecompressor, lzma.LZMAError),
        lambda file: lzma.LZMAFile(file, "wb"),
    ),
    Compression(
        ".bz2",
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        lambda file: Decompressed(file, bz2.BZ2Decompressor, OSError),
        lambda file: bz2.BZ2File(file, "wb"),
    ),
    Compression(
        ".zst",
        re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # or a frame to skip
        lambda file: Decompressed(file, _ZstdDecompressor, _zstandard().ZstdError),
        lambda file: _zstandard().ZstdCompressor(write_checksum=True).stream_writer(
            file, closefd=False
        ),
        _zstandard,
    ),
)  # fmt: skip
SUFFIXES = ", ".join(compression.suffix for compression in COMPRESSIONS)


def check_library(path: str) -> None:
    """UserError(CONFIGURATION) if the library for a compressed file of this name is missing."""
    if compression := compression_of_name(path):
        compression.library()


def compression_of_name(path: str) -> Compression | None:
    """The compression that the name of a file ends with."""
    return next((c for c in COMPRESSIONS if path.endswith(c.suffix)), None)


def compression_of_content(start: bytes) -> Compression | None:
    """The compression of a file with these first bytes."""
    return next((c for c in COMPRESSIONS if c.signature.match(start)), None)

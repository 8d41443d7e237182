"""Formats of compressed files in tests: the suffix of a name → a function that compresses bytes."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from functools import partial

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": partial(lzma.compress, preset=0),  # a dictionary of 256 KiB, not 8 MiB
    ".bz2": bz2.compress,
}
try:
    import zstandard
except ModuleNotFoundError:
    pass  # an extra
else:
    COMPRESS[".zst"] = zstandard.ZstdCompressor(write_checksum=True).compress

"""Files in object storage, named by URL: gs://BUCKET/NAME, s3://BUCKET/NAME, through fsspec.

The extra [gcs] or [s3] installs the file system of a URL; other file systems of fsspec work if they
have the operations used here. Credentials come from the environment, as those libraries document.
Every function retries what fails for a while, and raises OSError: FileNotFoundError,
FileExistsError, PermissionError, or RemoteError with the message of the library.
"""

import errno
import io
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.paths import REMOTE

EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}  # scheme → extra of pyproject.toml
PART = 8 << 20  # bytes that are read or written at once; memory of an upload is a small multiple
PAUSES = (1.0, 2.0, 4.0)  # seconds before a further attempt; the libraries have retried already
SILENCE = 30.0  # seconds without a byte of a response, after which a request is repeated
LONGEST = 600.0  # seconds of one request, which transfers at most a part
# user:password@ (a secret key of S3 can contain a slash; a port is none) and signed queries
SECRET = re.compile(r"//[^/]*@|//[^/]*:(?!\d+(/|$))|[?#]")
BOUNDARY = b"--==0=="  # of gcsfs between the parts of a request that writes a whole object
FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError)

T = TypeVar("T")


class RemoteError(OSError):
    """A failure of object storage or of the connection to it."""


class RemoteFile(NamedTuple):
    """What tells one version of an object from another."""

    size: int
    identity: str  # generation (GCS) or ETag (S3), else the time of its last change


def is_remote(path: str) -> bool:
    """Whether `path` is a URL."""
    return REMOTE.match(path) is not None


def check_url(name: str, url: str) -> None:
    """UserError(CONFIGURATION) for a URL that holds a secret or whose file system is not installed.

    `name` is the flag, field or file that the message names.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "hf":
        raise UserError(
            CONFIGURATION,
            f"{name}: hf:// names only models that are loaded: expected a path or a URL of object "
            f"storage, got {url!r}",
        )
    if SECRET.search(url):
        raise UserError(
            CONFIGURATION,
            f"{name} has a user name, a query or a fragment: expected SCHEME://BUCKET/NAME, got "
            f"{scheme}://…; credentials come from the environment",
        )
    if not rest.strip("/"):
        raise UserError(
            CONFIGURATION, f"{name} has no bucket: expected SCHEME://BUCKET/NAME, got {url!r}"
        )
    try:
        _file_system(url)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        advice = f"pip install -e '.[{extra}]'" if extra else str(error)
        raise UserError(
            CONFIGURATION, f"{name}: {scheme}:// needs a package that is not installed: {advice}"
        ) from None
    except ValueError:
        raise UserError(
            CONFIGURATION,
            f"{name}: {scheme}:// is not supported: expected gs://, s3:// or another scheme of "
            f"fsspec, got {url!r}",
        ) from None


def info(url: str) -> RemoteFile:
    """The version of an object. FileNotFoundError if there is none."""
    system, path = _file_system(url)
    try:
        facts = _retried(partial(system.info, path))
    except FileNotFoundError:
        facts = {"type": "missing"}
    if facts["type"] != "file":
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if facts["size"] is None:  # of some servers of http://
        raise RemoteError("the server does not tell the size of the file")
    return _version(facts)


def list_files(url: str) -> dict[str, RemoteFile]:
    """The objects below a URL, by their names relative to it, sorted."""
    system, path = _file_system(url)
    below = path.rstrip("/") + "/"
    listing = _retried(partial(system.find, below, detail=True))
    files = {name.lstrip("/"): _version(facts) for name, facts in listing.items()}
    start = len(below.lstrip("/"))
    return {name[start:]: files[name] for name in sorted(files) if name[start:]}


def read(url: str, start: int | None = None, end: int | None = None) -> bytes:
    """The content of an object, or its bytes from `start` to before `end`."""
    system, path = _file_system(url)
    return _retried(partial(system.cat_file, path, start=start, end=end))


def write(url: str, content: bytes, new: bool = False) -> None:
    """Write a small object. `new`: FileExistsError, and no change, if there is one.

    The object that exists can be that of an earlier attempt, whose response was lost.
    """
    _retried(partial(_write, url, io.BytesIO(content), len(content), new))


def upload(path: str | os.PathLike[str], url: str, new: bool = False) -> None:
    """Copy a local file to an object, which appears complete or not at all.

    `new` as in `write`. One part of the file is in memory.
    """
    with open(path, "rb") as source:
        _retried(partial(_write, url, source, os.fstat(source.fileno()).st_size, new))


def _write(url: str, source: BinaryIO, size: int, new: bool) -> None:
    """Write the `size` bytes of a file from its start."""
    system, path = _file_system(url)
    source.seek(0)
    if size <= PART:
        content = source.read(size)
        # gcsfs (2026.10.1) writes a single \n before a fixed boundary. A \r before it belongs to it
        # (RFC 2046, 5.1.1): "a\r" is stored as "a"; and a boundary in the content ends it.
        if not content.endswith(b"\r") and BOUNDARY not in content:
            system.pipe_file(path, content, **({"mode": "create"} if new else {}))
            return
        source.seek(0)
    file = system.open(path, "xb" if new else "wb", block_size=PART, autocommit=False)
    try:
        while content := source.read(PART):
            file.write(content)
        file.close()
        file.commit()
    except BaseException as error:
        file.closed = True  # its destructor must not upload the rest
        with suppress(Exception):  # the storage deletes what is left of an upload
            file.discard()
        if isinstance(error, FileNotFoundError):  # the server has lost the upload, or ended it
            raise ConnectionResetError(f"the upload ended: {error}") from error
        raise


def download(url: str, path: str | os.PathLike[str]) -> None:
    """Copy an object to a local file. One part of it is in memory.

    RemoteError if the object changes in the meantime.
    """
    with open_stream(url) as source, open(path, "wb") as target:
        while content := source.read(PART):
            target.write(content)


def delete(url: str) -> None:
    """Delete an object, if there is one."""
    system, path = _file_system(url)
    try:
        _retried(partial(system.rm_file, path))
    except FileNotFoundError:
        pass


def open_stream(url: str) -> "RemoteStream":
    """A binary stream of an object. FileNotFoundError if there is none."""
    return RemoteStream(url)


class RemoteStream(io.RawIOBase):
    """Reads an object from start to end, a part at a time; a dropped connection is made again.

    RemoteError at the end if the object has changed since it was opened.
    """

    def __init__(self, url: str):
        super().__init__()
        self.url, self.version = url, info(url)
        self._position, self._part = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._part:
            self._part = memoryview(self._next_part())
        count = min(len(buffer), len(self._part))
        buffer[:count] = self._part[:count]
        self._part = self._part[count:]
        return count

    def _next_part(self) -> bytes:
        end = min(self._position + PART, self.version.size)
        if self._position == end:
            return b""
        try:
            part = read(self.url, self._position, end)
            self._position += len(part)
            if not part or self._position == self.version.size:
                self._check_version()
        except FileNotFoundError:
            raise RemoteError(f"{self.url} was deleted while it was read") from None
        except RemoteError:  # a smaller object has no such part
            self._check_version()
            raise
        if not part:
            raise RemoteError(f"{self.url} ends after {self._position:,} bytes")
        return part

    def _check_version(self) -> None:
        if info(self.url) != self.version:
            raise RemoteError(f"{self.url} changed while it was read")


def is_same(url: str, other: str) -> bool:
    """Whether two URLs name the same object. Reads nothing."""
    return _file_system(url) == _file_system(other)


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. ImportError if its package is missing."""
    # By default gcsfs (2026.10.1) asks by gRPC whether a bucket is zonal, and leaves the objects of
    # one incomplete.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec  # imported where it is used: importing it takes 0.1 s

    # gcsfs (2026.10.1) logs a traceback for each error that it raises.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    options = {}
    if url.startswith(("gs://", "gcs://")):  # gcsfs (2026.10.1) sets no limit, and waits for ever
        import aiohttp

        options["requests_timeout"] = aiohttp.ClientTimeout(LONGEST, sock_read=SILENCE)
    # Other programs change the objects, so listings are not kept.
    return fsspec.core.url_to_fs(url, use_listings_cache=False, **options)


def _version(facts: dict[str, Any]) -> RemoteFile:
    names = "generation", "ETag", "etag", "mtime", "LastModified", "created"
    identity = next((str(facts[name]) for name in names if facts.get(name)), "")
    return RemoteFile(int(facts["size"]), identity)


def _retried(call: Callable[[], T]) -> T:
    """The result of `call`, tried again after an error that may be one of the moment."""
    for pause in (*PAUSES, None):
        try:
            return call()
        except FINAL:
            raise
        except NotImplementedError as error:
            raise RemoteError(f"an operation is not supported here: {_text(error)}") from error
        except Exception as error:
            if _is_refused(error):
                raise PermissionError(f"access denied: {_text(error)}") from error
            if pause is None:
                raise RemoteError(_text(error)) from error
            time.sleep(pause)
    raise AssertionError


def _is_refused(error: Exception) -> bool:
    """Whether an error says that credentials are missing or not sufficient."""
    response = getattr(error.__cause__, "response", {})  # of an error of botocore
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    codes = {str(getattr(error, "code", "")), str(status)}  # `code` of gcsfs
    forbidden = str(error).startswith("Forbidden")  # an OSError of gcsfs, without a code
    return bool(codes & {"401", "403"}) or forbidden or "Credentials" in type(error).__name__


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

"""Output files of commands, by path or URL, and atomic writes.

An atomic write goes to a temporary name first (`temporaries.py`): a file or directory appears
complete or not at all. An object is uploaded from a local temporary file.
"""

import errno
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import combinations
from pathlib import Path
from typing import BinaryIO, TypeVar, cast
from uuid import uuid4

from seq2seq.files import remote
from seq2seq.files.compression import Compression, check_library, compression_of_name
from seq2seq.files.locks import lock_path
from seq2seq.files.temporaries import (
    StrPath,
    is_temporary,
    named_file,
    temporary_directory,
    temporary_file,
)
from seq2seq.runtime.errors import OUTPUT, UserError, naming
from seq2seq.runtime.paths import descriptor_of, expand_path, is_replaceable

PAUSES = (0.1, 1.0)  # seconds before a read is tried again

T = TypeVar("T")


def check_outputs(paths: Iterable[str], overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Raise UserError(OUTPUT) for a file that cannot be written, exists without `overwrite`, is one
    of the input files under any name ("" and "-" are no files), or is two of the outputs, and
    UserError(CONFIGURATION) without the library that compresses it."""
    paths = list(paths)
    _check_no_input_is_replaced(paths, [path for path in inputs if path not in ("", "-")])
    for path in map(expand_path, paths):
        check_library(path)
        if not overwrite and is_replaceable(path) and _is_file(path):
            raise UserError(OUTPUT, f"{path} exists; set --overwrite to replace it")
        if not path or os.path.isdir(path) or not is_writable(path):
            raise UserError(
                OUTPUT,
                f"cannot write {path or repr(path)}: expected a file in an existing, writable "
                "directory",
            )
    for path, other in combinations(paths, 2):
        if _is_same_output(expand_path(path), expand_path(other)):
            raise UserError(
                OUTPUT,
                f"two outputs are the same file: expected a file for each, got {path} and {other}; "
                "choose another one",
            )


def _is_file(path: str) -> bool:
    """Whether there is a file or an object. UserError(OUTPUT) if the storage cannot be reached."""
    if not remote.is_remote(path):
        return os.path.isfile(path)
    with storing(path):
        try:
            remote.info(path)
        except FileNotFoundError:
            return False
    return True


@contextmanager
def storing(url: str) -> Iterator[None]:
    """The body stores output at a URL or below it: UserError(OUTPUT) for an OSError of the body."""
    try:
        yield
    except OSError as error:
        reason = "no such bucket or object" if isinstance(error, FileNotFoundError) else error
        raise UserError(
            OUTPUT,
            f"{url} cannot be accessed: {reason}; check the URL, the credentials and the network, "
            "then run the same command again",
        ) from None


def _check_no_input_is_replaced(outputs: list[str], inputs: list[str]) -> None:
    for path in inputs:
        full = expand_path(path)
        if is_temporary(os.path.basename(full)):
            raise UserError(
                OUTPUT,
                f"{path} is a temporary file of an unfinished job, which the next one deletes; "
                "rename it",
            )
        for output in outputs:
            if any(_is_same_file(full, name) for name in (expand_path(output), lock_path(output))):
                raise UserError(
                    OUTPUT, f"{output} would replace the input file {path}; choose another --output"
                )


def _is_same_file(path: str, other: str) -> bool:
    if remote.is_remote(path) or remote.is_remote(other):
        return remote.is_remote(path) and remote.is_remote(other) and remote.is_same(path, other)
    try:
        return os.path.isfile(path) and os.path.samefile(path, other)
    except OSError:
        return False


def _is_same_output(path: str, other: str) -> bool:
    """Whether what is written to one path replaces what was written to the other."""
    if remote.is_remote(path) or remote.is_remote(other):
        return _is_same_file(path, other)
    full = os.path.realpath(path)
    return is_replaceable(full) and full == os.path.realpath(other)


def is_writable(path: str) -> bool:
    """Whether `path` can be written. For a file, another one is created in its directory: /proc
    has write permission but accepts no new files. True for a URL: its lock is written first."""
    if remote.is_remote(path):
        return not path.endswith("/")
    if not is_replaceable(path):
        return os.access(path, os.W_OK)
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            return True
    except OSError:
        return False


def write_lines(path: str, lines: Iterable[str], overwrite: bool) -> int:
    """Write lines as UTF-8, compressed if the name says so; returns their number.

    A file appears when it is complete, as with `open_atomic`; a pipe or a device receives each line
    immediately.
    """
    count, unbuffered = 0, not is_replaceable(expand_path(path))
    with open_atomic(path, overwrite) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
            count += 1
            if unbuffered:
                file.flush()
    return count


@contextmanager
def open_atomic(path: str, overwrite: bool) -> Iterator[BinaryIO]:
    """A binary file to write, which appears as `path` at the end unless an exception is raised.

    It is on the disk before. If `path` is a symbolic link, its target is replaced. A file with a
    name of `COMPRESSIONS` is compressed reproducibly. UserError(OUTPUT) if another program has
    created `path` in the meantime and it may not be replaced; the content then has a new name,
    which the error names.
    A pipe, a device or an open file (/dev/stdout) is written directly; UserError(OUTPUT) if its
    reader ends, or it is full.
    An object is uploaded at the end; UserError(OUTPUT) if that fails.
    """
    compression = compression_of_name(expand_path(path))
    if remote.is_remote(expand_path(path)):
        with (
            tempfile.TemporaryFile() as unnamed,
            named_file(os.dup(unnamed.fileno()), tempfile.gettempdir()) as file,
        ):
            with _compressing(file, compression) as content:
                yield content
            file.flush()
            # This name of an open file is valid although it has no other: a kill leaves nothing.
            _upload_output(f"/proc/self/fd/{file.fileno()}", expand_path(path), overwrite)
        return
    full = expand_path(path)
    if not is_replaceable(full):
        try:
            with _open_device(full) as device, _compressing(device, compression) as content:
                yield content
        except BrokenPipeError:
            raise UserError(
                OUTPUT, f"{path} was closed by its reader before the end; run the command again"
            ) from None
        return
    full = os.path.realpath(full)
    with temporary_file(full) as (temporary, file):
        with _compressing(file, compression) as content:
            yield content
        _sync(file)
        if overwrite:
            os.replace(temporary, full)
        else:
            _publish_new(temporary, full)


def _open_device(path: str) -> BinaryIO:
    """What is no file to replace, to write. An open file of this process keeps its position."""
    descriptor = descriptor_of(path)
    opened = os.open(path, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
    return named_file(opened, path)


def _compressing(
    file: BinaryIO, compression: Compression | None
) -> AbstractContextManager[BinaryIO]:
    """The file, or a file that writes to it what is written, compressed."""
    if not compression:
        return nullcontext(file)
    return cast("AbstractContextManager[BinaryIO]", compression.compressed(file))


def _publish_new(temporary: str, path: str) -> None:
    """Rename a complete file to `path`, which did not exist at the start. If it exists now, the
    file gets a new name and UserError(OUTPUT) is raised."""
    with suppress(OSError):  # it exists, or the file system has no hard links
        os.link(temporary, path)
        return
    if not os.path.lexists(path):
        os.rename(temporary, path)
        return
    kept = f"{path}.{uuid4().hex[:8]}"
    os.rename(temporary, kept)
    raise _created_meanwhile(path, kept)


def _created_meanwhile(path: str, kept: str) -> UserError:
    return UserError(
        OUTPUT,
        f"{path} was created by another program while this command ran, and is kept; the complete "
        f"output is {kept}: rename it",
    )


def _upload_output(path: str, url: str, overwrite: bool) -> None:
    """Copy a complete local file to `url`. If an object exists now that may not be replaced, the
    file gets a new name there. UserError(OUTPUT) then, and if it cannot be uploaded."""
    with storing(url):
        try:
            remote.upload(path, url, new=not overwrite)
        except FileExistsError:
            if _has_same_content(path, url):  # an upload whose success was not reported
                return
            kept = f"{url}.{uuid4().hex[:8]}"
            remote.upload(path, kept, new=True)
            raise _created_meanwhile(url, kept) from None


def _has_same_content(path: str, url: str) -> bool:
    with open(path, "rb") as file, io.BufferedReader(remote.open_stream(url)) as other:
        while content := file.read(remote.PART):
            if other.read(remote.PART) != content:
                return False
        return not other.read(1)


def write_atomic(path: StrPath, content: str | bytes) -> None:
    """Replace a small file by `content` atomically; it is on the disk first. Text is UTF-8."""
    with temporary_file(path) as (temporary, file):
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        _sync(file)
        os.replace(temporary, path)


def _sync(file: BinaryIO) -> None:
    file.flush()
    with naming(file.name):
        os.fsync(file.fileno())


@contextmanager
def new_directory(path: StrPath) -> Iterator[Path]:
    """A directory to write, which appears as `path` at the end unless an exception is raised.

    OSError if there is a file or a directory with files of this name then.
    """
    with temporary_directory(path) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        publish_directory(new, path)


def publish_directory(temporary: StrPath, path: StrPath) -> None:
    """Rename a complete directory to its final path, and wait until the name is on the disk."""
    os.rename(temporary, path)
    sync_to_disk(os.path.dirname(os.path.abspath(path)))


def sync_to_disk(path: StrPath) -> None:
    """Wait until a file, or the list of names in a directory, is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(opened)
    finally:
        os.close(opened)


def file_sha256(path: StrPath) -> str:
    """The sha256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def retried(read: Callable[[], T]) -> T:
    """The result of `read`, which is tried again after an error that may be of the moment: of a
    disk, or of a network file system whose server has restarted."""
    for pause in PAUSES:
        try:
            return read()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ESTALE):
                raise
        time.sleep(pause)
    return read()

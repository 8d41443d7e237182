"""The corpus cache: token ids of large corpora in files, produced once and used by every later run.

An entry is a directory of token_store.py. Its name is a hash of its key: path, size and
modification time of the files (of an object: URL, size, and generation or ETag), the options that
select pairs, and the sha256 of the vocabularies.
A file beside it, NAME.lock, is locked while the entry is written, so that one process of a host
writes it and the others wait. An entry whose files have changed is deleted when another one is
written. A complete entry is only read, so it can be on a read-only file system.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seq2seq.cli.path_flags import define_path
from seq2seq.data.corpora.part_reader import LARGE
from seq2seq.data.tokens.store_files import DamagedStore
from seq2seq.data.tokens.token_store import TokenStore, in_use, open_store, read_key
from seq2seq.files.locks import waiting_for_lock
from seq2seq.files.remote import is_remote
from seq2seq.runtime.errors import DATA, OUTPUT, UserError
from seq2seq.runtime.logs import Log
from seq2seq.runtime.paths import cache_directory, expand_path


class CorpusCache:
    """The directory of the cache."""

    def __init__(self, directory: Path, smallest: int):
        """Corpora of fewer than `smallest` bytes are not added."""
        self.directory = directory
        self.corpora, self.vocabularies = directory / "corpora", directory / "vocabularies"
        self.smallest = smallest

    def find(self, key: dict[str, Any]) -> tuple[TokenStore, dict[str, Any]] | None:
        """The store and the facts of a complete entry; None if there is none that can be read."""
        try:
            return _opened(self._entry(key))
        except OSError:
            return None

    def find_or_write(
        self, key: dict[str, Any], write: Callable[[Path], None], log: Log
    ) -> tuple[TokenStore, dict[str, Any]]:
        """The entry, which `write(directory)` writes if it is missing or damaged.

        UserError(OUTPUT) if it cannot be written. What was written is kept for the next start,
        except after a UserError(DATA) of `write`.
        """
        if entry := self.find(key):
            return entry
        path = self._entry(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with waiting_for_lock(path.with_suffix(".lock"), f"writes {path}", log):
                if entry := _opened(path):  # another process has written it
                    return entry
                if (path / "store.json").exists():
                    log(f"{path} is damaged and is written again")
                self._delete_outdated(key)
                try:
                    write(path)
                except UserError as error:
                    if error.code == DATA:  # the next start must read all of the text again
                        shutil.rmtree(path, ignore_errors=True)
                    raise
                return open_store(path)
        except OSError as error:
            raise UserError(
                OUTPUT,
                f"the corpus cache {path} cannot be written: {error.strerror or error}; free disk "
                "space, or choose another directory: --corpus_cache=DIR, or, in a training, off to "
                "keep the corpus in memory",
            ) from error

    def _entry(self, key: dict[str, Any]) -> Path:
        text = json.dumps(key, sort_keys=True)
        return self.corpora / hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]

    def _delete_outdated(self, written: dict[str, Any]) -> None:
        """Delete the entries whose text files have changed or are gone, unless a run uses them.

        `written` is the key of the entry that is written.
        """
        for path in self.corpora.iterdir():
            key = read_key(path) if path.is_dir() else None
            if key and _is_outdated(key, written) and not in_use(path):
                shutil.rmtree(path, ignore_errors=True)


def corpus_cache(flag: str) -> CorpusCache | None:
    """The cache of --corpus_cache: a directory, "off" (None), or "" for the user's cache directory
    and large corpora only; None if there is no such directory."""
    if flag == "off":
        return None
    if flag:
        return CorpusCache(Path(expand_path(flag)).absolute(), 0)
    directory = cache_directory()
    return CorpusCache(directory, LARGE) if directory else None


def define_cache_flag() -> None:
    define_path(
        "corpus_cache",
        "",
        "Directory of the token ids and vocabularies of corpora; off: none, they are kept in "
        "memory; default: the user's cache directory, for corpora of at least "
        f"{LARGE >> 20} MiB only.",
    )


@contextmanager
def deleting_damaged_stores() -> Iterator[None]:
    """Deletes the store if the body reads damaged token ids: the next start writes it again.

    UserError(DATA) for such a store; DamagedStore if it cannot be deleted.
    """
    try:
        yield
    except DamagedStore as error:
        shutil.rmtree(error.directory, ignore_errors=True)
        if error.directory.exists():
            raise
        raise UserError(
            DATA,
            f"{error.problem}; {error.directory} was deleted, so run the same command again, which "
            "tokenizes the corpus again",
        ) from error


def _opened(path: Path) -> tuple[TokenStore, dict[str, Any]] | None:
    """A complete entry; None if it is missing or damaged. OSError if it cannot be read."""
    try:
        return open_store(path) if path.is_dir() else None
    except DamagedStore:
        return None


def _is_outdated(key: Any, written: dict[str, Any]) -> bool:
    """Whether a text file of an entry has changed or was deleted; False for an invalid key.

    An object has changed if `written` has another version of it: the storage is not asked.
    """
    with suppress(KeyError, TypeError, ValueError):
        versions = {path: version for path, *version in written["text"]["files"]}
        return any(
            versions.get(path, version) != version
            if is_remote(path)
            else _has_changed(path, *version)
            for path, *version in key["text"]["files"]
        )
    return False


def _has_changed(path: str, size: int, modified: int) -> bool:
    """Whether a file no longer has this size and modification time in ns.

    False if its directory is missing: the file system may not be mounted now.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return os.path.isdir(os.path.dirname(path))
    return (stat.st_size, stat.st_mtime_ns) != (size, modified)

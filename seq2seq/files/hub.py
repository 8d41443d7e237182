"""Repositories of the Hugging Face Hub, named hf://OWNER/NAME[@REVISION], through huggingface_hub.

The extra [hub] installs it. Its environment variables apply, such as HF_HOME, HF_TOKEN, HF_ENDPOINT
and HF_HUB_OFFLINE. Files lie in its cache, models--OWNER--NAME/snapshots/COMMIT, and are downloaded
once. Only what a name asks for causes a request.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from glob import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seq2seq.files.remote import check_url, is_remote
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError

SCHEME = "hf://"
# The rules of the Hub: a revision becomes a path in the cache, so it may not have a part "..".
PART = r"(?![.-])(?:(?!--|\.\.)[\w.-])+(?<![.-])(?<!\.git)"
REVISION_PART = r"(?!\.)(?:(?!\.\.)[^\s@?#/\\])+"
NAME = re.compile(
    rf"hf://(?P<repository>{PART}/{PART})(?:@(?P<revision>{REVISION_PART}(?:/{REVISION_PART})*))?",
    re.ASCII,
)
COMMIT = "[0-9a-f]{40}"
SNAPSHOT = re.compile(rf".*/models--([\w.-]+?)--([\w.-]+)/snapshots/({COMMIT})")


def is_hub_name(name: str) -> bool:
    """Whether `name` is that of a repository of the Hub."""
    return name.startswith(SCHEME)


def check_model_name(name: str, model: str) -> None:
    """UserError(CONFIGURATION) for the name of a model that is malformed or needs a package that is
    not installed. `name` is the flag or field that the message names."""
    if not is_hub_name(model):
        if is_remote(model):
            check_url(name, model)
        return
    if not NAME.fullmatch(model):
        raise UserError(
            CONFIGURATION,
            f"{name} is malformed: expected hf://OWNER/NAME or hf://OWNER/NAME@REVISION, got "
            f"{model!r}",
        )
    if find_spec("huggingface_hub") is None:
        raise UserError(
            CONFIGURATION,
            f"{name}: hf:// needs huggingface_hub, which is not installed: pip install -e '.[hub]'",
        )


def name_of_snapshot(directory: Path) -> str:
    """hf://OWNER/NAME@COMMIT of a directory in the cache, "" for any other directory."""
    match = SNAPSHOT.fullmatch(directory.as_posix())
    return f"{SCHEME}{match[1]}/{match[2]}@{match[3]}" if match else ""


def cached_snapshot(name: str) -> Path | None:
    """The directory of the commit of a name that was fetched last; None if there is none. Makes no
    request."""
    match = NAME.fullmatch(name)
    if match is None or find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision = match["repository"], match["revision"]
    try:
        return Path(
            snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=[]
            )
        )
    except LocalEntryNotFoundError:
        return None


class Repository:
    """The files of a repository at one commit.

    The commit is that of the name's revision when the first file is fetched. If the Hub cannot be
    reached, it is the one that was fetched last. UserError(CHECKPOINT) if a file can neither be
    fetched nor is in the cache.
    """

    def __init__(self, name: str, *files: str):
        """Finds the commit, and fetches these small files of it."""
        check_model_name(name, name)
        match = NAME.fullmatch(name)
        assert match
        self.name = name
        self._repository, self._revision = match["repository"], match["revision"] or "main"
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when it is imported
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import tqdm

        no_bars: Any = partial(tqdm, disable=True)
        with self._one_line_errors():
            directory = snapshot_download(
                self._repository,
                revision=self._revision,
                allow_patterns=[*map(escape, files)],
                tqdm_class=no_bars,
            )
        self.directory = Path(directory)
        self._revision = self.directory.name
        self.sizes = self._listing()

    def fetch(self, *files: str) -> None:
        """Download these files, of those that the repository has, unless they are in the cache."""
        from huggingface_hub import hf_hub_download

        # One after the other: a signal would not end the threads of snapshot_download.
        for file in files:
            if file in self.sizes:
                with self._one_line_errors():
                    hf_hub_download(self._repository, file, revision=self._revision)

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 – of several HTTP libraries
            raise UserError(CHECKPOINT, self._reason(error)) from error

    def _listing(self) -> dict[str, int]:
        """The sizes of the files of the commit, without a request."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            files = get_cached_repo_tree(self._repository, revision=self._revision)
            return {file.path: file.size for file in files}
        except CachedRepoTreeNotFoundError:  # offline, and another program has filled the cache
            return {file.name: 0 for file in self.directory.iterdir()}

    def _reason(self, error: Exception) -> str:
        """What is wrong and what to do, in one line."""
        from huggingface_hub import constants, errors

        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError) or status == 403:
            return (
                f"{self.name} is gated or private: expected the token of a user with access; ask "
                f"for access at {constants.ENDPOINT}/{self._repository}, and log in with hf auth "
                "login or set HF_TOKEN"
            )
        if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
            return (
                f"{self.name} does not exist or is private: expected the name of a repository of "
                f"{constants.ENDPOINT}; correct it, or log in with hf auth login or set HF_TOKEN"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return (
                f"{self.name}: the revision {self._revision} does not exist: expected a branch, a "
                "tag, a commit or refs/pr/NUMBER of the repository"
            )
        cause, why = error.__cause__ or error, "the Hub cannot be reached"
        if constants.is_offline_mode():
            why = "HF_HUB_OFFLINE is set"
        elif isinstance(error, errors.LocalEntryNotFoundError):
            why += f" ({type(cause).__name__}: {cause})"
        else:
            return f"{self.name} cannot be fetched: {_one_line(error)}"
        return _one_line(
            f"{self.name} is not or not completely in the cache {constants.HF_HUB_CACHE}, and "
            f"{why}: expected a connection to {constants.ENDPOINT}; connect, or copy the cache"
        )


def _one_line(error: Exception | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:400]

"""The folder with the saved results of a job: a directory beside the output, or objects below it.

A folder always has its fingerprint, a file with the fingerprint of the job, while it exists. Each
file appears complete or not at all.
"""

import os
from abc import ABC, abstractmethod

from seq2seq.files import remote
from seq2seq.files.output_files import new_directory, storing, write_atomic
from seq2seq.files.temporaries import delete_directory
from seq2seq.runtime.paths import expand_path

MARK = "fingerprint"  # the file with the fingerprint of a job


def results_folder(output: str) -> "ResultsFolder":
    """The folder OUTPUT.parts of an output file or URL."""
    full = expand_path(output)
    if remote.is_remote(full):
        return RemoteFolder(f"{full}.parts")
    return LocalFolder(f"{os.path.realpath(full)}.parts")


class ResultsFolder(ABC):
    """Files by name. Each method raises OSError or UserError(OUTPUT) if it fails."""

    saves_each_chunk: bool  # else less often, as a request to the storage takes long

    def __init__(self, path: str):
        self.path = path

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is anything of this name."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files; none if it is not a folder."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    @abstractmethod
    def write(self, name: str, content: str) -> None:
        """Write a file."""

    @abstractmethod
    def create(self, fingerprint: str) -> None:
        """Create the folder, with its fingerprint."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the folder, its fingerprint last."""


class LocalFolder(ResultsFolder):
    """A directory, which is renamed as a whole when it is created and deleted."""

    saves_each_chunk = True

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def names(self) -> list[str]:
        is_directory = os.path.isdir(self.path) and not os.path.islink(self.path)
        return os.listdir(self.path) if is_directory else []

    def read(self, name: str) -> bytes:
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def write(self, name: str, content: str) -> None:
        write_atomic(os.path.join(self.path, name), content)

    def create(self, fingerprint: str) -> None:
        with new_directory(self.path) as new:
            write_atomic(new / MARK, fingerprint)

    def delete(self) -> None:
        delete_directory(self.path)


class RemoteFolder(ResultsFolder):
    """The objects below a URL."""

    saves_each_chunk = False

    def exists(self) -> bool:
        return bool(self.names())

    def names(self) -> list[str]:
        with storing(self.path):
            return list(remote.list_files(self.path))

    def read(self, name: str) -> bytes:
        with storing(self.path):
            return remote.read(f"{self.path}/{name}")

    def write(self, name: str, content: str) -> None:
        with storing(self.path):
            remote.write(f"{self.path}/{name}", content.encode())

    def create(self, fingerprint: str) -> None:
        self.write(MARK, fingerprint)

    def delete(self) -> None:
        names = self.names()
        with storing(self.path):
            for name in sorted(names, key=MARK.__eq__):  # the fingerprint last
                remote.delete(f"{self.path}/{name}")

"""Object storage in the memory of this process: the file system memory:// of fsspec."""

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from seq2seq.files import remote


class Storage:
    """The objects of memory://bucket."""

    url = "memory://bucket"

    def __getitem__(self, name: str) -> bytes:
        return remote.read(f"{self.url}/{name}")

    def __setitem__(self, name: str, content: bytes) -> None:
        remote.write(f"{self.url}/{name}", content)

    def names(self) -> list[str]:
        return list(remote.list_files(self.url))


@pytest.fixture
def storage(monkeypatch):
    """An empty storage; an operation that fails is not tried again."""
    monkeypatch.setattr(remote, "PAUSES", ())
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield Storage()
    MemoryFileSystem.store.clear()


@pytest.fixture
def failing(monkeypatch):
    """Makes an operation of the storage fail after some calls: `failing("pipe_file", 3)`."""

    def fail(operation: str, after: int = 0, error: BaseException | None = None) -> None:
        real, calls = getattr(MemoryFileSystem, operation), []

        def counted(*arguments, **options):
            calls.append(arguments)
            if len(calls) > after:
                raise error or ConnectionError("the network is down")
            return real(*arguments, **options)

        monkeypatch.setattr(MemoryFileSystem, operation, counted)

    return fail

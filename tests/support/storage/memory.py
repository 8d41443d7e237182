"""A storage in this process, for what depends neither on GCS nor on S3."""

import itertools
from collections.abc import Callable
from typing import Any

from tests.support.storage.faults import Request, Traffic


class Memory(Traffic):
    """Objects with the operations of file systems of fsspec that seq2seq/files/remote.py uses."""

    def __init__(self):
        super().__init__()
        self.objects: dict[str, tuple[bytes, int]] = {}  # content and version
        self.versions = itertools.count()

    def answer(self, kind: str, path: str, operation: Callable[[], Any]) -> Any:
        """The result of an operation, or the error of a fault."""
        action = self.action(Request(kind, path.partition("/")[2], "", path, 0))
        if action == 403:
            raise PermissionError("injected 403")
        if isinstance(action, int) or action == "cut":
            raise ConnectionError(f"injected {action}")
        result = operation()
        if action == "lose":
            raise ConnectionError("the response is lost")
        return bytes([result[0] ^ 1]) + result[1:] if action == "flip" else result

    def facts(self, path: str) -> dict[str, Any]:
        content, version = self.existing(path)
        return {"type": "file", "size": len(content), "ETag": version}

    def existing(self, path: str) -> tuple[bytes, int]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def info(self, path: str) -> dict[str, Any]:
        return self.answer("info", path, lambda: self.facts(path))

    def find(self, path: str, detail: bool) -> dict[str, dict[str, Any]]:
        below = (name for name in list(self.objects) if name.startswith(path))
        return self.answer("list", path, lambda: {name: self.facts(name) for name in below})

    def cat_file(self, path: str, start: int | None, end: int | None) -> bytes:
        return self.answer("read", path, lambda: self.existing(path)[0][start:end])

    def pipe_file(self, path: str, content: bytes, mode: str = "overwrite") -> None:
        def write() -> None:
            if mode == "create" and path in self.objects:
                raise FileExistsError(path)
            self.objects[path] = content, next(self.versions)

        self.answer("write", path, write)

    def rm_file(self, path: str) -> None:
        def delete() -> None:
            self.existing(path)
            del self.objects[path]

        self.answer("delete", path, delete)

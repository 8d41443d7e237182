"""A server on loopback with what huggingface_hub needs of the Hub: repositories of models."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

CODES = {
    "RepoNotFound": 404, "RevisionNotFound": 404, "EntryNotFound": 404, "GatedRepo": 403,
    "": 401,  # without a token, also for a repository that does not exist
}  # fmt: skip


def commit_of(number: int) -> str:
    """A name of a commit."""
    return f"{number:040x}"


@dataclass
class Hub:
    """The repositories by OWNER/NAME, each a directory for each commit, and what was asked for."""

    url: str = ""
    repositories: dict[str, dict[str, Path]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)  # OWNER/NAME@REVISION → commit
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)  # METHOD PATH
    headers: list[dict[str, str]] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)  # file → bytes after which the first GET ends

    def add(self, name: str, directory: Path, number: int = 1, revision: str = "main") -> str:
        """Make a directory a commit of a repository, and that of its `revision`."""
        commit = commit_of(number)
        self.repositories.setdefault(name, {})[commit] = directory
        self.revisions[f"{name}@{revision}"] = commit
        return commit

    def fetched(self) -> list[str]:
        """The files whose content was asked for since the last call, sorted."""
        files = [line.partition("/resolve/")[2] for line in self.requests if line.startswith("GET")]
        self.requests.clear()
        return sorted(file.partition("/")[2] for file in files if file)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A server that runs in a thread."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_endpoint(monkeypatch: Any, url: str) -> None:
    """What HF_ENDPOINT sets when huggingface_hub is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """No line for each request."""

    def do_HEAD(self) -> None:
        self.answer(None)

    def do_GET(self) -> None:
        self.answer(self.headers.get("Range"))

    def answer(self, range_: str | None) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.headers.append({name.lower(): value for name, value in self.headers.items()})
        parts = path.strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        owner, name, kind, revision, *rest = parts[2:] if is_api else parts
        repository, revision = f"{owner}/{name}", unquote(revision)
        commits = self.hub.repositories.get(repository)
        commit = self.hub.revisions.get(f"{repository}@{revision}", revision)
        if commits is None:
            return self.fail("" if owner == "hidden" else "RepoNotFound")
        if commit not in commits:
            return self.fail("RevisionNotFound")
        directory = commits[commit]
        if is_api and kind == "revision":
            return self.send(json.dumps({"id": repository, "sha": commit}).encode())
        if is_api:
            return self.send(json.dumps([*map(self.entry, sorted(directory.iterdir()))]).encode())
        if repository in self.hub.gated:
            return self.fail("GatedRepo")
        file = directory / rest[0]
        if not file.is_file():
            return self.fail("EntryNotFound")
        content = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }  # fmt: skip
        return self.send(content, headers, range_, file.name)

    def entry(self, file: Path) -> dict[str, object]:
        """A file in a listing."""
        digest = hashlib.sha1(file.read_bytes()).hexdigest()
        return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": digest}

    def send(
        self,
        content: bytes,
        headers: dict[str, str] | None = None,
        range_: str | None = None,
        name: str = "",
    ) -> None:
        start = int(range_.removeprefix("bytes=").partition("-")[0]) if range_ else 0
        self.send_response(206 if range_ else 200)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if range_:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            end = self.hub.cut.pop(name, len(content))
            self.wfile.write(content[start:end])
            if end < len(content):
                self.wfile.flush()
                self.close_connection = True

    def fail(self, code: str) -> None:
        """Without a code, what the Hub answers to a request without a token."""
        self.send_response(CODES[code])
        if code:
            self.send_header("X-Error-Code", code)
        else:
            self.send_header("X-Error-Message", "Invalid username or password.")
        self.send_header("Content-Length", "0")
        self.end_headers()

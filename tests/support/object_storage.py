"""Object storage for tests: emulators of GCS and S3 on loopback, each behind a proxy with faults.

"memory" is a storage in this process with the same faults, for what depends on neither of them.

    with object_storage("gs") as storage:            # or "s3", which takes 0.3 s, or "memory"
        storage.fault(503, "read", "corpus", times=3)    # the next three reads of such an object
        remote.read(f"{storage.url}/corpus.txt")
        subprocess.run(…, env=os.environ | storage.environment)

While it runs, the environment variables of this process point at the proxy. A request has a kind,
`read`, `info`, `list`, `write` or `delete`, and the name of its object (of a list: the prefix), so
that a test can be the same for both storages. `storage.requests` are those that arrived.
"""

import asyncio
import importlib.util
import itertools
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from seq2seq.files import remote

HOST = "127.0.0.1"
ERROR = (
    "<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{code}</Code><Message>{text}</Message>"
    "<Condition>{condition}</Condition></Error>"
)
CODES = {  # of S3
    403: "AccessDenied", 412: "PreconditionFailed", 500: "InternalError", 503: "SlowDown",
    507: "InsufficientStorage",
}  # fmt: skip
TEXTS = {412: "At least one of the pre-conditions you specified did not hold"}
# Without it an answer waits 40 ms for the acknowledgement of its headers; also in the emulators.
StreamRequestHandler.disable_nagle_algorithm = True
HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}  # headers of one connection


class Request(NamedTuple):
    """A request that arrived at the proxy."""

    kind: str  # read, info, list, write, delete, other
    name: str  # of the object, or a prefix
    method: str
    target: str  # path and query as sent
    size: int  # bytes of its body


@dataclass
class Fault:
    """What happens to the requests that match.

    `action`: a status to answer; a function to call before the request is forwarded (a delay, a
    change of an object); or one of

    cut        the connection is closed, the request is not forwarded
    lose       the request is forwarded, the connection is closed without a response
    truncate   the connection is closed in the middle of the response's body
    flip       one bit in the middle of the response's body is changed
    """

    action: int | str | Callable[[], object]
    kind: str = ""  # "": all
    name: str = ""  # a regular expression, found anywhere in the name
    times: float = 1  # number of requests
    after: int = 0  # number of requests that match before them
    until: float = float("inf")  # time.monotonic()

    def takes(self, request: Request) -> bool:
        """Whether the fault applies to a request, which is then counted."""
        matches = self.kind in ("", request.kind) and re.search(self.name, request.name)
        if not matches or self.times <= 0 or time.monotonic() > self.until:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class Traffic:
    """The requests that arrived, and the faults of further ones."""

    def __init__(self):
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.lock = threading.Lock()  # of faults and requests

    def action(self, request: Request) -> int | str | Callable[[], object] | None:
        """The action of the first fault that takes a request, after a call if it is a function."""
        with self.lock:
            self.requests.append(request)
            fault = next((fault for fault in self.faults if fault.takes(request)), None)
        action = fault.action if fault else None
        if callable(action):
            action()
        return action


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


class Proxy(Traffic, ThreadingHTTPServer):
    """Forwards to an emulator, with faults."""

    daemon_threads, block_on_close = True, False
    request_queue_size = 64

    def __init__(self, emulator: int, parse: Callable[[str, str, bytes], Request]):
        Traffic.__init__(self)
        ThreadingHTTPServer.__init__(self, (HOST, 0), Handler)
        self.emulator, self.parse = emulator, parse
        self.writing = threading.Lock()  # a precondition and its write are one operation
        self.address = f"http://{HOST}:{self.server_port}"

    def handle_error(self, request, client_address) -> None:
        """A client that closed its connection is not reported."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *arguments) -> None:
        """Nothing is logged."""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def answer(self) -> None:
        body = self.body()
        request = self.server.parse(self.command, self.path, body)
        action = self.server.action(request)
        if action == "cut":
            return self.hang_up()
        if isinstance(action, int):
            return self.reply(action)
        if request.kind == "write":
            with self.server.writing:
                status = self.refusal(request)
                response, content = (None, b"") if status else self.forwarded(body)
        else:
            status = 0
            response, content = self.forwarded(body)
        if action == "lose":
            return self.hang_up()
        if response is None:
            return self.reply(status)
        if action == "flip" and content:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        self.send(response.status, response.getheaders(), content, cut=action == "truncate")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def body(self) -> bytes:
        """The body of a request. ConnectionError if its sender died before the end.

        A storage drops such a request; the emulators would store what has arrived.
        """
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length", 0))
            content = self.rfile.read(size)
            if len(content) < size:
                raise ConnectionAbortedError
            return content
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(parts)

    def refusal(self, request: Request) -> int:
        """The status of what the emulator of GCS lacks: ifGenerationMatch=0 (412 if the object
        exists) and the cancellation of an upload (499)."""
        query = parse_qs(urlsplit(self.path).query)
        if self.command == "DELETE" and "upload_id" in query:
            return 499
        if query.get("ifGenerationMatch") == ["0"]:
            target = f"/storage/v1/b/bucket/o/{request.name.replace('/', '%2F')}"
            if self.exchange("GET", target, b"", {})[0].status == 200:
                return 412
        return 0

    def forwarded(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        if body or self.command in ("POST", "PUT"):
            headers["Content-Length"] = str(len(body))
        return self.exchange(self.command, self.path, body, headers)

    def exchange(self, method, target, body, headers) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(HOST, self.server.emulator)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def send(self, status, headers, content: bytes, cut=False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            # The emulator of GCS makes Location from the header Host, which names the proxy.
            if name.lower() not in HOP and (self.command == "HEAD" or name != "Content-Length"):
                self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.hang_up()

    def reply(self, status: int) -> None:
        """The answer of an injected status."""
        text = TEXTS.get(status, "injected")
        if urlsplit(self.path).path.startswith(("/storage/", "/upload/", "/download/")):
            error = json.dumps({"error": {"code": status, "message": text}})
            return self.send(status, [("Content-Type", "application/json")], error.encode())
        condition = "If-None-Match" if status == 412 else ""
        code = CODES.get(status, f"Injected{status}")
        error = "" if self.command == "HEAD" else ERROR.format(
            code=code, text=text, condition=condition)  # fmt: skip
        self.send(status, [("Content-Type", "application/xml")], error.encode())

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def google_request(method: str, target: str, body: bytes) -> Request:
    """A request of the JSON API of GCS."""
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    name = unquote(parts.path.partition("/o/")[2])
    if parts.path.startswith("/upload/"):
        kind, name = "write", query.get("name", "")
        if query.get("uploadType") == "multipart":  # the name is in the first part
            name = json.loads(body.split(b"\n\n", 2)[1].split(b"\n")[0])["name"]
    elif method == "DELETE":
        kind = "delete"
    elif not name:
        kind, name = "list", query.get("prefix", "")
    else:
        kind = "read" if query.get("alt") == "media" else "info"
    return Request(kind, name, method, target, len(body))


def amazon_request(method: str, target: str, body: bytes) -> Request:
    """A request of S3, with the bucket in the path."""
    parts = urlsplit(target)
    name = unquote(parts.path.lstrip("/").partition("/")[2])
    if not name:
        prefix = parse_qs(parts.query).get("prefix", [""])
        return Request("list", prefix[0], method, target, len(body))
    kinds = {"GET": "read", "HEAD": "info", "DELETE": "delete"}
    kind = kinds.get(method, "write")
    if "uploadId=" in parts.query:
        kind = "write"
    return Request(kind, name, method, target, len(body))


class Storage(NamedTuple):
    """A running emulator behind a proxy, or a storage in memory, which is its own proxy."""

    scheme: str
    url: str  # of a bucket
    environment: dict[str, str]  # of this process and its children
    proxy: Traffic

    def fault(
        self,
        action: int | str | Callable[[], object],
        kind: str = "",
        name: str = "",
        times: float = 1,
        after: int = 0,
        seconds: float | None = None,
    ) -> Fault:
        """Inject a fault in the next `times` requests that match, or in those of the next
        `seconds`; `after` so many of them."""
        fault = Fault(action, kind, name, times, after)
        if seconds is not None:
            fault.times, fault.until = float("inf"), time.monotonic() + seconds
        with self.proxy.lock:
            self.proxy.faults.append(fault)
        return fault

    @property
    def requests(self) -> list[Request]:
        """The requests that arrived since the last `clear`."""
        return self.proxy.requests

    def count(self, kind: str = "", name: str = "") -> int:
        """How many requests of a kind with a name that matches arrived."""
        matching = [r for r in self.requests if kind in ("", r.kind) and re.search(name, r.name)]
        return len(matching)

    def clear(self) -> None:
        """Remove the faults and forget the requests."""
        with self.proxy.lock:
            self.proxy.faults.clear()
            self.proxy.requests.clear()


@contextmanager
def object_storage(scheme: str) -> Iterator[Storage]:
    """A storage "gs", "s3" or "memory" with an empty bucket `bucket`; skips if its packages are
    missing."""
    if scheme == "memory":
        with pytest.MonkeyPatch.context() as patch:
            memory = Memory()
            patch.setattr(remote, "_file_system", lambda url: (memory, url.partition("://")[2]))
            yield Storage(scheme, "memory://bucket", {}, memory)
        return
    start = {"gs": google, "s3": amazon}[scheme]
    with start() as (port, parse, names, others), pytest.MonkeyPatch.context() as patch:
        proxy = Proxy(port, parse)
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        environment = {**dict.fromkeys(names, proxy.address), **others}
        for name, value in environment.items():
            patch.setenv(name, value)
        forget_file_systems()
        try:
            yield Storage(scheme, f"{scheme}://bucket", environment, proxy)
        finally:
            forget_file_systems()
            proxy.shutdown()
            proxy.server_close()
            thread.join()


def forget_file_systems() -> None:
    """Drop the instances that fsspec keeps, which are connected to other addresses."""
    import fsspec

    for name in "gs", "gcs", "s3":
        with suppress(ImportError):
            fsspec.get_filesystem_class(name).clear_instance_cache()


class Quick:
    """The module asyncio, with a `sleep` that does not sleep."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def shorten_pauses(patch: pytest.MonkeyPatch) -> None:
    """Retry without pauses, ours and those of the libraries, which take up to a minute."""
    patch.setattr("seq2seq.files.remote.PAUSES", (0.001,) * 3)
    for module in "gcsfs.retry", "s3fs.core", "aiobotocore.endpoint":
        with suppress(ImportError):
            patch.setattr(importlib.import_module(module), "asyncio", Quick())


@contextmanager
def google() -> Iterator[tuple]:
    if not importlib.util.find_spec("gcsfs"):  # its import reads the environment
        pytest.skip("gcsfs is not installed")
    server = pytest.importorskip("gcp_storage_emulator.server")
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    emulator = server.create_server(HOST, 0, in_memory=True, default_bucket="bucket")
    emulator._api.daemon = True
    emulator.start()
    port = emulator._api._httpd.server_port
    # gcsfs neither asks a metadata server for credentials nor tries gRPC.
    others = {
        "NO_GCE_CHECK": "true", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_CONFIG": os.devnull,
    }  # fmt: skip
    try:
        yield port, google_request, ["STORAGE_EMULATOR_HOST"], others
    finally:
        emulator.stop()


@contextmanager
def amazon() -> Iterator[tuple]:
    pytest.importorskip("s3fs")
    moto_server = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    emulator = moto_server.ThreadedMotoServer(HOST, 0, verbose=False)
    emulator.start()
    port = emulator.get_host_and_port()[1]
    others = {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }  # fmt: skip
    try:
        for method, path in ("POST", "/moto-api/reset"), ("PUT", "/bucket"):
            connection = HTTPConnection(HOST, port)
            connection.request(method, path, headers={"Host": "s3.amazonaws.com"})
            assert connection.getresponse().status == 200
            connection.close()
        yield port, amazon_request, ["AWS_ENDPOINT_URL"], others
    finally:
        emulator.stop()

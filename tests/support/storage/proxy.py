"""A proxy in front of an emulator: it forwards requests, with faults."""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.support.storage.faults import Request, Traffic

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

"""The emulators of GCS and S3: how they are started, and what their requests mean."""

import importlib.util
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.storage.faults import Request
from tests.support.storage.proxy import HOST


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

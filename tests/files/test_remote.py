"""Objects of gs:// and s3://: content, versions, preconditions, faults of network and server."""

import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from seq2seq.files import remote
from seq2seq.files.remote import RemoteError, RemoteStream
from seq2seq.runtime.errors import CONFIGURATION, UserError
from tests.support.object_storage import forget_file_systems, object_storage, shorten_pauses

ROOT = Path(__file__).parents[2]
PARTS = {"gs": 512 << 10, "s3": 5 << 20}  # the least part of S3
SIZES = {"gs": 1_377_001, "s3": 11_000_001}  # three parts; the last is no multiple of 256 KiB
DEFAULT = remote.PART
NUMBERS = itertools.count()


COPY = """if True:
    import re, sys
    from seq2seq.files import remote
    def peak():
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    path, url = sys.argv[1:]
    open(path + ".one", "wb").write(bytes(remote.PART + 1))
    for name in path + ".one", path:
        before = peak()
        remote.upload(name, url)
        remote.download(url, path + ".copy")
    print(peak() - before)  # KiB
"""


@pytest.fixture(scope="module", params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def storage(request):
    with object_storage(request.param) as storage:
        yield storage


@pytest.fixture
def url(storage, monkeypatch):
    """A directory of its own for each test, without pauses between attempts."""
    monkeypatch.setattr(remote, "PART", PARTS[storage.scheme])
    shorten_pauses(monkeypatch)
    storage.clear()
    yield f"{storage.url}/{next(NUMBERS)}"
    storage.clear()


@pytest.fixture
def large(storage, tmp_path):
    """A file of three parts."""
    path = tmp_path / "large"
    path.write_bytes((os.urandom(1000) * 11_000 + b"\r")[-SIZES[storage.scheme] :])
    return path


def test_content_is_read_as_it_was_written(storage, url):
    contents = [
        b"", b"a", b"\n", b"\r", b"a\r", b"a\r\n", b"a\r\nb\rc\n", bytes(range(256)), b"--==0==",
        b"a\n--==0==\nb", b"a\n--==0==--", b"\r\n--==0==--\r\n",
    ]  # fmt: skip
    for content in contents:
        remote.write(f"{url}/a b/ü+%=&.txt", content)
        assert remote.read(f"{url}/a b/ü+%=&.txt") == content
    assert remote.info(f"{url}/a b/ü+%=&.txt").size == len(content)
    remote.write(f"{url}/x", b"0123456789")
    assert remote.read(f"{url}/x", 2, 5) == b"234"
    assert remote.read(f"{url}/x", 7) == b"789" and remote.read(f"{url}/x", end=3) == b"012"


def test_a_list_has_all_objects_below_a_directory_and_their_versions(storage, url):
    for name in "b", "a/b/c", "a", "ab":
        remote.write(f"{url}/{name}", name.encode())
    remote.write(f"{url}x/no", b"")  # begins with the same characters
    listed = remote.list_files(url)
    assert list(listed) == ["a", "a/b/c", "ab", "b"]
    assert all(listed[name] == remote.info(f"{url}/{name}") for name in listed)
    assert list(remote.list_files(f"{url}/a/")) == ["b/c"]
    assert remote.list_files(f"{url}/none") == {}
    before = listed["ab"]
    remote.write(f"{url}/ab", b"AB")
    assert remote.info(f"{url}/ab") != before and remote.info(f"{url}/ab").size == before.size
    remote.delete(f"{url}/ab")
    remote.delete(f"{url}/ab")
    assert list(remote.list_files(url)) == ["a", "a/b/c", "b"]
    for missing in remote.info, remote.read, remote.open_stream:
        with pytest.raises(FileNotFoundError):
            missing(f"{url}/ab")
    with pytest.raises(FileNotFoundError):
        remote.info(f"{url}/a/b")


def test_files_are_copied_in_parts(storage, url, large, tmp_path):
    empty, small = tmp_path / "empty", tmp_path / "small"
    empty.write_bytes(b"")
    small.write_bytes(b"small\r")
    for path in empty, small, large:
        remote.upload(path, f"{url}/{path.name}")
        remote.download(f"{url}/{path.name}", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    sizes = [request.size for request in storage.requests if request.name.endswith("large")]
    part = PARTS[storage.scheme]
    assert sum(size == part for size in sizes) == 2 and max(sizes) == part
    assert sum(r.kind == "read" and r.name.endswith("large") for r in storage.requests) == 3


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak memory there")
def test_the_memory_of_a_copy_does_not_depend_on_its_size(storage, url, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(12 * DEFAULT))
    shown = subprocess.run(
        [sys.executable, "-c", COPY, path, f"{url}/large"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | storage.environment,
    )  # fmt: skip
    assert int(shown.stdout) < 4 * DEFAULT / 1024, shown
    assert (tmp_path / "large.copy").stat().st_size == 12 * DEFAULT


def test_an_object_that_exists_is_not_replaced_if_it_must_be_new(storage, url, large, tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"2")
    remote.write(f"{url}/x", b"1", new=True)
    remote.upload(large, f"{url}/y", new=True)
    storage.clear()
    writes = [
        lambda name: remote.write(f"{url}/{name}", b"2", new=True),
        lambda name: remote.write(f"{url}/{name}", b"2\r", new=True),
        lambda name: remote.upload(small, f"{url}/{name}", new=True),
        lambda name: remote.upload(large, f"{url}/{name}", new=True),
    ]
    for write in writes:
        for name in "x", "y":
            with pytest.raises(FileExistsError):
                write(name)
    assert remote.read(f"{url}/x") == b"1" and remote.read(f"{url}/y") == large.read_bytes()
    uploads = sum(r.method == "POST" and r.size < 100 for r in storage.requests)
    assert uploads < 20  # no attempt is repeated
    remote.upload(small, f"{url}/y")
    assert remote.read(f"{url}/y") == b"2"


@pytest.mark.parametrize(("action", "error"), [(403, PermissionError), (507, RemoteError)])
def test_a_failed_upload_leaves_no_object(storage, url, large, action, error, monkeypatch):
    """It fails in the second part, and when the upload is complete."""
    from fsspec.spec import AbstractFileSystem

    files, open_file = [], AbstractFileSystem.open

    def opened(*arguments, **options):
        files.append(open_file(*arguments, **options))
        return files[-1]

    monkeypatch.setattr(AbstractFileSystem, "open", opened)
    for after in 2, 4:
        storage.clear()
        storage.fault(action, "write", "large", times=float("inf"), after=after)
        with pytest.raises(error):
            remote.upload(large, f"{url}/large")
        storage.proxy.faults.clear()
        assert all(file.closed for file in files)  # their destructors upload nothing
        assert remote.list_files(url) == {}
        assert "DELETE" in {request.method for request in storage.requests}
        remote.upload(large, f"{url}/large")
        assert remote.read(f"{url}/large") == large.read_bytes()
        remote.delete(f"{url}/large")


def test_a_write_that_ends_early_changes_nothing(storage, url):
    """A process can be killed while it sends a request."""
    remote.write(f"{url}/x", b"0123456789")
    request = [request for request in storage.requests if request.kind == "write"][-1]
    head = f"{request.method} {request.target} HTTP/1.1\r\nContent-Length: {request.size}\r\n\r\n"
    with socket.create_connection(storage.proxy.server_address) as connection:
        connection.sendall(head.encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""  # no response
    assert remote.read(f"{url}/x") == b"0123456789"


@pytest.mark.parametrize("action", [429, 503, "cut", "lose"])
def test_writes_survive_a_server_that_fails_for_a_while(storage, url, large, action):
    remote.write(f"{url}/large", large.read_bytes())
    for after in range(5) if action in (503, "lose") else []:  # each request of the upload
        storage.fault(action, "write", "large", after=after)
        remote.upload(large, f"{url}/large")
        assert remote.read(f"{url}/large") == large.read_bytes()
        storage.proxy.faults.clear()
    for kind in "write", "delete", "list", "info":
        storage.fault(action, kind, "small", times=2)
    remote.write(f"{url}/small", b"small")
    assert remote.info(f"{url}/small").size == 5
    remote.delete(f"{url}/small")
    assert list(remote.list_files(url)) == ["large"]
    assert storage.count("write", "small") >= 3


def test_a_server_that_stops_to_respond_is_asked_again(storage, url, large, monkeypatch):
    """Without a limit, a connection that was lost silently would block for ever."""
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    if storage.scheme == "s3":
        monkeypatch.setattr("s3fs.S3FileSystem.read_timeout", 0.5)
    forget_file_systems()
    ended = threading.Event()
    try:
        for kind, after in ("write", 2), ("read", 0), ("info", 0), ("list", 0):
            storage.fault(ended.wait, kind, after=after)
        remote.upload(large, f"{url}/large")
        assert remote.read(f"{url}/large") == large.read_bytes()
        assert list(remote.list_files(url)) == ["large"]
        assert remote.info(f"{url}/large").size == len(large.read_bytes())
        assert not any(fault.times for fault in storage.proxy.faults)
    finally:
        ended.set()
        forget_file_systems()


def test_a_write_whose_response_was_lost_is_refused_when_repeated_as_new(storage, url):
    storage.fault("lose", "write")
    with pytest.raises(FileExistsError):
        remote.write(f"{url}/x", b"1", new=True)
    assert remote.read(f"{url}/x") == b"1"


def test_a_stream_survives_cut_connections_and_a_busy_server(storage, url, large):
    remote.upload(large, f"{url}/large")
    for action, times, after in ("truncate", 2, 1), ("cut", 2, 0), (503, 3, 0), (429, 2, 1):
        storage.fault(action, "read", "large", times=times, after=after)
    storage.fault(lambda: time.sleep(0.05), "read", "large")
    with remote.open_stream(f"{url}/large") as stream:
        parts = iter(lambda: stream.read(1_000_003), b"")
        assert b"".join(parts) == large.read_bytes()
    assert [fault.times for fault in storage.proxy.faults] == [0] * 5


def test_a_stream_notices_that_the_object_changed(storage, url, large, tmp_path):
    content = large.read_bytes()
    for other in content[::-1], content[:100], content * 2:
        storage.clear()
        remote.write(f"{url}/large", content)
        change = partial(remote.write, f"{url}/large", other)
        storage.fault(change, "read", "large", after=1)
        with pytest.raises(RemoteError, match=f"{url}/large changed while it was read"):
            remote.download(f"{url}/large", tmp_path / "copy")


def test_a_stream_notices_that_the_object_was_deleted(storage, url, large, tmp_path, monkeypatch):
    def checked(stream):
        remote.delete(stream.url)
        check(stream)

    check, message = RemoteStream._check_version, f"{url}/large was deleted while it was read"
    remote.write(f"{url}/large", large.read_bytes())
    storage.fault(partial(remote.delete, f"{url}/large"), "read", "large", after=1)
    with pytest.raises(RemoteError, match=message):
        remote.download(f"{url}/large", tmp_path / "copy")
    remote.write(f"{url}/large", large.read_bytes())
    monkeypatch.setattr(RemoteStream, "_check_version", checked)  # after the last part
    with pytest.raises(RemoteError, match=message):
        remote.download(f"{url}/large", tmp_path / "copy")


def test_a_stream_is_a_binary_file(storage, url):
    remote.write(f"{url}/x", "één\ntwee\n".encode() * 3)
    with remote.open_stream(f"{url}/x") as stream:
        assert stream.readable() and not stream.writable()
        assert stream.read(2) == "één".encode()[:2]
        assert stream.readlines() == ["één\n".encode()[2:], b"twee\n"] + [
            "één\n".encode(), b"twee\n"] * 2  # fmt: skip
        assert stream.read() == stream.read(1) == b""
    remote.write(f"{url}/empty", b"")
    with remote.open_stream(f"{url}/empty") as stream:
        assert stream.read() == b""


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_not_retried(storage, url, tmp_path, status, caplog, capfd):
    remote.write(f"{url}/x", b"1")
    (tmp_path / "x").write_bytes(b"2")
    caplog.clear()  # google.auth warns once in a process that there are no credentials
    calls = [
        remote.read,
        lambda url: remote.write(url, b"2"),
        lambda url: remote.write(url, b"2", new=True),
        lambda url: remote.upload(tmp_path / "x", url),
        remote.info,
        remote.list_files,
        remote.delete,
        remote.open_stream,
    ]
    storage.clear()
    fault = storage.fault(status, times=float("inf"))
    for number, call in enumerate(calls):
        with pytest.raises(PermissionError) as caught:
            call(f"{url}/{number}")
        assert "\n" not in str(caught.value)
    # gcsfs cancels a request of `info` that can arrive during the next call.
    requests = Counter(storage.requests)
    assert len(calls) <= len(requests) <= 3 * len(calls), requests
    assert set(requests.values()) == {1}, requests
    fault.times = 0
    assert remote.read(f"{url}/x") == b"1"
    assert capfd.readouterr().err == ""
    assert [line for line in caplog.records if line.levelno >= logging.WARNING] == []


def test_a_full_bucket_is_an_error_after_retries(storage, url, large):
    for write in (
        lambda: remote.write(f"{url}/x", b"1"), lambda: remote.upload(large, f"{url}/x")
    ):  # fmt: skip
        storage.clear()
        storage.fault(507, "write", times=float("inf"))
        with pytest.raises(RemoteError, match="injected"):
            write()
        assert storage.count("write") >= 1 + len(remote.PAUSES)
    storage.clear()
    assert remote.list_files(url) == {}


def test_a_missing_bucket_is_reported(storage, url, large):
    other = f"{storage.scheme}://other/x"
    for call in remote.read, remote.info, remote.open_stream, lambda url: remote.write(url, b""):
        with pytest.raises(FileNotFoundError):
            call(other)
    with pytest.raises(OSError, match="other|bucket"):
        remote.upload(large, other)


def test_bytes_that_the_server_changes_are_read_as_they_came(storage, url):
    """Manifests detect them; S3 has checksums of its own, and the read is repeated."""
    remote.write(f"{url}/x", b"0123456789" * 10)
    storage.fault("flip", "read")
    assert (remote.read(f"{url}/x") == b"0123456789" * 10) == (storage.scheme == "s3")


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:SECRET@bucket/x",
        "s3://KEY:SEC/RET@bucket/x",
        "s3://SECRET@bucket",
        "https://host/x?X-Amz-Signature=SECRET",
        "gs://bucket/x#SECRET",
        "none://u:SECRET@bucket",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_printed(url):
    with pytest.raises(UserError) as caught:
        remote.check_url("--workdir", url)
    assert caught.value.code == CONFIGURATION
    scheme = url.partition("://")[0]
    assert str(caught.value) == (
        "--workdir has a user name, a query or a fragment: expected SCHEME://BUCKET/NAME, got "
        f"{scheme}://…; credentials come from the environment"
    )


@pytest.mark.parametrize("url", ["none://bucket/x", "gs://", "s3:///"])
def test_a_url_without_file_system_or_bucket_is_refused(url):
    with pytest.raises(UserError) as caught:
        remote.check_url("data.corpus", url)
    assert caught.value.code == CONFIGURATION
    message = str(caught.value)
    assert message.startswith("data.corpus") and "expected" in message and repr(url) in message


def test_accepted_urls_are_those_of_installed_file_systems():
    for url in "memory://bucket/x", "file:///tmp/x@y", "memory://host:8020/x":
        remote.check_url("--workdir", url)
        assert remote.is_remote(url)
    for path in "/a/b", "a:b", "text:a", "C:\\x", "":
        assert not remote.is_remote(path)


@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("gs", "gcsfs", "gcs"), ("s3", "s3fs", "s3"), ("s3", "", "s3")]
)
def test_a_missing_package_is_named_by_its_extra(scheme, package, extra, monkeypatch):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, package or "fsspec", None)
    with pytest.raises(UserError) as caught:
        remote.check_url("--workdir", f"{scheme}://bucket/x")
    assert caught.value.code == CONFIGURATION
    assert str(caught.value) == (
        f"--workdir: {scheme}:// needs a package that is not installed: pip install -e '.[{extra}]'"
    )


def test_another_file_system_of_fsspec_can_be_used(tmp_path):
    remote.write("memory://bucket/a/x", b"1", new=True)
    with pytest.raises(FileExistsError):
        remote.write("memory://bucket/a/x", b"2", new=True)
    assert list(remote.list_files("memory://bucket/a")) == ["x"]
    remote.download("memory://bucket/a/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"1"
    remote.delete("memory://bucket/a/x")
    assert remote.list_files("memory://bucket/a") == {}


def test_a_process_imports_the_libraries_only_for_a_url():
    """And those of GCS without the support of zonal buckets, which uses gRPC."""
    code = """if True:
        import sys, seq2seq.files.remote as remote
        assert remote.is_remote("gs://x") and not {"fsspec", "aiohttp"} & set(sys.modules)
        remote.check_url("--workdir", "gs://bucket/x")
        print({type(remote._file_system("gs://bucket/x")[0]).__module__})
    """
    others = {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": os.devnull}
    unset = {"STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"}
    environment = {name: os.environ[name] for name in os.environ.keys() - unset} | others
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert shown.stdout == "{'gcsfs.core'}\n", shown.stderr

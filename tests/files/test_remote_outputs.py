"""Outputs by URL: an object appears complete or not at all, and has one writer."""

import gzip
import tempfile
import time

import pytest

from seq2seq.files import remote, remote_lock
from seq2seq.files.locks import locked_output
from seq2seq.files.output_files import check_outputs, open_atomic, write_lines
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.paths import is_replaceable


@pytest.fixture
def url(storage, monkeypatch):
    monkeypatch.setenv("BUCKET", storage.url)
    return "$BUCKET/out.txt"


@pytest.mark.parametrize("part", [4, 1 << 20])
def test_an_object_is_written_when_it_is_complete(storage, url, monkeypatch, part):
    monkeypatch.setattr(remote, "PART", part)

    def lines():
        yield "one"
        assert storage.names() == []
        yield "two"

    assert write_lines(url, lines(), overwrite=False) == 2
    assert storage["out.txt"] == b"one\ntwo\n"
    write_lines("$BUCKET/out.gz", ["one"], overwrite=False)
    assert gzip.decompress(storage["out.gz"]) == b"one\n"


def test_a_failed_write_changes_nothing_and_leaves_no_local_file(
    storage, url, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage["out.txt"] = b"before"
    with pytest.raises(ZeroDivisionError), open_atomic(url, overwrite=True) as file:
        file.write(b"half")
        assert list(tmp_path.iterdir()) == []
        raise ZeroDivisionError
    assert storage.names() == ["out.txt"] and storage["out.txt"] == b"before"


def test_an_upload_that_fails_is_one_line(storage, url, failing):
    failing("pipe_file")
    message = "memory://bucket/out.txt cannot be accessed: ConnectionError: the network is down"
    with pytest.raises(UserError, match=f"{message}.*run the same command again") as refused:
        write_lines(url, ["one"], overwrite=False)
    assert refused.value.code == OUTPUT
    failing("pipe_file", error=FileNotFoundError("http://host/b/none"))
    with pytest.raises(UserError, match="out.txt cannot be accessed: no such bucket or object;"):
        write_lines(url, ["one"], overwrite=False)


def test_an_object_that_another_program_creates_meanwhile_is_kept(storage, url):
    with pytest.raises(UserError, match="out.txt was created by another program") as refused:
        with open_atomic(url, overwrite=False) as file:
            file.write(b"mine")
            storage["out.txt"] = b"other"
    (kept,) = set(storage.names()) - {"out.txt"}
    assert (storage["out.txt"], storage[kept]) == (b"other", b"mine")
    assert refused.value.code == OUTPUT and f"{storage.url}/{kept}: rename it" in str(refused.value)
    with open_atomic(url, overwrite=True) as file:
        file.write(b"mine")
    assert storage["out.txt"] == b"mine"


def test_an_upload_whose_success_was_not_reported_is_complete(storage, url):
    with open_atomic(url, overwrite=False) as file:
        file.write(b"mine")
        storage["out.txt"] = b"mine"
    assert storage.names() == ["out.txt"]


def test_an_existing_object_is_replaced_only_with_overwrite(storage, url):
    check_outputs([url], overwrite=False)
    storage["out.txt"] = b""
    with pytest.raises(UserError, match="memory://bucket/out.txt exists; set --overwrite") as no:
        check_outputs([url], overwrite=False)
    assert no.value.code == OUTPUT
    check_outputs([url], overwrite=True)
    with pytest.raises(UserError, match="cannot write memory://bucket/out/: expected a file"):
        check_outputs(["$BUCKET/out/"], overwrite=True)


def test_a_storage_that_cannot_be_asked_is_one_line(storage, url, failing):
    failing("info", error=PermissionError("Forbidden"))
    with pytest.raises(UserError, match="out.txt cannot be accessed: Forbidden") as refused:
        check_outputs([url], overwrite=False)
    assert refused.value.code == OUTPUT


def test_an_input_object_is_not_replaced(storage, url):
    for same in (url, "memory://bucket/out.txt", "memory:///bucket/out.txt"):
        with pytest.raises(UserError, match="would replace the input file") as refused:
            check_outputs([url], True, ["-", "", same])
        assert refused.value.code == OUTPUT
    check_outputs([url], True, ["-", "", "memory://bucket/in.txt", __file__])
    check_outputs(["$BUCKET/out.txt.x"], True, [url])
    with pytest.raises(UserError, match="two outputs are the same file"):
        check_outputs([url, "memory://bucket/out.txt"], True)
    check_outputs([url, "memory://bucket/other.txt", "out.txt"], True)


def test_a_directory_named_like_a_url_is_not_meant_by_it(tmp_path, monkeypatch):
    (tmp_path / "gs:" / "bucket").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert is_replaceable("gs://bucket") and not is_replaceable("gs:/bucket")


def test_an_output_has_one_writer_and_its_lock_is_deleted_afterwards(storage, url):
    held = "memory://bucket/out.txt is being written by another job .process"
    with locked_output(url) as check:
        check()
        with pytest.raises(UserError, match=held) as refused, locked_output(url):
            pass
        assert refused.value.code == OUTPUT
        assert storage.names() == ["out.txt.lock/000001"]
    assert storage.names() == []
    with pytest.raises(ZeroDivisionError), locked_output(url):
        raise ZeroDivisionError
    assert storage.names() == []


def test_a_job_learns_that_its_lock_was_taken_over(storage, url, monkeypatch):
    monkeypatch.setattr(remote_lock, "STALE", -1.0)
    monkeypatch.setattr(remote_lock, "REFRESH", 0.01)
    with locked_output(url) as check, locked_output(url):
        with pytest.raises(UserError, match="was taken over") as refused:
            for _ in range(1000):
                check()
                time.sleep(0.01)
        assert refused.value.code == OUTPUT


def test_a_lock_that_cannot_be_created_or_deleted(storage, url, failing):
    logged = []
    with locked_output(url, logged.append):
        failing("rm_file")
    assert (
        len(logged) == 1 and "out.txt.lock could not be deleted, it expires in 600 s" in logged[0]
    )
    failing("find", error=PermissionError("Forbidden"))
    with pytest.raises(UserError, match="cannot write memory://bucket/out.txt: Forbidden") as no:
        with locked_output(url):
            pass
    assert no.value.code == OUTPUT

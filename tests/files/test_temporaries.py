"""Temporary names: no file of a user is replaced, and what a killed process has left is deleted."""

import errno
import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from seq2seq.files import output_files as files
from seq2seq.files import temporaries
from seq2seq.files.locks import locked_output
from seq2seq.files.output_files import (
    check_outputs,
    new_directory,
    open_atomic,
    sync_to_disk,
    write_atomic,
    write_lines,
)
from seq2seq.files.temporaries import (
    delete_directory,
    is_temporary,
    temporary_directory,
    temporary_file,
)
from seq2seq.runtime.errors import OUTPUT, UserError
from tests.support.compressed import COMPRESS
from tests.support.full_disk import largest_file

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from seq2seq.files.temporaries import temporary_directory, temporary_file
with temporary_file(sys.argv[1]), temporary_directory(sys.argv[1]) as directory:
    (directory / "part").touch()
    print("held", flush=True)
    time.sleep(600)
"""


def names(path):
    return sorted(os.listdir(path))


def full(*_):
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("kind", ["atomic", "lines", *COMPRESS, "device", "sync", "directory"])
def test_an_error_of_an_open_file_has_its_path(tmp_path, monkeypatch, kind):
    path = Path("/dev/full") if kind == "device" else tmp_path / "out"
    path = path.with_suffix(kind) if kind in COMPRESS else path
    noise = random.Random(0).randbytes(20_000).hex()  # more than a buffer, also if compressed
    if kind in ("sync", "directory"):
        monkeypatch.setattr(os, "fsync", full)
        noise, path = "", tmp_path if kind == "directory" else path
    with pytest.raises(OSError) as caught, largest_file(100):
        if kind == "atomic":
            write_atomic(path, noise)
        elif kind == "directory":
            sync_to_disk(path)
        else:
            write_lines(str(path), [noise], overwrite=True)
    assert caught.value.filename == str(path) and str(path) in str(caught.value)
    assert names(tmp_path) == []


def test_files_and_directories_of_a_user_with_similar_names_are_not_changed(tmp_path):
    for name in ("out.tmp", "out.lock", "out.parts.tmp/part", "run.tmp/part", "out.old"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = names(tmp_path)
    with locked_output(str(tmp_path / "out")):
        write_lines(str(tmp_path / "out"), ["a"], overwrite=False)
    write_atomic(tmp_path / "out", "b")
    with new_directory(tmp_path / "run") as new:
        (new / "file").write_text("c")
    assert names(tmp_path) == sorted([*before, "out", "run"])
    for path in tmp_path.rglob("*"):
        if path.is_file() and path not in (tmp_path / "out", tmp_path / "run" / "file"):
            assert path.read_text() == "mine"


def test_temporaries_are_deleted_when_no_process_holds_them(tmp_path):
    path = tmp_path / "out"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    held = names(tmp_path)
    assert len(held) == 2 and all(map(is_temporary, held))
    write_atomic(path, "a")
    with new_directory(tmp_path / "out2"):
        assert set(held) < set(names(tmp_path))
    assert names(tmp_path) == sorted([*held, "out", "out2"])
    holder.kill()
    holder.wait()
    holder.stdout.close()
    write_atomic(tmp_path / "other", "a")  # deletes only those of its own name
    assert set(held) < set(names(tmp_path))
    write_atomic(path, "b")
    assert names(tmp_path) == ["other", "out", "out2"] and path.read_text() == "b"


def test_a_temporary_that_was_deleted_before_it_was_locked_is_created_again(tmp_path, monkeypatch):
    real, deleted = temporaries.fcntl.flock, []

    def late(file, operation):
        for path in tmp_path.iterdir() if not deleted else ():
            deleted.append(path.name)
            path.unlink()
        return real(file, operation)

    monkeypatch.setattr(temporaries.fcntl, "flock", late)
    with temporary_file(tmp_path / "out") as (temporary, file):
        assert len(deleted) == 1 and names(tmp_path) == [os.path.basename(temporary)]
        assert os.path.sameopenfile(os.open(temporary, os.O_RDONLY), file.fileno())


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    for name in ("n" * 255, "한" * 85):
        write_atomic(tmp_path / name, "a")
    assert names(tmp_path) == sorted(["n" * 255, "한" * 85])


def test_a_directory_that_cannot_be_deleted_has_another_name_and_is_deleted_later(
    tmp_path, monkeypatch
):
    for name in ("12", "12.0123456789ab.seq2seq-tmp"):  # the second one is left by a kill
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").touch()
    with monkeypatch.context() as patch:  # as on NFS while another process reads a file in it
        patch.setattr(temporaries.shutil, "rmtree", lambda path, ignore_errors: None)
        message = delete_directory(tmp_path / "12")
    assert not (tmp_path / "12").exists() and len(names(tmp_path)) == 2
    assert "could not be deleted" in message and any(name in message for name in names(tmp_path))
    with temporary_directory(tmp_path / "12"):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_an_output_that_another_program_creates_meanwhile_is_kept(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise PermissionError("no hard links here")

    if not links:
        monkeypatch.setattr(files.os, "link", refuse)
    path = tmp_path / "out"
    for overwrite in (True, False):
        with open_atomic(str(path), overwrite) as file:
            file.write(b"mine")
        path.unlink()
    with pytest.raises(UserError, match=f"{path} was created by another program") as caught:
        with open_atomic(str(path), overwrite=False) as file:
            file.write(b"mine")
            path.write_text("other")
    (kept,) = set(tmp_path.iterdir()) - {path}
    assert str(kept) in str(caught.value) and caught.value.code == OUTPUT
    assert (path.read_text(), kept.read_text()) == ("other", "mine")


def test_a_link_named_gz_is_written_compressed_to_its_target(tmp_path):
    (tmp_path / "out.gz").symlink_to("blob")
    assert write_lines(str(tmp_path / "out.gz"), ["a", "b"], overwrite=False) == 2
    assert gzip.decompress((tmp_path / "blob").read_bytes()) == b"a\nb\n"
    assert (tmp_path / "out.gz").is_symlink()


def test_a_pipe_whose_reader_ends_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "out")
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)

    def lines():
        yield "a"
        os.close(reader)
        yield "b"

    with pytest.raises(UserError, match="out was closed by its reader before the end") as caught:
        write_lines(str(tmp_path / "out"), lines(), overwrite=False)
    assert caught.value.code == OUTPUT


def test_an_input_is_compared_with_all_names_that_are_written_for_an_output(tmp_path):
    output = str(tmp_path / "out")
    for name in ("out", "out.seq2seq-lock", "any.0123456789ab.seq2seq-tmp"):
        (tmp_path / name).write_text("mine")
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(name)
        for input_name in (name, "link") if "tmp" not in name else (name,):
            with pytest.raises(UserError, match=input_name) as caught:
                check_outputs([output], True, ["-", "", str(tmp_path / input_name)])
            assert caught.value.code == OUTPUT
    check_outputs([output], True, ["-", "", str(tmp_path / "none"), str(ROOT / "README.md")])


@pytest.mark.parametrize("exists", [True, False])
def test_two_outputs_that_are_the_same_file_are_refused(tmp_path, monkeypatch, exists):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "folder").symlink_to(".")
    if exists:
        (tmp_path / "out").write_text("mine")
    for name in ("out", "./out", str(tmp_path / "out"), "$HERE/out", "link", "folder/out"):
        with pytest.raises(UserError, match="two outputs are the same file: .* got out and ") as no:
            check_outputs(["other", "out", name], True)
        assert no.value.code == OUTPUT
    check_outputs(["out", "other", "/dev/null", "/dev/null"], True)

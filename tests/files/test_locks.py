"""Output files and their locks: one writer, refused at start, no leftover files."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seq2seq.cli.command import code_and_message
from seq2seq.files.locks import lock_file, locked_output
from seq2seq.files.output_files import check_outputs, write_lines
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.runtime.paths import descriptor_of
from tests.support.forked import Process, call_forked, environment_of

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from seq2seq.files.locks import lock_file
lock = lock_file(sys.argv[1], "held", "wait")
print("held", flush=True)
time.sleep(600)
"""


def refused(path):
    with pytest.raises(UserError) as caught:
        lock_file(path, "it is locked", "wait")
    assert caught.value.code == OUTPUT
    return str(caught.value)


def test_a_lock_names_its_holder_and_is_released_when_the_holder_is_killed(tmp_path):
    path = tmp_path / "LOCK"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    message = refused(path)
    assert message.startswith(f"it is locked (process {holder.pid} on {os.uname().nodename} since ")
    assert message.endswith("; wait")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert path.exists()
    with lock_file(path, "", ""):
        assert f"process {os.getpid()} on" in refused(path)
    lock_file(path, "", "").close()


def test_a_lock_file_deleted_by_its_holder_does_not_count_as_the_new_one(tmp_path, monkeypatch):
    """Between opening and locking the file, the holder deletes it and another process locks a new
    one."""
    import fcntl

    path, real, locks = tmp_path / "LOCK", fcntl.flock, []

    def delayed(file, operation):
        if not locks:
            locks.append(None)
            path.unlink()
            locks.append(lock_file(path, "", ""))
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", delayed)
    assert "it is locked" in refused(path)
    locks[1].close()


def test_an_output_has_one_writer_and_its_lock_is_deleted_afterwards(tmp_path):
    output = str(tmp_path / "out.txt")
    with locked_output(output):
        with pytest.raises(UserError, match="is being written by another job .process") as caught:
            with locked_output(output):
                pass
        assert caught.value.code == OUTPUT
        write_lines(output, ["a"], True)
    assert os.listdir(tmp_path) == ["out.txt"]
    with pytest.raises(ZeroDivisionError), locked_output(output):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("name", ["out.txt", "out.gz"])
def test_a_failed_write_leaves_no_file_and_keeps_the_earlier_one(tmp_path, name):
    def lines():
        yield "one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_lines(str(tmp_path / name), lines(), True)
    assert os.listdir(tmp_path) == []
    (tmp_path / name).write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        write_lines(str(tmp_path / name), lines(), True)
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"before"


def test_a_pipe_is_not_locked_and_receives_each_line_immediately(tmp_path):
    os.mkfifo(tmp_path / "out")
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)

    def lines():
        yield "one"
        assert os.read(reader, 100) == b"one\n"
        yield "two"
        assert os.read(reader, 100) == b"two\n"

    with locked_output(str(tmp_path / "out")):
        assert os.listdir(tmp_path) == ["out"]
        assert write_lines(str(tmp_path / "out"), lines(), True) == 2
    os.close(reader)


def test_an_open_file_of_the_process_is_written_where_it_stands(tmp_path):
    """bash names >(command) /dev/fd/63; the file that stdout is redirected to exists already."""
    reader, writer = os.pipe()
    file = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    os.write(file, b"before\n")
    (tmp_path / "link").symlink_to(f"/proc/self/fd/{writer}")
    for path in (f"/dev/fd/{writer}", f"/proc/self/fd/{file}", f"/dev/fd/{file}", "{d}/link"):
        output = path.format(d=tmp_path)
        check_outputs([output], overwrite=False)
        with locked_output(output):
            assert write_lines(output, ["one"], False) == 1
    os.write(file, b"after\n")
    assert (tmp_path / "log").read_bytes() == b"before\none\none\nafter\n"
    assert os.read(reader, 100) == b"one\none\n"
    assert sorted(os.listdir(tmp_path)) == ["link", "log"]
    os.close(reader)
    for path, message in (
        (f"/dev/fd/{writer}", "was closed by its reader"),
        ("/dev/full", "^/dev/full cannot be written: No space left on device; free space"),
    ):
        with pytest.raises((UserError, OSError)) as caught:
            write_lines(path, ["one"], False)
        code, printed = code_and_message(caught.value)
        assert code == OUTPUT and re.search(message, printed)
    os.close(writer)
    os.close(file)
    for path in (f"/dev/fd/{file}", "/dev/fd/4000"):
        with pytest.raises(UserError, match=f"cannot write {path}: expected a file"):
            check_outputs([path], overwrite=True)
    assert [*map(descriptor_of, ("/dev/stdin", "/dev/stdout", "/dev/stderr"))] == [0, 1, 2]


@pytest.mark.parametrize("path", ["", "/proc/x", "{d}", "{d}/none/x", "{d}/file/x"])
def test_an_output_that_cannot_be_created_is_refused_at_start(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write") as caught:
        check_outputs([path.format(d=tmp_path)], overwrite=True)
    assert caught.value.code == OUTPUT
    assert os.listdir(tmp_path) == ["file"]


def test_the_check_of_an_output_leaves_no_file(tmp_path):
    check_outputs([str(tmp_path / "x"), "/dev/null", str(tmp_path / "~x")], overwrite=False)
    assert os.listdir(tmp_path) == []


BLOCKED = """
import hashlib, signal, sys
from seq2seq.runtime.signals import Stopped, handle_signals
stop = handle_signals()
if sys.argv[1] == "deferred":
    stop.defer()
try:
    print("ready", flush=True)
    # Runs in C: no Python handler runs meanwhile, as in a compiled call.
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(sys.argv[2]))
    stop.poll()
except Stopped as stopped:
    print(stopped, flush=True)
    sys.exit(128 + stopped.signal)
"""


IN_A_CALLBACK = """
import gc, os, signal, sys, time
from seq2seq.runtime.signals import Stopped, handle_signals
def callback(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    sum(range(9))
gc.callbacks.append(callback)
handle_signals()
try:
    gc.collect()
    time.sleep(60)
except Stopped as stopped:
    sys.exit(128 + stopped.signal)
"""


def test_a_signal_that_arrives_during_a_garbage_collection_ends_the_process(tmp_path):
    """JAX has a callback there, and Python drops the exceptions of callbacks."""
    (tmp_path / "script.py").write_text(IN_A_CALLBACK)
    done = call_forked([tmp_path / "script.py"], devices=0, environment=[("PYTHONPATH", str(ROOT))])
    assert (done.code, done.err) == (128 + signal.SIGTERM, [])


def blocked(path, mode, rounds):
    """(the process, its stdout), when it is ready."""
    (path / "blocked.py").write_text(BLOCKED)
    files = os.devnull, path / "stdout", path / "stderr"
    os.mkfifo(files[1])
    arguments = path / "blocked.py", mode, rounds
    process = Process(arguments, environment_of(0) | {"PYTHONPATH": str(ROOT)}, files)
    stdout = open(files[1], encoding="utf-8")
    assert stdout.readline() == "ready\n"
    return process, stdout


def test_a_second_signal_ends_a_process_that_is_inside_a_compiled_call(tmp_path):
    process, stdout = blocked(tmp_path, "deferred", 2**31 - 1)
    with stdout:
        for number in (signal.SIGINT, signal.SIGTERM):
            assert process.poll() is None
            process.send_signal(number)
            time.sleep(0.5)
        assert stdout.read() == ""
    assert process.wait(60) == 128 + signal.SIGTERM
    error = (tmp_path / "stderr").read_text()
    assert error == "stopped immediately by a second signal, SIGTERM\n"


def test_two_signals_at_the_same_time_are_one(tmp_path):
    """`timeout` sends SIGTERM to the process and then to its group."""
    process, stdout = blocked(tmp_path, "deferred", 4 * 10**5)
    for number in (signal.SIGTERM, signal.SIGINT):  # two of the same could be merged
        process.send_signal(number)
    with stdout:
        assert stdout.read() in ("stopped by SIGTERM\n", "stopped by SIGINT\n")
    assert process.wait(60) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


@pytest.mark.parametrize("mode", ["deferred", "at once"])
def test_the_first_signal_takes_effect_when_the_call_ends(tmp_path, mode):
    process, stdout = blocked(tmp_path, mode, 4 * 10**5)
    process.send_signal(signal.SIGINT)
    with stdout:
        assert stdout.read() == "stopped by SIGINT\n"
    assert process.wait(60) == 128 + signal.SIGINT
    assert (tmp_path / "stderr").read_text() == ""

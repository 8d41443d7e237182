"""Workers: real processes that import little, ignore signals and never outlive their parent."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loky import process_executor

from seq2seq.runtime.errors import DATA, INTERNAL, UserError
from seq2seq.runtime.workers import WorkerLost, Workers

ROOT = Path(__file__).parents[2]
SCRIPT = """
print("imported as", __name__, flush=True)
import os, sys, time
from seq2seq.runtime.workers import Workers

workers = Workers(2)
pids = [workers.submit(os.getpid).result()]
running = [workers.submit(time.sleep, 600) for _ in range(3)]
import psutil
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
"""


@pytest.fixture(scope="module")
def workers():
    with Workers(1) as workers:
        yield workers


@pytest.mark.parametrize("place", ["__init__", "submit"])
def test_without_shared_memory_this_process_does_the_work(monkeypatch, capsys, place):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")  # without a path

    monkeypatch.setattr(process_executor.ProcessPoolExecutor, place, full)
    with Workers(1) as workers:
        assert [workers.submit(os.getpid).result() for _ in range(2)] == [os.getpid()] * 2
        assert isinstance(workers.submit(int, "x").exception(), ValueError)
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(os.getpid)
    (warning,) = capsys.readouterr().err.splitlines()
    assert "cannot be started: No space left on device" in warning and "/dev/shm" in warning


def start(tmp_path, rest):
    """A process that runs SCRIPT and `rest`."""
    (tmp_path / "main.py").write_text(SCRIPT + rest)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, tmp_path / "main.py"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_all_end(pids, seconds):
    limit = time.monotonic() + seconds
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < limit, f"{running} of {pids} are running"
        time.sleep(0.02)


def test_a_function_is_run_in_another_process(workers):
    assert workers.submit(divmod, 17, 5).result() == (3, 2)
    assert workers.submit(os.getpid).result() != os.getpid()


def test_an_exception_is_raised_by_the_future(workers):
    def fail():
        error = UserError(DATA, "a.tsv:7: broken")
        error.place = 7
        raise error

    with pytest.raises(ZeroDivisionError):
        workers.submit(divmod, 1, 0).result()
    with pytest.raises(UserError, match="^a.tsv:7: broken$") as caught:
        workers.submit(fail).result()
    assert (caught.value.code, caught.value.place) == (DATA, 7)


def test_a_worker_imports_neither_jax_nor_the_main_module(workers):
    modules = workers.submit(lambda: sorted(sys.modules)).result()
    assert not {"jax", "jaxlib", "flax", "absl", "pytest"} & set(modules)
    main = workers.submit(lambda: vars(sys.modules["__main__"])["__spec__"].name).result()
    assert main.startswith("loky.")


def test_signals_are_left_to_the_main_process(workers):
    pid = workers.submit(os.getpid).result()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert workers.submit(os.getpid).result() == pid
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_a_worker_that_is_killed_is_an_error_and_is_replaced(workers):
    first = workers.submit(os.getpid).result()
    with pytest.raises(WorkerLost, match="worker process ended before its result") as caught:
        workers.submit(lambda: os.kill(os.getpid(), signal.SIGKILL)).result()
    assert caught.value.code == INTERNAL
    second = workers.submit(os.getpid).result()
    os.kill(second, signal.SIGKILL)
    assert_all_end([second], 10)
    third = workers.submit(os.getpid)
    try:  # loky may notice the end after the call
        third = third.result()
    except WorkerLost:
        third = workers.submit(os.getpid).result()
    assert len({first, second, third}) == 3


def test_unfinished_functions_are_ended_by_close():
    workers = Workers(1)
    pid = workers.submit(os.getpid).result()
    futures = [workers.submit(time.sleep, 600) for _ in range(3)]
    workers.close()
    assert_all_end([pid], 1)
    for future in futures:
        with pytest.raises(RuntimeError):
            future.result(timeout=5)
    with pytest.raises(RuntimeError, match="the workers are closed"):
        workers.submit(os.getpid)
    workers.close()


def test_workers_end_within_two_seconds_of_a_kill_of_their_parent(tmp_path):
    process = start(tmp_path, "time.sleep(600)")
    assert process.stdout.readline() == "imported as __main__\n"
    pids = list(map(int, process.stdout.readline().split()))
    assert len(pids) >= 2 and all(map(is_running, pids))
    process.kill()
    process.wait()
    assert_all_end(pids, 2)
    # The main module was imported once, and loky does not warn.
    assert process.communicate() == ("", "")


@pytest.mark.parametrize(
    "end", ["", "workers.close()", "sys.exit(3)", "os._exit(3)", "del workers"]
)
def test_an_exit_ends_the_workers_silently_whatever_they_do(tmp_path, end):
    process = start(tmp_path, end)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (3 * end.endswith("exit(3)"), "")
    first, pids = out.splitlines()
    assert first == "imported as __main__"
    assert_all_end(map(int, pids.split()), 2)

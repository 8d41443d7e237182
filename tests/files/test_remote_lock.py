"""The lock in object storage: one holder, taken over only when stale, noticed by the old one."""

import itertools
import json
import os
import platform
import subprocess
import threading
import time

import pytest

from seq2seq.files import remote, remote_lock
from seq2seq.files.remote_lock import RemoteLock
from seq2seq.runtime.errors import OUTPUT, UserError
from tests.support.object_storage import object_storage, shorten_pauses

ME = f"process {os.getpid()} on {platform.node()}"
NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def storage(request):
    with object_storage(request.param) as storage:
        yield storage


@pytest.fixture
def url(storage, monkeypatch):
    """The lock of a test. Its thread does not refresh it: tests call `_refresh`."""
    shorten_pauses(monkeypatch)
    storage.clear()
    yield f"{storage.url}/{next(NUMBERS)}/LOCK"
    storage.clear()


@pytest.fixture
def locked(url):
    """A function that takes the lock; all locks are released at the end. Its list `lines` are the
    warnings."""
    locks, lines = [], []

    def locked():
        locks.append(RemoteLock(url, "the run is in use", "wait", lines.append))
        return locks[-1]

    locked.lines = lines
    yield locked
    for lock in locks:
        lock.release()


def held(url, age, number=3, host="elsewhere", process=7, namespace=None):
    """Write the lock of another process that was refreshed `age` seconds ago."""
    holder = {
        "token": "other", "host": host, "process": process, "time": time.time() - age,
        "namespace": remote_lock._namespace() if namespace is None else namespace,
    }  # fmt: skip
    remote.write(f"{url}/{number:06d}", json.dumps(holder).encode())


def names(url):
    return list(remote.list_files(url))


def refused(locked):
    with pytest.raises(UserError) as caught:
        locked()
    assert caught.value.code == OUTPUT
    return str(caught.value)


def test_a_second_holder_is_refused_with_the_name_of_the_first(url, locked):
    before = int(time.time())
    lock = locked()
    lock.check()
    (name,) = names(url)
    message = refused(locked)
    assert message.startswith(f"the run is in use ({ME}, last seen 20")
    assert message.endswith("+00:00); wait")
    written = json.loads(remote.read(f"{url}/{name}"))
    assert written["process"] == os.getpid() and written["time"] >= before
    assert names(url) == [name] and locked.lines == []
    lock.release()
    assert names(url) == []
    locked().check()


def test_a_lock_is_refreshed_and_not_taken_over_before_it_is_stale(url, locked, monkeypatch):
    held(url, remote_lock.STALE - 5)
    assert refused(locked).startswith("the run is in use (process 7 on elsewhere, last seen ")
    remote.delete(f"{url}/000003")
    lock = locked()
    (name,) = names(url)
    monkeypatch.setattr(remote_lock.time, "time", lambda: 4e9)
    lock._refresh()
    assert json.loads(remote.read(f"{url}/{name}"))["time"] == 4e9
    lock.check()


def test_the_thread_refreshes_until_the_release(url, locked, monkeypatch):
    monkeypatch.setattr(remote_lock, "REFRESH", 0.01)
    lock = locked()
    (name,) = names(url)
    first = remote.read(f"{url}/{name}")
    deadline = time.monotonic() + 20
    while remote.read(f"{url}/{name}") == first:
        assert time.monotonic() < deadline
    lock.release()
    assert names(url) == [] and not lock._thread.is_alive()


def test_a_stale_lock_is_taken_over_with_a_warning_and_its_holder_notices(
    storage, url, locked, monkeypatch
):
    old = locked()
    with monkeypatch.context() as later:
        now = time.time()
        later.setattr(remote_lock.time, "time", lambda: now + remote_lock.STALE + 5)
        new = locked()
    assert len(names(url)) == 1
    (line,) = locked.lines
    assert line.startswith(f"warning: the lock {url} is taken over from {ME}, last seen 20")
    old.check()  # not yet noticed
    old._refresh()
    with pytest.raises(UserError, match=f"the lock {url} was taken over by {ME}") as caught:
        old.check()
    assert caught.value.code == OUTPUT
    storage.clear()
    old.release()  # does not delete the lock of the new holder
    assert storage.count("delete") == 0 and len(names(url)) == 1
    new._refresh()
    new.check()


def test_the_lock_of_a_process_of_this_host_that_has_ended_is_taken_over(url, locked):
    """One with the id of this process is an earlier one. In another container, ids mean nothing."""
    (ended := subprocess.Popen(["true"])).wait()
    held(url, 0, host=platform.node(), process=os.getppid())
    assert f"process {os.getppid()} on" in refused(locked)
    for process in ended.pid, os.getpid():
        held(url, 0, host=platform.node(), process=process, namespace="pid:[1]")
        assert f"process {process} on" in refused(locked)
    for number, process in (4, ended.pid), (6, os.getpid()):
        held(url, 0, number, host=platform.node(), process=process)
        locked().check()
        assert names(url) == [f"{number + 1:06d}"]
        assert f"is taken over from process {process} on" in locked.lines[-1]
    assert ME in refused(locked)


def test_a_holder_notices_that_its_lock_was_deleted(url, locked):
    lock = locked()
    (name,) = names(url)
    remote.delete(f"{url}/{name}")
    lock._refresh()
    with pytest.raises(UserError, match="was taken over, because it was not refreshed"):
        lock.check()
    assert names(url) == []


def test_a_thread_does_not_take_over_a_lock_that_another_thread_is_acquiring(
    url, locked, monkeypatch
):
    acquire = RemoteLock._acquire

    def acquire_and_try_again(lock, advice):
        number = acquire(lock, advice)
        monkeypatch.setattr(RemoteLock, "_acquire", acquire)
        assert ME in refused(locked)
        return number

    monkeypatch.setattr(RemoteLock, "_acquire", acquire_and_try_again)
    lock = locked()
    lock.check()
    assert len(names(url)) == 1


@pytest.mark.parametrize("stale", [False, True], ids=["free", "stale"])
def test_of_several_processes_at_once_one_gets_the_lock(storage, url, locked, stale):
    count = 8
    if stale:
        held(url, 1e6)
    barrier, results = threading.Barrier(count), []
    listed = threading.Barrier(count)
    storage.fault(listed.wait, "list", times=count)  # all have seen the same when one writes

    def run():
        barrier.wait()
        try:
            results.append(locked())
        except UserError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lock,) = [result for result in results if isinstance(result, RemoteLock)]
    errors = [str(result) for result in results if isinstance(result, UserError)]
    assert len(errors) == count - 1 and all(ME in error for error in errors)
    lock._refresh()
    lock.check()
    assert len(names(url)) == 1
    assert any("process 7 on elsewhere" in line for line in locked.lines) == stale


@pytest.mark.parametrize("action", ["lose", "cut", 503])
def test_a_write_whose_response_is_lost_still_gives_the_lock(storage, url, locked, action):
    storage.fault(action, "write", times=2)
    lock = locked()
    assert len(names(url)) == 1
    lock._refresh()
    lock.check()
    assert "in use" in refused(locked)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"null",
     b'{"token": "x", "host": "h", "namespace": "", "process": 1}',
     b'{"token": "x", "host": "h", "namespace": "", "process": "one", "time": 1e12}',
     b'{"token": "x", "host": "h", "namespace": "", "process": 1, "time": null}',
     b'{"token": "x", "host": "h", "namespace": "", "process": 1, "time": NaN}',
     b'{"token": "x", "host": "h", "namespace": "", "process": 1, "time": 1e300}',
     b'{"token": "x", "host": "h", "namespace": "", "process": 1, "time": 1e17}',
     b'{"token": "x", "host": "h", "namespace": "", "process": Infinity, "time": 1}'],
)  # fmt: skip
def test_a_malformed_lock_is_taken_over_with_a_warning(url, locked, content):
    remote.write(f"{url}/000003", content)
    locked()
    assert names(url) == ["000004"]
    assert len(locked.lines) == 1 and "an unknown host" in locked.lines[0]


@pytest.mark.parametrize("number", [1, 5])
def test_a_lock_acquired_by_another_process_in_the_meantime_is_respected(
    storage, url, locked, number
):
    """Between list and write, another process takes over a stale lock, and more happens."""

    def change():
        held(url, 0, number)
        remote.delete(f"{url}/000003")

    held(url, 1e6)
    storage.fault(change, "write", "000004")
    assert "process 7 on elsewhere" in refused(locked)
    assert names(url) == [f"{number:06d}"]


def test_an_object_that_cannot_be_read_is_not_taken_for_a_stale_lock(storage, url, locked):
    held(url, 0)
    for action, error in (403, PermissionError), (507, remote.RemoteError):
        fault = storage.fault(action, "read", times=float("inf"))
        with pytest.raises(error):
            locked()
        fault.times = 0
    assert names(url) == ["000003"]


def test_other_objects_beside_the_lock_are_ignored(url, locked):
    for name in "note", "000001/x", "²":
        remote.write(f"{url}/{name}", b"")
    lock = locked()
    lock._refresh()
    lock.check()
    assert len(names(url)) == 4


def test_a_lock_that_disappears_while_it_is_read_is_free(storage, url, locked):
    held(url, 0)
    storage.fault(lambda: remote.delete(f"{url}/000003"), "read")
    locked().check()
    assert len(names(url)) == 1


def test_a_clock_that_is_behind_does_not_take_over_a_lock(url, locked):
    held(url, -1e5)
    assert "process 7 on elsewhere" in refused(locked)


def test_storage_that_cannot_be_reached_is_a_warning_while_refreshing(
    storage, url, locked, monkeypatch
):
    monkeypatch.setattr(remote_lock, "REFRESH", 0.01)
    lock = locked()
    storage.fault(403, times=float("inf"))
    deadline = time.monotonic() + 20
    while not locked.lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert locked.lines[0].startswith(f"warning: the lock {url} could not be refreshed: ")
    with pytest.raises(PermissionError):
        locked()
    storage.clear()
    lock.check()


def test_a_returning_holder_does_not_take_the_lock_of_another(url, locked):
    """Numbers begin at 1 again when a lock is given back."""
    old = locked()
    remote.delete(f"{url}/000001")
    held(url, 0, number=1)
    old._refresh()
    with pytest.raises(UserError, match="was taken over by process 7 on elsewhere"):
        old.check()
    assert b"elsewhere" in remote.read(f"{url}/000001")


def test_a_lock_that_was_not_refreshed_is_verified_before_it_is_used(url, locked, monkeypatch):
    old = locked()
    held(url, 0, number=2)
    old.verify()  # the last refresh was a moment ago
    monkeypatch.setattr(remote_lock, "REFRESH", -1.0)
    with pytest.raises(UserError, match="was taken over"):
        old.verify()


def test_all_locks_are_given_back_before_an_abrupt_end(url, locked):
    locked()
    remote_lock.release_all(20)
    assert names(url) == []

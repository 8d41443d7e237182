"""The replica of a run in object storage: what is uploaded and when, and which side is used."""

import itertools
import json
import shutil
import threading

import pytest

from seq2seq.files import remote, remote_lock
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CONFIGURATION, OUTPUT, UserError
from seq2seq.storage.manifest import write_manifest
from seq2seq.storage.replicas import replica as module
from seq2seq.storage.replicas.names import directories_of
from seq2seq.storage.replicas.replica import Replica
from seq2seq.storage.run import Run
from tests.support.marks import slow_except
from tests.support.object_storage import object_storage, shorten_pauses

ALL = pytest.mark.parametrize(
    "storage", slow_except(["memory"], ["memory", "gs", "s3"]), indirect=True
)


@pytest.fixture(scope="module")
def storage(request):
    with object_storage(getattr(request, "param", "memory")) as started:
        yield started


@pytest.fixture
def url(storage, request, monkeypatch):
    if storage.scheme == "memory":
        monkeypatch.setattr(remote, "PAUSES", (0.0,) * 3)
    else:
        shorten_pauses(monkeypatch)
    monkeypatch.setattr(module, "PAUSES", (0.001,))
    storage.clear()
    yield f"{storage.url}/{request.node.name.partition('[')[0]}"
    storage.clear()


def add_checkpoint(run, name, content):
    directory = run / name
    (directory / "params" / "d").mkdir(parents=True)
    (directory / "params" / "d" / "0").write_bytes(content * 1000)
    (directory / "rest").write_bytes(content)
    write_manifest(directory)


def make_run(path, *steps, started="today"):
    """A directory with the files of a run; the content of a checkpoint is its step."""
    (path / "vocab").mkdir(parents=True)
    (path / "vocab" / "joint.model").write_bytes(b"pieces")
    (path / "config.json").write_text("{}")
    (path / "run.json").write_text(json.dumps({"started": started}))
    (path / "train.log").write_text("a line\n")
    (path / "LOCK").write_text("")
    (path / "mine.txt").write_text("of the user")
    for step in steps:
        add_checkpoint(path, f"checkpoints/{step}", str(step).encode())
    return path


def opened(url, path, log=None):
    replica = Replica(url, path, log.append if log is not None else print)
    path.mkdir(exist_ok=True)
    replica.start(overwrite=False)
    return replica


def stored(url, path, **options):
    """Store a directory as a replica, and end."""
    replica = opened(url, path, **options)
    replica.upload()
    replica.close()


def files(path):
    """The content of the files of a local run that a replica has."""
    paths = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    return {name: f.read_bytes() for name, f in paths.items() if name not in ("LOCK", "mine.txt")}


def objects(url):
    return {name: remote.read(f"{url}/{name}") for name in remote.list_files(url)}


def written(storage):
    names = [r.name.partition("/")[2] for r in storage.requests if r.kind == "write"]
    return [name for name in names if not name.startswith("LOCK/")]


def test_another_process_deletes_its_copy_of_a_run_that_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "index", lambda: 1)
    run = Run(tmp_path / "run", "s3://bucket/run")
    make_run(run.path, 1, 2)
    run.open_replica(overwrite=True)
    assert {path.name for path in run.path.iterdir()} == {"LOCK", "mine.txt"}


@ALL
def test_a_run_is_stored_manifest_last_and_comes_back_on_an_empty_disk(storage, url, tmp_path):
    run = make_run(tmp_path / "run", 9, 10)
    stored(url, run)
    assert objects(url) == files(run)
    order = written(storage)
    for step in (9, 10):
        of_step = [name for name in order if name.startswith(f"checkpoints/{step}/")]
        assert of_step[-1] == f"checkpoints/{step}/MANIFEST.sha256" and len(of_step) == 3
    assert order.index("checkpoints/9/MANIFEST.sha256") < order.index("checkpoints/10/rest")
    # A complete checkpoint has everything that is needed to resume from it.
    files_before = [name for name in order if not name.startswith("checkpoints/")]
    assert files_before[-1] == "config.json" and order[: len(files_before)] == files_before
    stored(url, tmp_path / "new")
    assert files(tmp_path / "new") == files(run)


def test_only_changes_are_uploaded_and_outdated_objects_deleted(storage, url, tmp_path):
    run = make_run(tmp_path / "run", 1, 2)
    remote.write(f"{url}/notes.txt", b"of the user")
    replica = opened(url, run)
    replica.upload()
    storage.clear()
    replica.upload()
    assert written(storage) == []
    shutil.rmtree(run / "checkpoints" / "1")
    add_checkpoint(run, "checkpoints/3", b"3")
    add_checkpoint(run, "average", b"mean")
    (run / "train.log").write_text("a line\nanother\n")
    replica.upload()
    replica.close()
    expected = {**files(run), "notes.txt": b"of the user"}
    assert objects(url) == expected
    changes = [r for r in storage.requests if r.kind in ("write", "delete")]
    names = [r.name.partition("/")[2] for r in changes]
    gone = [name for name in names if name.startswith("checkpoints/1/")]
    assert gone[0] == "checkpoints/1/MANIFEST.sha256" and len(set(gone)) == 3
    assert names.index("checkpoints/3/MANIFEST.sha256") < names.index(gone[0])
    assert not any(name.startswith("checkpoints/2/") for name in names)
    # A later training makes another average of the same name.
    shutil.rmtree(run / "average")
    add_checkpoint(run, "average", b"another mean")
    stored(url, run)
    assert objects(url) == {**files(run), "notes.txt": b"of the user"}


def test_the_newest_complete_checkpoint_of_both_sides_is_used(storage, url, tmp_path):
    run, log = make_run(tmp_path / "run", 1, 2), []
    stored(url, run)
    # A third one without its manifest, and damage to the second one, which the manifest reveals.
    remote.write(f"{url}/checkpoints/3/rest", b"3")
    new = tmp_path / "new"
    remote.write(f"{url}/checkpoints/2/rest", b"x")
    opened(url, new, log).close()
    remote.write(f"{url}/checkpoints/2/rest", b"2")
    assert sorted(path.name for path in (new / "checkpoints").iterdir()) == ["1"]
    assert "checkpoints/2 is damaged and is not used: rest does not match" in log[1]
    # Damage on the way, once: downloaded again.
    storage.fault("flip", "read", "checkpoints/2/params")
    stored(url, new)
    assert files(new) == files(run)
    # The working copy is ahead, because an upload has failed: nothing is downloaded.
    add_checkpoint(new, "checkpoints/3", b"3")
    (new / "train.log").write_text("ahead\n")
    storage.clear()
    stored(url, new)
    assert storage.count("read", "checkpoints/[0-9]*/(rest|params)") == 0
    assert objects(url) == files(new)
    # The working copy is behind: another machine has continued a run that was complete here.
    add_checkpoint(run, "average", b"mean")
    add_checkpoint(run, "checkpoints/mine", b"a named average")
    stored(url, run)
    assert not (run / "average").exists() and (run / "checkpoints" / "mine").exists()
    assert (run / "checkpoints" / "3").exists() and (run / "train.log").read_text() == "ahead\n"
    add_checkpoint(run, "checkpoints/4", b"4")
    add_checkpoint(run, "average", b"another mean")
    stored(url, run)
    add_checkpoint(new, "average", b"mean")
    stored(url, new)
    assert files(new) == objects(url)


def test_a_damaged_working_copy_is_replaced(url, tmp_path):
    run = make_run(tmp_path / "run", 1)
    stored(url, run)
    whole = files(run)
    (run / "checkpoints" / "1" / "rest").write_bytes(b"x")
    stored(url, run)
    assert whole.items() <= files(run).items()
    assert (run / "checkpoints" / "1.corrupt").is_dir()
    assert objects(url) == whole


def test_the_working_copy_of_another_run_is_refused(url, tmp_path):
    stored(url, make_run(tmp_path / "run", 1))
    before = objects(url)
    other = make_run(tmp_path / "other", 5, started="yesterday")
    replica = Replica(url, other, print)
    with pytest.raises(UserError, match="is that of another run than .*--local_dir") as caught:
        replica.start(overwrite=False)
    assert caught.value.code == CONFIGURATION
    replica.try_upload()  # as train.py does after an error
    replica.close()
    assert remote.list_files(f"{url}/LOCK") == {}
    assert objects(url) == before


def test_overwrite_deletes_a_run_and_no_other_directory(storage, url, tmp_path):
    stored(url, make_run(tmp_path / "run", 1))
    remote.write(f"{url}/notes.txt", b"of the user")
    before = objects(url)
    earlier = Replica(url, make_run(tmp_path / "earlier", 5), print)
    earlier.start(overwrite=True)
    earlier.try_upload()  # as train.py does if the new run has no data: nothing was deleted
    earlier.close()
    assert objects(url) == before
    (tmp_path / "new").mkdir()
    replica = Replica(url, tmp_path / "new", print)
    replica.start(overwrite=True)
    assert not files(tmp_path / "new")
    storage.clear()
    replica.clear()
    deleted = [r.name.partition("/")[2] for r in storage.requests if r.kind == "delete"]
    assert deleted[0] == "checkpoints/1/MANIFEST.sha256" and deleted[-1] == "config.json"
    assert [name for name in objects(url) if not name.startswith("LOCK")] == ["notes.txt"]
    (tmp_path / "new" / "train.log").write_text("error")
    replica.try_upload()
    assert remote.read(f"{url}/train.log") == b"error"
    replica.close()
    remote.write(f"{url}/samples/picture.png", b"of another program")
    replica = Replica(url, tmp_path / "new", print)
    with pytest.raises(UserError, match="holds objects but no run"):
        replica.start(overwrite=True)
    replica.close()


@ALL
def test_faults_of_the_storage_are_retried_then_reported(storage, url, tmp_path):
    run, log = make_run(tmp_path / "run", 1), []
    replica = opened(url, run, log)
    storage.fault(503, "write", times=3)
    storage.fault(429, "list", times=2)
    storage.fault("cut", "write", "rest")
    storage.fault("lose", "write", "MANIFEST")
    replica.upload()
    assert objects(url).keys() - {"LOCK/000001"} == files(run).keys()
    log.clear()
    add_checkpoint(run, "checkpoints/2", b"2")
    full = storage.fault(507, "write", "checkpoints/2", times=10**6)
    with pytest.raises(UserError, match=f"{run} holds the run") as caught:
        replica.upload()
    assert caught.value.code == OUTPUT
    assert "failed" in log[0] and "with the next checkpoint" in log[1] and len(log) == 2
    assert "checkpoints/2/MANIFEST.sha256" not in objects(url)
    full.times = 0
    replica.upload()
    assert "checkpoints/2/MANIFEST.sha256" in objects(url)
    storage.fault(403, "write", "train.log", times=10**6)
    (run / "train.log").write_text("more\n")
    with pytest.raises(UserError, match="PermissionError"):
        replica.upload()
    replica.close()
    storage.clear()
    storage.fault(403, times=10**6)
    with pytest.raises(UserError, match="check the bucket and the credentials"):
        opened(url, tmp_path / "new")


def test_a_second_training_is_refused_and_a_lost_lock_ends_the_first(url, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", 1)
    first = opened(url, run)
    with pytest.raises(UserError, match="in use by another training .process"):
        opened(url, tmp_path / "other")
    monkeypatch.setattr(remote_lock, "STALE", -1.0)
    second = opened(url, tmp_path / "other", log := [])
    assert "taken over" in log[1]
    first._lock._refresh()
    with pytest.raises(UserError, match="was taken over by process"):
        first.check_lock()
    with pytest.raises(UserError, match="was taken over"):
        first.upload()
    first.close()
    second.check_lock()
    second.close()


def test_saving_waits_only_for_the_upload_before_the_last(storage, url, tmp_path):
    """With the storage blocked, two uploads are pending and the third call waits."""
    run, go = make_run(tmp_path / "run"), threading.Event()
    replica = opened(url, run)
    storage.fault(go.wait, "write", times=10**6)
    third = threading.Thread(target=replica.start_upload)
    try:
        replica.start_upload()
        replica.start_upload()
        third.start()
        third.join(0.2)
        assert third.is_alive()
    finally:
        go.set()
    third.join(20)
    assert not third.is_alive()
    replica.close()


def test_a_deleted_working_copy_deletes_nothing_in_the_replica(url, tmp_path):
    run = make_run(tmp_path / "run", 1, 2)
    replica = opened(url, run)
    replica.upload()
    before = objects(url)
    for part in ("checkpoints/2", "checkpoints", "config.json"):
        path = run / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        replica.upload()
        assert objects(url) == before
    replica.close()


def test_other_processes_follow_the_replica(storage, url, tmp_path):
    run, copy = make_run(tmp_path / "run", 1, 2), make_run(tmp_path / "copy", 7)
    (copy / "best.json").write_text("{}")
    (copy / "mine.txt").unlink()
    writer = opened(url, run)
    writer.upload()
    reader = Replica(url, copy, print)
    (run / "train.log").write_text("not read\n")
    storage.fault(lambda: writer.upload(), "info", "train.log")  # while it is read
    reader.fetch()
    assert (copy / "train.log").read_text() == "a line\n"
    assert {**files(copy), "train.log": b"not read\n"} == files(run)
    shutil.rmtree(run / "checkpoints" / "1")
    add_checkpoint(run, "checkpoints/3", b"3")
    writer.upload()
    reader.fetch()
    assert files(copy).keys() == files(run).keys()
    reader.close()
    writer.close()


def test_an_interrupted_download_is_completed_by_the_next_start(storage, url, tmp_path):
    run = make_run(tmp_path / "run", 800, 900, 1000)
    (run / "best.json").write_text('{"checkpoint": 900}')
    stored(url, run)
    copy = make_run(tmp_path / "copy", 500)
    for reads in itertools.count():  # until an error
        storage.fault(403, "read", times=10**6, after=reads)
        try:
            replica = opened(url, copy)
            break
        except UserError as error:
            assert "cannot be used" in str(error)
        finally:
            storage.clear()
            remote_lock.release_all(20)
    assert reads > 5
    replica.upload()
    replica.close()
    assert files(copy) == files(run) == objects(url)


def test_a_deletion_that_failed_can_be_repeated(storage, url, tmp_path):
    stored(url, make_run(tmp_path / "run", 1, 2))
    (tmp_path / "new").mkdir()
    fault = storage.fault(403, "delete", "rest|config", times=10**6)
    for number in (0, 1):
        fault.times = (1 - number) * 10**6
        replica = Replica(url, tmp_path / "new", print)
        replica.start(overwrite=True)
        if number:
            replica.clear()
        else:
            with pytest.raises(UserError, match="could not be deleted"):
                replica.clear()
            assert not directories_of(remote.list_files(url))
        replica.close()
    assert remote.list_files(url) == {}
    add_checkpoint(tmp_path / "lost", "checkpoints/5", b"5")
    for path in (tmp_path / "lost").rglob("*"):
        if path.is_file():
            remote.upload(path, f"{url}/{path.relative_to(tmp_path / 'lost')}")
    with pytest.raises(UserError, match="has checkpoints but no config.json"):
        opened(url, tmp_path / "other")


def test_damage_of_the_working_copy_changes_nothing_in_the_replica(url, tmp_path):
    run = make_run(tmp_path / "run", 1, 2)
    stored(url, run)
    before, log = objects(url), []
    (run / "checkpoints" / "1" / "MANIFEST.sha256").write_bytes(b"damaged")
    replica = opened(url, run, log)
    add_checkpoint(run, "checkpoints/3", b"3")
    replica.upload()
    replica.close()
    assert any("checkpoints/1 is damaged and is not uploaded" in line for line in log)
    assert before.items() <= objects(url).items()
    assert "checkpoints/3/MANIFEST.sha256" in objects(url)


def test_a_damaged_step_of_the_working_copy_is_not_deleted(url, tmp_path):
    run, copy = make_run(tmp_path / "run", 2), make_run(tmp_path / "copy", 1, 3)
    (copy / "checkpoints" / "3" / "rest").write_bytes(b"x")
    stored(url, run)
    opened(url, copy).close()
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["2", "3"]
    # Without a checkpoint in the replica, nothing is deleted.
    stored(f"{url}/new", make_run(tmp_path / "new"))
    copy = make_run(tmp_path / "third", 7)
    (copy / "checkpoints" / "7" / "rest").write_bytes(b"x")
    opened(f"{url}/new", copy).close()
    assert (copy / "checkpoints" / "7").exists()


def test_objects_of_a_user_below_a_run_stay(url, tmp_path):
    run = make_run(tmp_path / "run", 1)
    names = ["checkpoints/1-backup/rest", "samples/note.txt", "checkpoints/mine/note", "notes.txt"]
    for name in names:
        remote.write(f"{url}/{name}", b"of the user")
    stored(url, run)
    add_checkpoint(run, "checkpoints/2", b"2")
    stored(url, run)
    assert objects(url).keys() == files(run).keys() | set(names)


def test_steps_are_kept_until_they_are_uploaded(storage, url, tmp_path):
    run, go = make_run(tmp_path / "run", 1, 2, 3), threading.Event()
    replica = opened(url, run)
    storage.fault(go.wait, "write", times=10**6)
    try:
        replica.start_upload({1, 3})
        replica.start_upload({3})
        assert replica.steps_in_use() == {1, 3}
    finally:
        go.set()
    replica.wait()
    assert replica.steps_in_use() == set()
    assert directories_of(remote.list_files(url)) == ["checkpoints/3"]
    replica.close()

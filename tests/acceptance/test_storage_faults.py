"""Rows 37 to 42: runs and decoding jobs in object storage, on emulators behind a faulty proxy."""

import random
import signal
import time

import pytest

from seq2seq.files import remote
from seq2seq.runtime.paths import working_copy
from seq2seq.storage.replicas.names import directories_of, steps_among
from tests.acceptance.command_line import DECODE, ENVIRONMENT, decode, trained
from tests.acceptance.processes import KILLED, ended, error_of, final_state, last_step, wait_for
from tests.acceptance.test_decoding_faults import text_of
from tests.support.forked import Process
from tests.support.object_storage import object_storage
from tests.support.tiny import mixed_lines

FLAGS = "--config.training.eval_every=10", "--config.training.checkpoint_every=5"
ENDLESS = "--config.training.num_steps=1000000"
MOMENTS = "run: ", "train: ", "devices: ", "batch: ", "saved step ", "saved step "


# decode.py that saves results as soon as a call ends, for jobs of seconds.
QUICK_SAVES = """
import runpy, sys
from seq2seq.decoding.command import resumable_output
resumable_output.SAVE_INTERVAL = 0.0
sys.argv[0] = {decode!r}
runpy.run_path({decode!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def storage(request):
    with object_storage(request.param) as started:
        yield started
        started.clear()


def on(scheme):
    """Runs a test on this storage; tests/files/test_remote.py tests both in detail."""
    return pytest.mark.parametrize("storage", [scheme], indirect=True)


def newest_step(url):
    """The newest complete checkpoint of a replica; 0 if there is none."""
    return max(steps_among(directories_of(remote.list_files(url))), default=0)


def wait_for_upload(process, url, newest):
    """Read stderr until the replica has a newer checkpoint than `newest`; returns the lines."""
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if line.startswith("saved step ") and newest_step(url) > newest:
            return lines
    raise AssertionError(lines)


def trained_to(bench, run, last, *flags):
    """The lines of a training of `last` steps that ends with exit code 0."""
    code, lines = bench.train_here(run, *FLAGS, f"--config.training.num_steps={last}", *flags)
    assert code == 0, lines
    return lines


def local_dir(path):
    return f"--local_dir={path}"


@pytest.mark.row(
    37,
    "kill -9 of a training into object storage, the same command on another, empty disk",
    "resumes from the newest complete checkpoint there; all bits as in an uninterrupted run",
)
@on("gs")
def test_killed_and_resumed_on_an_empty_disk(storage, bench, tmp_path, record_property, request):
    kills = 26 if request.config.option.soak else 3
    url, choose, resumed = f"{storage.url}/killed", random.Random(storage.scheme), []
    for number in range(kills):
        newest = newest_step(url)
        process = bench.start(url, local_dir(tmp_path / str(number)), *FLAGS, ENDLESS)
        if number % 2:
            lines = wait_for(process, choose.choice(MOMENTS))
        else:
            lines = wait_for_upload(process, url, newest)
        time.sleep(choose.uniform(0, 0.3))
        code, lines = ended(process, lines, signal.SIGKILL)
        assert code == KILLED, lines
        if last_step(lines, "step "):
            resumed.append(last_step(lines, "resumed at step "))
            assert resumed[-1] == newest, lines
    newest_before = newest_step(url)
    last = (newest_before // 10 + 1) * 10
    done = trained_to(bench, url, last, local_dir(tmp_path / "last"))
    assert last_step(done, "resumed at step ") == newest_before, done
    trained_to(bench, tmp_path / "whole", last)
    state = final_state(working_copy(url, str(tmp_path / "last")))
    assert state == final_state(tmp_path / "whole") and max(resumed) > 0
    copy = trained_to(bench, url, last, local_dir(tmp_path / "copy"))
    assert f"already complete at step {last}" in copy
    record_property(
        "seen",
        f"{storage.scheme}: {kills} kills, resumed at {resumed} and completed; "
        f"{len(state)} facts equal",
    )


@pytest.mark.row(
    38,
    "kill -9 of a decoding job with model, input and output in object storage, another disk",
    "saved chunks are reused; the output appears complete, with the bytes of an uninterrupted job",
)
@on("s3")
def test_a_killed_job_is_continued_elsewhere(storage, tmp_path, record_property, request):
    kills = 24 if request.config.option.soak else 1
    lines, url = mixed_lines(5_000, seed=4), f"{storage.url}/jobs"
    (tmp_path / "script.py").write_text(QUICK_SAVES.format(decode=DECODE))
    environment = ENVIRONMENT | storage.environment | {"PYTHONPATH": DECODE.rpartition("/")[0]}
    remote.write(f"{url}/in.txt", text_of(lines))
    for path in sorted(trained().rglob("*")):
        if path.is_file() and path.name != "LOCK":
            remote.upload(path, f"{url}/run/{path.relative_to(trained())}")
    flags = f"--input={url}/in.txt", "--max_extra_length=2", "--beam_size=1"
    whole = decode(trained(), *flags)
    assert whole.code == 0, whole.err
    job = *flags, f"--output={url}/out.txt"
    for number in range(kills):
        command = f"--workdir={url}/run", *job, local_dir(tmp_path / str(number))
        saved = max(1, len(remote.list_files(f"{url}/out.txt.parts")))  # the fingerprint first
        process = Process([tmp_path / "script.py", *command], environment)
        while process.poll() is None and len(remote.list_files(f"{url}/out.txt.parts")) <= saved:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == KILLED
        assert "out.txt" not in remote.list_files(url)
    done = decode(f"{url}/run", *job, local_dir(tmp_path / "last"))
    assert done.code == 0, done.err
    assert remote.read(f"{url}/out.txt").decode() == whole.out
    assert "from an earlier run" in done.err[-1]
    assert not remote.list_files(f"{url}/out.txt.parts")
    assert not remote.list_files(f"{url}/out.txt.lock")
    record_property(
        "seen",
        f"{storage.scheme}: {kills} kills, {len(lines):,} lines byte-identical",
    )


@pytest.mark.row(
    39,
    "503 and 429 for a while, connections cut in requests and bodies, lost and slow responses",
    "retried without a warning or with one; exit 0; all bits as in an uninterrupted run",
)
@on("gs")
def test_faults_of_the_moment_change_nothing(storage, bench, whole, tmp_path, record_property):
    url = f"{storage.url}/faults"
    remote.write(f"{url}/pairs.tsv", open(bench.corpus.partition(":")[2], "rb").read())
    storage.clear()
    storage.fault(503, "read", "pairs", times=2)
    storage.fault("truncate", "read", "pairs")
    storage.fault(429, "write", "checkpoints/2/", times=2)
    storage.fault("cut", "write", "checkpoints/4/")
    storage.fault("lose", "write", "checkpoints/4/MANIFEST")
    storage.fault(503, "list", times=2)
    storage.fault(lambda: time.sleep(1), "write", "checkpoints/6/")
    flags = f"--config.data.corpus=tsv:{url}/pairs.tsv", local_dir(tmp_path)
    code, lines = bench.train(url, *flags, fault=["hurry"])
    assert code == 0, lines
    assert not any(fault.times for fault in storage.proxy.faults)
    copy = final_state(working_copy(url, str(tmp_path)))
    expected = final_state(whole)
    copy["data"].pop("files"), expected["data"].pop("files")  # their names differ
    assert copy == expected
    storage.clear()
    record_property("seen", f"{storage.scheme}: 9 faults, {len(copy)} facts equal")


@pytest.mark.row(
    40,
    "a bucket that is full (507), credentials that expire (403), until the end of training",
    "training continues with warnings; exit 6 names the working copy; the same command uploads it",
)
@on("s3")
def test_uploads_that_never_succeed(storage, bench, tmp_path, record_property):
    url = f"{storage.url}/full"
    storage.clear()
    full = storage.fault(507, "write", "checkpoints/[48]/", times=10**6)
    refused = storage.fault(403, "write", "checkpoints/1[02]/", times=10**6)
    code, lines = bench.train(url, local_dir(tmp_path), fault=["hurry"])
    local = working_copy(url, str(tmp_path))
    message = error_of(lines)
    assert code == 6 and f"{local} holds the run" in message, lines
    assert last_step(lines, "saved step ") == 12
    assert any(line.startswith(f"warning: the upload to {url} failed") for line in lines)
    full.times = refused.times = 0
    code, lines = bench.train_here(url, local_dir(tmp_path))
    assert code == 0 and "already complete at step 12" in lines and newest_step(url) == 12
    storage.clear()
    record_property("seen", f"{storage.scheme}: exit 6, “{message[:60]}…”; then exit 0, uploaded")


@pytest.mark.row(
    41,
    "an object of the newest checkpoint changed or missing in the bucket",
    "its manifest refuses it; an older one is used, with a warning; all bits equal at the end",
)
@on("s3")
def test_a_damaged_checkpoint_in_the_bucket(storage, bench, whole, tmp_path, record_property):
    url = f"{storage.url}/damaged"
    storage.clear()
    code, lines = bench.train_here(url, local_dir(tmp_path / "a"), "--config.training.num_steps=8")
    assert code == 0, lines
    objects = [name for name in remote.list_files(url) if name.startswith("checkpoints/8/rest/")]
    for number, name in enumerate(objects):
        content = remote.read(f"{url}/{name}")
        if number == 0:
            remote.delete(f"{url}/{name}")
        else:
            remote.write(f"{url}/{name}", content[:-1] + bytes([content[-1] ^ 1]))
    code, lines = bench.train_here(url, local_dir(tmp_path / "b"))
    warning = next(line for line in lines if line.startswith("warning: "))
    assert code == 0 and "checkpoints/8 is damaged and is not used" in warning, lines
    assert last_step(lines, "resumed at step ") == 6
    assert final_state(working_copy(url, str(tmp_path / "b"))) == final_state(whole)
    record_property("seen", f"{storage.scheme}: resumed at 6 instead of 8, all equal")


@pytest.mark.row(
    42,
    "two trainings of one URL at once on two disks; the first one killed",
    "exit 6 of the second with the name of the first; then it takes over, with a warning",
)
@on("gs")
def test_one_training_at_a_time(storage, bench, tmp_path, record_property):
    url = f"{storage.url}/two"
    storage.clear()
    first = bench.start(url, local_dir(tmp_path / "a"), *FLAGS, ENDLESS)
    lines = wait_for(first, "saved step ")
    code, refused = bench.train(url, local_dir(tmp_path / "b"))
    message = error_of(refused)
    assert code == 6 and f"{url} is in use by another training (process {first.pid} on" in message
    code, lines = ended(first, lines, signal.SIGKILL)
    assert code == KILLED
    code, lines = bench.train_here(url, local_dir(tmp_path / "b"), *FLAGS)
    assert code == 0 and any("is taken over from process" in line for line in lines), lines
    assert not remote.list_files(f"{url}/LOCK")
    record_property("seen", f"{storage.scheme}: exit 6, then taken over, exit 0")

"""A run survives typos, full disks, closed pipes and kills without losing its checkpoints."""

import errno
import json
import math
import os
import shutil

import jax
import numpy as np
import pytest

from seq2seq.decoding import ensembles
from seq2seq.decoding import translator as translator_module
from seq2seq.decoding.translator import Translator
from seq2seq.files import temporaries
from seq2seq.pretrained.models import find_params
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.storage import checkpoints, manifest, orbax_files
from seq2seq.storage.best_checkpoint import BestCheckpoint, read_best, write_best
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.storage.orbax_files import check_fits_host, reason_of
from seq2seq.storage.run import Run
from seq2seq.storage.run_files import steps
from seq2seq.storage.writes import append_line
from seq2seq.training.step import TrainState
from tests.support.event_files import tensorboard_points
from tests.support.forked import call_forked
from tests.support.full_disk import largest_file
from tests.support.runs import run_config, stopped_run, train_cheaply, whole_run
from tests.support.tiny import write_run


def contents(path):
    return {
        file: file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name not in ("LOCK", "train.log")
    }


@pytest.mark.parametrize("start", ["nowhere", "{run}"])
def test_overwrite_deletes_nothing_if_init_from_is_invalid(tmp_path, start):
    path = tmp_path / "run"
    shutil.copytree(stopped_run(), path)
    before, config = contents(path), run_config(training__init_from=start.format(run=path))
    with pytest.raises(UserError) as caught:
        train_cheaply(path, config, overwrite=True)
    assert caught.value.code in (CHECKPOINT, CONFIGURATION)
    assert contents(path) == before


def test_overwrite_deletes_no_directory_that_is_not_a_run(tmp_path):
    (tmp_path / "samples").mkdir()
    run = Run(tmp_path)
    for content in (None, "[]", '{"model_type": "marian", "data": {}}'):  # of another program
        if content:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(UserError, match="holds files but no run"):
            run.clear()
        assert (tmp_path / "samples").is_dir()
    (tmp_path / "config.json").write_text('{"model": ')  # of a run, damaged
    run.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["LOCK"]
    run.close()


@pytest.mark.parametrize(
    "files, refused",
    [
        (["vocab/tokenizers.json"], False),
        (["vocab/other.json"], True),
        (["vocab/tokenizers.json", "samples/4.txt"], True),
    ],
)
def test_overwrite_deletes_the_files_of_a_failed_first_start(tmp_path, files, refused):
    """The vocabulary is written before config.json."""
    for name in files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    run = Run(tmp_path)
    if refused:
        with pytest.raises(UserError, match="holds files but no run"):
            run.clear()
    else:
        run.clear()
    assert all((tmp_path / name).exists() == refused for name in files)
    run.close()


def test_a_complete_run_started_again_changes_nothing(tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole_run(), path)
    write_best(path, read_best(path) | {"checkpoint": "average"})
    metrics = (path / "metrics.jsonl").read_bytes()
    train_cheaply(path, run_config())
    assert read_best(path)["checkpoint"] == "average"
    assert (path / "metrics.jsonl").read_bytes() == metrics
    train_cheaply(path, run_config(training__num_steps=13))  # another step deletes the average
    assert read_best(path)["checkpoint"] in {*steps(path), "average"}
    assert find_params(path, "best").is_dir()


def test_a_run_killed_before_its_first_save_starts_again(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "start_save", die)
        with pytest.raises(Killed):
            train_cheaply(tmp_path / "run", run_config())
    with pytest.raises(Stopped):
        train_cheaply(tmp_path / "run", run_config(), stop_after=4)
    assert read_best(tmp_path / "run") == read_best(stopped_run()) != {}


@pytest.fixture
def without_pauses(monkeypatch):
    """A save that failed does not wait for the threads of Orbax."""
    monkeypatch.setattr(orbax_files, "LATE_SECONDS", 0.0)


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("fails", ["4", pytest.param("average", marks=pytest.mark.slow)])
def test_a_checkpoint_that_could_not_be_saved_is_not_the_best(tmp_path, monkeypatch, fails):
    """The disk is full when the best step so far, or the average, is saved."""
    write, update = checkpoints.write_manifest, BestCheckpoint.update

    def full(directory):
        if directory.name == fails:
            raise OSError(28, "No space left on device")
        write(directory)

    def update_with(self, checkpoint, value, loss):
        """The first evaluation is the best, or the average."""
        worst = 0.0 if str(checkpoint) == fails else 100.0 + self.evaluated_step
        update(self, checkpoint, worst, loss)

    monkeypatch.setattr(checkpoints, "write_manifest", full)
    monkeypatch.setattr(BestCheckpoint, "update", update_with)
    config = run_config(training__num_steps=6)
    if fails == "4":
        train_cheaply(tmp_path / "run", config)
    else:
        with pytest.raises(UserError, match="could not be saved"):
            train_cheaply(tmp_path / "run", config)
    assert read_best(tmp_path / "run")["checkpoint"] in steps(tmp_path / "run")
    assert find_params(tmp_path / "run", "best").is_dir()


def test_the_reason_of_a_failed_save_is_that_of_the_system():
    long = ValueError("Error writing '0': Failed to write [os_error_code='28']: {" + "x" * 300)
    assert reason_of(long) == "No space left on device"
    assert reason_of(OSError(28, "full")) == "[Errno 28] full"


@pytest.mark.usefixtures("without_pauses")
def test_a_save_of_the_last_step_that_failed_is_repeated(tmp_path, monkeypatch):
    """Training is stopped while the disk is full."""
    write, attempts = checkpoints.write_manifest, []

    def full_once(directory):
        if directory.name == "4":
            attempts.append(directory)
            if len(attempts) == 1:
                raise OSError(28, "No space left on device")
        write(directory)

    monkeypatch.setattr(checkpoints, "write_manifest", full_once)
    with pytest.raises(Stopped):
        train_cheaply(tmp_path / "run", run_config(), stop_after=4)
    assert max(steps(tmp_path / "run")) == 4 and len(attempts) == 2


def test_the_files_of_a_checkpoint_are_synced_to_the_disk_before_its_manifest(
    tmp_path, monkeypatch
):
    """And the directory after it: its name may appear on the disk before its content."""
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "data").write_bytes(b"data")
    synced = []
    monkeypatch.setattr(manifest, "sync_to_disk", lambda path: synced.append(path))
    write = manifest.write_atomic
    monkeypatch.setattr(
        manifest, "write_atomic", lambda path, text: (synced.append(path), write(path, text))
    )
    manifest.write_manifest(tmp_path)
    *before, written, last = synced
    assert set(before) == {tmp_path / "params", tmp_path / "params" / "data"}
    assert (written, last) == (tmp_path / manifest.NAME, tmp_path)


@pytest.mark.parametrize("moment", ["open_ensemble", "load"])
@pytest.mark.parametrize("checkpoint", ["latest", "best", "step"])
def test_a_checkpoint_that_a_training_replaces_while_it_is_read_is_chosen_again(
    tmp_path, monkeypatch, checkpoint, moment
):
    shutil.copytree(stopped_run(), tmp_path / "run")
    step = steps(tmp_path / "run")[-1]
    write_best(tmp_path / "run", {"checkpoint": step})
    owner = translator_module if moment == "open_ensemble" else ensembles.Member
    read = getattr(owner, moment)

    def replaced(*arguments):
        if step in steps(tmp_path / "run"):  # a training with keep=1 has saved another one
            os.rename(tmp_path / f"run/checkpoints/{step}", tmp_path / "run/checkpoints/99")
            write_best(tmp_path / "run", {"checkpoint": 99})
        return read(*arguments)

    monkeypatch.setattr(owner, moment, replaced)
    if checkpoint == "step":
        with pytest.raises(UserError, match=f"no checkpoint '{step}' in"):
            Translator.load(tmp_path / "run", step)
    else:
        translator = Translator.load(tmp_path / "run", checkpoint)
        assert [member.checkpoint for member in translator.members] == ["99"]


@pytest.mark.parametrize("full_from", [0, 1], ids="points {} to 3 are lost".format)
def test_a_full_disk_loses_whole_entries_but_does_not_stop_training(tmp_path, capsys, full_from):
    run = Run(tmp_path)
    run.open_metrics(40, {})
    written = {
        step: {"loss": 1e41 / step, "news/valid_bleu": -1.5 * step} for step in range(41, 50)
    }
    for step in range(41, 41 + full_from):
        run.record(step, written[step])
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    with largest_file(max(sizes) + 7):  # in the middle of an entry
        for step in range(41 + full_from, 44):
            run.record(step, written.pop(step))
            run.write_samples(step, ["a" * 1000])
    for step in range(44, 50):
        run.record(step, written[step])
    run.close()
    err = capsys.readouterr().err
    for name in ("metrics.jsonl", "tensorboard", "samples"):
        assert err.count(f"part of {name} is lost: File too large") == 3 - full_from
    entries = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {entry.pop("step"): entry for entry in entries if entry.pop("time")} == written
    assert tensorboard_points(tmp_path / "tensorboard") == {
        "loss": dict.fromkeys(written, math.inf),
        "news/valid_bleu": {step: -1.5 * step for step in written},
    }
    Run(tmp_path).close()  # the directory is unlocked


def test_only_process_0_writes_the_run_directory(tmp_path, monkeypatch, capsys):
    """The other processes of a training, and a dry run, change nothing and log nothing."""
    shutil.copytree(stopped_run(), tmp_path / "run")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()  # of the training
    readers = [Run(tmp_path / "run", is_dry=True)]
    monkeypatch.setattr(processes, "index", lambda: 1)
    readers.append(Run(tmp_path / "run"))
    for run in readers:
        config = run.resume_config(run_config())
        run.open_metrics(0, {})
        run.record(1, {"loss": 1.0})
        for log in (run.log, run.note, run.progress):
            log("line")
        run.write_samples(1, ["line"])
        run.write_scores({})
        run.check_and_record(config, {})
        run.save_vocabulary(())
        run.clear()
        run.close()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert not capsys.readouterr().err


def test_training_continues_if_stderr_is_a_closed_pipe_or_on_a_full_disk(tmp_path):
    code = (
        "import os; read, write = os.pipe(); os.close(read); os.dup2(write, 2)\n"
        "from seq2seq.runtime.streams import open_closed_streams, write_stderr\n"
        "open_closed_streams(); write_stderr('one\\n'); write_stderr('two\\n'); print('on')\n"
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2); write_stderr('three\\n')"
    )
    (tmp_path / "closed.py").write_text(code)
    done = call_forked([tmp_path / "closed.py"], devices=0)
    assert (done.code, done.out) == (0, "on\n")


def test_a_command_continues_if_stdout_and_stderr_are_closed_pipes(tmp_path):
    code = (
        "import os; read, write = os.pipe(); os.close(read); os.dup2(write, 1); os.dup2(write, 2)\n"
        "from seq2seq.runtime.streams import note, write_stdout\n"
        "for _ in range(2):\n    note('message')\n    write_stdout('score\\n')\n"
        "open('end', 'w')"
    )
    (tmp_path / "closed.py").write_text(code)
    done = call_forked([tmp_path / "closed.py"], devices=0, cwd=tmp_path)
    assert done.code == 0 and (tmp_path / "end").exists()


def test_links_in_a_run_directory_change_nothing_outside_it(tmp_path, capsys):
    outside = tmp_path / "outside"
    for name in ("LOCK", "train.log", "samples/4.txt", "vocab/joint.txt", "5.tmp/part"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("mine")
    before = contents(outside)
    path = tmp_path / "run"
    path.mkdir()
    (path / "LOCK").symlink_to(outside / "LOCK")
    with pytest.raises(UserError, match="LOCK is not a lock of this program: .* symbolic link"):
        Run(path)
    (path / "LOCK").unlink()
    (path / "LOCK").write_text("of another program")
    with pytest.raises(UserError, match="LOCK is not a lock of this program: .* other content"):
        Run(path)
    assert (path / "LOCK").read_text() == "of another program"
    (path / "LOCK").unlink()
    for name in ("train.log", "samples", "vocab"):
        (path / name).symlink_to(outside / name)
    (path / "metrics.jsonl").symlink_to(outside / "train.log")
    (path / "checkpoints").symlink_to(outside)
    run = Run(path)
    run.note("a line")
    append_line(path / "metrics.jsonl", "{}")
    run.write_samples(4, ["a"])
    with pytest.raises(UserError, match="vocab is a symbolic link"):
        run.save_vocabulary(())
    Checkpoints(path, keep=1, every=1, log=print).close()
    run.close()
    assert contents(outside) == before
    assert (outside / "LOCK").read_text() == (outside / "train.log").read_text() == "mine"
    lost = capsys.readouterr().err
    for name in ("train.log", "metrics.jsonl", "samples"):
        assert f"part of {name} is lost" in lost


def test_a_checkpoint_that_cannot_be_deleted_does_not_end_training(tmp_path, monkeypatch):
    """As on NFS while another process reads its files."""
    lines, renamed = [], os.rename
    stored = Checkpoints(tmp_path, keep=1, every=1, log=lines.append)
    directory = tmp_path / "checkpoints"

    def refuse(path, target):
        if path == directory / "1":
            raise OSError(errno.EBUSY, "Device or resource busy")
        renamed(path, target)

    def save(step):
        state = TrainState(np.array(step), {"w": np.ones(3)}, {}, np.zeros(2))
        stored.start_save(state, {"best": {}})
        stored.wait()

    save(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        save(2)
    assert steps(tmp_path) == [1, 2] and "checkpoints/1 could not be deleted" in lines[-2]
    with monkeypatch.context() as patch:
        patch.setattr(temporaries.shutil, "rmtree", lambda *_, **__: None)
        save(3)
    assert steps(tmp_path) == [3] and lines[-1] == "saved step 3"
    assert sum("the next start deletes it" in line for line in lines) == 2
    stored.close()
    assert len(list(directory.iterdir())) > 1
    Checkpoints(tmp_path, keep=1, every=1, log=print).close()
    assert [path.name for path in directory.iterdir()] == ["3"]


def test_checkpoints_without_config_json_are_not_resumed(tmp_path):
    path = tmp_path / "run"
    shutil.copytree(stopped_run(), path)
    (path / "config.json").unlink()
    with pytest.raises(UserError, match="no config.json") as caught:
        train_cheaply(path, run_config())
    assert caught.value.code == CHECKPOINT
    assert steps(path) == steps(stopped_run())


@pytest.mark.slow
def test_a_run_resumes_with_a_lower_learning_rate(tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole_run(), path)
    changes = dict(learning_rate=1e-4, warmup_steps=5, num_steps=16)
    train_cheaply(path, run_config(**{f"training__{name}": x for name, x in changes.items()}))
    assert steps(path)[-1] == 16


def test_a_step_saved_at_an_interruption_is_kept_while_it_is_the_latest(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3, every=2, log=lambda line: None)
    for step, last in ((2, [2]), (4, [2, 4]), (5, [2, 4, 5]), (6, [2, 4, 6]), (8, [4, 6, 8])):
        (tmp_path / "checkpoints" / str(step)).mkdir()
        (tmp_path / "checkpoints" / str(step) / "MANIFEST.sha256").touch()
        assert checkpoints._last_steps() == last
    checkpoints.close()


def test_parameters_above_the_memory_of_the_host_are_not_allocated(tmp_path):
    shapes = {"table": jax.ShapeDtypeStruct((10**9, 10**6), np.float32)}
    with pytest.raises(UserError, match=r"needs 3,725,290.3 GiB of memory") as refused:
        check_fits_host(shapes, tmp_path)
    assert refused.value.code == CHECKPOINT and str(tmp_path) in str(refused.value)
    check_fits_host({"table": jax.ShapeDtypeStruct((7,), np.float32)}, tmp_path)


def test_a_run_directory_is_created_with_its_parents_and_never_overwritten(tmp_path):
    write_run(tmp_path / "new" / "run")
    with pytest.raises(UserError, match="holds a run already: expected a new directory") as error:
        write_run(tmp_path / "new" / "run", seed=1)
    assert error.value.code == OUTPUT

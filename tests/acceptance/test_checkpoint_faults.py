"""Rows 12–17: damaged checkpoints, failed saves and non-finite states."""

import contextlib
import os
import random
import resource
import shutil
import subprocess

import pytest

from seq2seq.storage.manifest import NAME, damage
from seq2seq.storage.run_files import steps
from tests.acceptance.processes import contents, ended, error_of, final_state, last_step, wait_for
from tests.support.event_files import tensorboard_points

row = pytest.mark.row
FLIP = row(
    12,
    "one bit flipped in each file of the newest step",
    "detected, named, quarantined as STEP.corrupt; resumed from the newest intact step",
)
LOSS = row(
    13,
    "each file deleted, halved, emptied; an empty 9/, foreign files, temporary files only",
    "as in row 12; other names ignored; no silent restart from scratch",
)
ALL = row(14, "every step damaged", "exit 4 with each step and reason; --overwrite restarts")
FULL = row(
    15,
    "disk full during a save",
    "the failed save reports needed and free bytes; earlier "
    "checkpoints intact, temporary files deleted; a later save succeeds, else exit 6 at the end; "
    "logs and TensorBoard lose entries and block nothing",
)
WORKDIR = row(
    16,
    "run directory unwritable, relative, without parents",
    "exit 6 before any device; relative paths become absolute, parents are created",
)
TEMPORARY = "11.0123456789ab.seq2seq-tmp"  # left by a save that was killed
NAN = row(17, "a state with NaN passed to save", "refused; latest and best unchanged")


@pytest.fixture
def run(whole, tmp_path):
    """A copy of the finished run, which the test damages."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def files_of(step):
    return [path for path in sorted(step.rglob("*")) if path.is_file()]


@FLIP
def test_every_flipped_bit_is_detected(run, record_property, request):
    newest, choose = run / "checkpoints" / "12", random.Random(0)
    files, flips = files_of(newest), 0
    assert not damage(newest) and len(files) > 20
    rounds = 1000 if request.config.option.soak else 6 * len(files)
    for number in range(rounds):
        file = files[number % len(files)]
        before = file.read_bytes()
        flip(file, choose.randrange(8 * len(before)))
        message = damage(newest)
        assert file.name in message or str(file.relative_to(newest)) in message, (file, message)
        file.write_bytes(before)
        flips += 1
    assert not damage(newest)
    record_property("seen", f"{flips} of {flips} flips in {len(files)} files detected")


@FLIP
def test_training_resumes_from_the_newest_intact_step(bench, run, whole, record_property):
    data = max(files_of(run / "checkpoints" / "12" / "params"), key=lambda p: p.stat().st_size)
    flip(data, 1234)
    code, lines = bench.train_here(run)
    warning = next(line for line in lines if line.startswith("warning: checkpoint 12"))
    assert code == 0 and data.name in warning, lines
    assert "renamed to 12.corrupt" in warning and last_step(lines, "resumed at step ") == 10
    assert final_state(run) == final_state(whole)
    record_property(
        "seen", "training: warned with the file, 12.corrupt, resumed at 10, then all equal"
    )


@FLIP
def test_decoding_refuses_a_damaged_checkpoint(bench, run, record_property):
    files = files_of(run / "checkpoints" / "12" / "params")
    flip(files[-1], 3)
    code, out, lines = bench.decode(run, "--checkpoint=12", devices=0)
    error = error_of(lines)
    assert code == 4 and out == "" and files[-1].name in error
    assert "intact checkpoints: 8, 10 (use --checkpoint=10)" in error
    flip(max(files_of(run / "average"), key=lambda path: path.stat().st_size), 77)
    code, out, lines = bench.decode(run, "--checkpoint=average", devices=0)
    assert code == 4 and "average is damaged" in error_of(lines)
    record_property("seen", "decoding: exit 4, names the file and the intact steps")


@LOSS
def test_every_missing_or_truncated_file_is_detected(run, record_property):
    newest, tried = run / "checkpoints" / "12", 0
    for file in files_of(newest):
        before = file.read_bytes()
        for content in (None, before[: len(before) // 2], b""):
            file.unlink() if content is None else file.write_bytes(content)
            assert file.name in damage(newest), (file, content)
            file.write_bytes(before)
            tried += 1
    assert not damage(newest)
    record_property("seen", f"{tried} of {tried} deletions and truncations detected")


@LOSS
def test_foreign_files_are_ignored_and_a_missing_manifest_is_detected(
    bench, run, whole, record_property
):
    directory = run / "checkpoints"
    (directory / "12" / NAME).unlink()
    (directory / "99").mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / "7").write_text("a file")
    (directory / "11.tmp").mkdir()
    (directory / TEMPORARY).mkdir()
    code, lines = bench.train_here(run)
    assert code == 0 and last_step(lines, "resumed at step ") == 10, lines
    assert any("checkpoint 12 is damaged: MANIFEST.sha256" in line for line in lines)
    assert final_state(run) == final_state(whole)
    assert (directory / "notes.txt").read_text() == "mine" and (directory / "11.tmp").is_dir()
    assert not (directory / TEMPORARY).exists()
    record_property("seen", "an empty 99/, foreign and temporary files: ignored, all equal")


@LOSS
def test_training_does_not_restart_silently_without_checkpoints(bench, run, record_property):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints" / TEMPORARY).mkdir(parents=True)
    code, lines = bench.train_here(run)
    assert code == 4 and "no checkpoint in" in error_of(lines), lines
    record_property("seen", "temporary files only: exit 4")


@ALL
def test_a_run_with_damaged_checkpoints_only_is_refused(bench, run, record_property):
    for step, file in ((8, "params/_METADATA"), (10, "data/metadata"), (12, NAME)):
        flip(run / "checkpoints" / str(step) / file, 9)
    before = contents(run)
    code, lines = bench.train_here(run)
    error = error_of(lines)
    assert code == 4 and "--overwrite" in error
    for part in ("12: MANIFEST.sha256", "10: data/metadata does not match", "8: params/_METADATA"):
        assert part in error
    assert contents(run) == before and not any(line.startswith("step ") for line in lines)
    code, lines = bench.train_here(run, "--overwrite", "--config.training.num_steps=2")
    assert code == 0 and steps(run) == [2], lines
    record_property(
        "seen",
        "exit 4: 12, 10 and 8, each with its file; nothing trained or changed; --overwrite exit 0",
    )


BIG = ["--config.model.d_model=64", "--config.model.d_ff=512", "--config.training.num_steps=100000"]


def check_failed_save(bench, run, fill, free, record_property, cause):
    """After fill(process) a save fails with a warning and leaves no files; after free(process) a
    later one succeeds."""
    process = bench.start(run, *BIG)
    try:
        lines = wait_for(process, "saved step ")
        forecast = next(line for line in lines if line.startswith("checkpoints: "))
        needed = forecast.split()[1]
        assert float(needed) > 1 and "3 kept" in forecast and "MB free" in forecast
        fill(process)
        lines = wait_for(process, "warning: ")
        assert f"could not be saved: it needs {needed} MB" in lines[-1], lines
        assert "training continues" in lines[-1]
        checkpoints = sorted((run / "checkpoints").iterdir())
        assert all(not damage(path) for path in checkpoints if path.name.isdigit())
        free(process)
        later = wait_for(process, "saved step ")
        assert last_step(later, "saved step ") > last_step(lines, "saved step ")
    finally:
        code, rest = ended(process, [], 15)
    assert code == 143, rest
    assert not [path for path in (run / "checkpoints").iterdir() if not path.name.isdigit()]
    assert not any("Traceback" in line for line in lines + rest)
    record_property(
        "seen",
        f"{cause}: “{lines[-1].split(': ', 2)[2].split('(')[0].strip()}”, "
        "saved once space was available",
    )


@FULL
def test_a_limit_on_the_size_of_files(bench, tmp_path, record_property):
    """A write beyond a limit on the file size fails, as on a full disk."""

    def limit(size):
        return lambda process: resource.prlimit(
            process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)
        )

    check_failed_save(
        bench,
        tmp_path / "run",
        limit(100_000),
        limit(resource.RLIM_INFINITY),
        record_property,
        "a limit on the file size",
    )


@FULL
def test_a_full_disk(bench, tmp_path, record_property):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk],
            capture_output=True,
            check=False,
        )
        if shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip("mounting is not allowed here")

    def fill(_):
        space = os.statvfs(disk)
        with contextlib.suppress(OSError):  # the next save may have taken some of the space already
            (disk / "ballast").write_bytes(bytes(space.f_bavail * space.f_bsize - 300_000))

    try:
        check_failed_save(
            bench,
            disk / "run",
            fill,
            lambda _: (disk / "ballast").unlink(),
            record_property,
            "a full tmpfs",
        )
    finally:
        subprocess.run(["umount", disk], check=True)


@FULL
def test_no_space_until_the_end(bench, tmp_path, record_property):
    flags = [
        *BIG,
        "--config.training.num_steps=60",
        "--config.training.checkpoint_every=20",
        "--config.training.eval_every=20",
    ]
    process = bench.start(tmp_path / "run", *flags, fault=("limit", "save", "2"))
    code, lines = ended(process, [])  # its stderr is a pipe, to which the limit does not apply
    assert code == 6 and "step 60/60" in "".join(lines) and "60 could not be saved" in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert last_step(lines, "saved step ") == 20
    for name in ("train.log", "metrics.jsonl", "tensorboard"):  # none of them stops or blocks it
        assert lines.count(f"warning: part of {name} is lost: File too large") >= 15, lines
    code, lines = bench.train_here(tmp_path / "run", *flags)
    assert code == 0 and last_step(lines, "resumed at step ") == 20, lines
    points = tensorboard_points(tmp_path / "run" / "tensorboard")["train_loss"]
    assert points.keys() >= set(range(21, 61)) and not any("damaged" in line for line in lines)
    record_property(
        "seen",
        "no space until the end: entries of logs and TensorBoard lost; exit 6, step 20 intact and "
        "resumed",
    )


@WORKDIR
@pytest.mark.parametrize("parent", ["/proc", "{d}/file", "{d}/file/deeper"])
def test_a_run_directory_that_cannot_be_created(bench, tmp_path, record_property, parent):
    (tmp_path / "file").write_text("in the way")
    path = f"{parent.format(d=tmp_path)}/run"
    code, lines = bench.train(path, devices=0)
    assert code == 6 and f"cannot write the run directory {path}" in error_of(lines)
    record_property("seen", "exit 6 before any device")


@WORKDIR
def test_a_relative_run_directory_without_parents(bench, tmp_path, record_property):
    code, lines = bench.train_here("a/b/run", "--config.training.num_steps=2", cwd=tmp_path)
    assert code == 0 and steps(tmp_path / "a" / "b" / "run") == [2], lines
    record_property("seen", "a/b/run is created and used")


@NAN
def test_nan_is_not_saved(bench, tmp_path, record_property):
    code, lines = bench.train(tmp_path / "run", fault=("spoil", "3"))
    error = error_of(lines)
    assert code == 5 and "step 6 is not saved: .params['target_embedding']['table'] has" in error
    assert steps(tmp_path / "run") == [2, 4]
    assert not any(damage(tmp_path / "run" / "checkpoints" / step) for step in ("2", "4"))
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["2", "4"]
    record_property("seen", f"exit 5: {error.split(';')[0]}; steps 2 and 4 unchanged")

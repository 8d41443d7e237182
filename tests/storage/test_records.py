"""A run with damaged records is resumed: damage is reported, and intact lines are kept."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from seq2seq.config.tree import load_config
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, DATA, OUTPUT, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.manifest import has_part
from seq2seq.storage.metrics import metrics_until
from seq2seq.storage.run_json import commit, read_facts
from seq2seq.storage.sizes import disk_forecast
from seq2seq.training.progress import with_profile
from tests.support.runs import run_config, shared_corpus, stopped_run, train_cheaply


def test_a_directory_without_a_readable_manifest_has_no_part(tmp_path):
    assert not has_part(tmp_path, "ema")
    (tmp_path / "MANIFEST.sha256").write_bytes(b"\xff  ema/x")
    assert not has_part(tmp_path, "ema")
    (tmp_path / "MANIFEST.sha256").write_text("0  ema/x\n")
    assert has_part(tmp_path, "ema") and not has_part(tmp_path, "params")


def test_absent_or_intact_facts_cause_no_warning(tmp_path):
    assert read_facts(tmp_path / "run.json") == ({}, "")
    (tmp_path / "run.json").write_text('{"seed": 3}')
    assert read_facts(tmp_path / "run.json") == ({"seed": 3}, "")


def resumed(path, spoil, **changes):
    """Resume a copy of the stopped run with a damaged file for one step; return the log."""
    shutil.copytree(stopped_run(), path)
    spoil(path)
    before = len((path / "train.log").read_text())
    with pytest.raises(Stopped):
        train_cheaply(path, run_config(**changes), stop_after=1)
    return (path / "train.log").read_text()[before:]


@pytest.mark.parametrize(
    "content",
    [
        b'{"command": ["tr',
        b"\xff\xfe",
        b"[]",
        b"",
        b'{"data": 3}',
        b'{"resumed": {}}',
        b"[" * 100_000,
    ],
    ids=lambda x: x[:9],
)
def test_a_damaged_run_json_is_quarantined(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    facts, warning = read_facts(tmp_path / "run.json")
    assert facts == {} and "run.json is damaged" in warning and "run.json.corrupt" in warning
    assert (tmp_path / "run.json.corrupt").read_bytes() == content
    assert read_facts(tmp_path / "run.json") == ({}, "")
    (tmp_path / "run.json").write_text('{"seed": 3}')
    assert read_facts(tmp_path / "run.json") == ({"seed": 3}, "")


def test_damaged_metrics_are_counted_and_the_other_lines_kept():
    lines = [json.dumps({"step": step, "train_loss": 1.5}).encode() for step in range(1, 6)]
    bad = [b'{"step": 3, "tr\xffain": 1}', b"\0\0\0", b"5", b'{"loss": 1}', b'{"step": [1]}', b"{"]
    content = b"\n".join([*lines[:2], *bad[:3], *lines[2:], *bad[3:]])
    last = dict.fromkeys(("train", "valid", "average"), 4)
    assert metrics_until(content, last) == (b"".join(line + b"\n" for line in lines[:4]), len(bad))


def test_metrics_are_kept_up_to_the_last_step_of_their_kind():
    kinds = {
        "train_loss": "train", "valid_loss": "valid", "train_dev/valid_loss": "valid",
        "average_loss": "average", "a/b/average_loss": "average",
    }  # fmt: skip
    last = {"train": 3, "valid": 2, "average": 1}
    lines = [
        (json.dumps({"step": step, name: 1}).encode(), step <= last[kind])
        for step in range(1, 5)
        for name, kind in kinds.items()
    ]
    kept, damaged = metrics_until(b"\n".join(line for line, _ in lines), last)
    assert kept.splitlines() == [line for line, is_kept in lines if is_kept] and damaged == 0


def test_a_run_with_damaged_records_is_resumed(tmp_path):
    def spoil(run):
        (run / "run.json").write_bytes((run / "run.json").read_bytes()[:40])
        metrics = (run / "metrics.jsonl").read_bytes()
        (run / "metrics.jsonl").write_bytes(metrics.replace(b"train_loss", b"train\xffloss", 1))
        (run / "best.json").write_bytes(b"\xff")

    best = read_best(stopped_run())
    log = resumed(tmp_path / "run", spoil)
    assert "resumed at step 4" in log
    for part in (
        "warning: run.json is damaged",
        "warning: metrics.jsonl: 1 damaged lines",
        "best.json is damaged",
    ):
        assert part in log, part
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3, 4, 4, 5]
    assert read_best(tmp_path / "run") == best
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["seed"] == 0
    assert (tmp_path / "run" / "run.json.corrupt").exists()


def test_changed_data_is_refused_even_without_run_json(tmp_path):
    corpus = shared_corpus().removeprefix("tsv:")
    before = open(corpus, "rb").read()
    try:
        with open(corpus, "ab") as file:
            file.write(b"eins\tEINS\n")
        with pytest.raises(UserError, match="pairs.tsv changed since") as refused:
            resumed(tmp_path / "run", lambda run: (run / "run.json").unlink())
        assert refused.value.code == DATA
        log = resumed(
            tmp_path / "again",
            lambda run: (run / "run.json").unlink(),
            training__allow_data_change=True,
        )
        assert "the training data has changed" in log
    finally:
        open(corpus, "wb").write(before)


@pytest.mark.parametrize("content", ["{", "[]", '{"checkpoint": [4]}', '{"checkpoint": {}}'])
def test_a_damaged_best_json_is_a_one_line_error(tmp_path, content):
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(UserError, match="best.json is damaged") as refused:
        read_best(tmp_path)
    assert refused.value.code == CHECKPOINT


@pytest.mark.parametrize("content", [b"\xff", b"3", b"{", b'{"model": 3}'])
def test_a_damaged_config_json_is_a_one_line_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match="config.json is damaged") as refused:
        load_config(tmp_path / "config.json")
    assert refused.value.code == CHECKPOINT


def test_only_the_first_process_writes_a_trace(monkeypatch, tmp_path):
    def step(state, batch):
        return state, batch

    assert with_profile(step, "1:2", tmp_path, 0) is not step
    monkeypatch.setattr(processes, "index", lambda: 1)
    assert with_profile(step, "1:2", tmp_path, 0) is step


def test_a_trace_is_not_written_through_a_link(tmp_path):
    (tmp_path / "profile").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(UserError, match="profile is a symbolic link") as refused:
        with_profile(lambda state, batch: (state, batch), "1:2", tmp_path / "profile", 0)
    assert refused.value.code == OUTPUT


def test_a_trace_that_cannot_be_written_is_lost_and_training_continues(tmp_path, capsys):
    (tmp_path / "plugins").touch()  # in place of the profiler's directory
    step = with_profile(lambda state, batch: (state, batch), "2:3", tmp_path, 0)
    assert [step(number, None) for number in range(5)] == [(number, None) for number in range(5)]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: part of profile is lost: ") and str(tmp_path) in warning


def test_the_commit_is_that_of_the_repository_that_tracks_the_file(tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.check_output(command, cwd=tmp_path, text=True).strip()

    git("init", "-q")
    for name in ("tracked.py", "installed.py"):
        (tmp_path / name).touch()
    git("add", "tracked.py")
    git("commit", "-qm", "One file")
    assert commit(tmp_path / "tracked.py") == git("rev-parse", "HEAD")
    assert commit(tmp_path / "installed.py") == ""


def test_free_space_is_that_of_the_disk_to_which_checkpoints_are_written(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "other", target_is_directory=True)
    free = {tmp_path / "other": 2e6, tmp_path / "run": 1e6}
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path.resolve()])
    )
    state = SimpleNamespace(params=np.zeros(1))
    monkeypatch.setattr("seq2seq.storage.sizes.num_bytes", lambda _: 1)
    assert disk_forecast(tmp_path / "run", state, 3)[0].endswith("2.0 MB free")
    assert disk_forecast(tmp_path / "run" / "new", state, 3)[0].endswith("1.0 MB free")

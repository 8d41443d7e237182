"""Operation of runs: dry run, trace, metrics after a kill, out of memory, checkpoints.py."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

import seq2seq.decode
import seq2seq.train
from seq2seq.config.training_config import TrainingConfig, profile_steps
from seq2seq.pretrained.models import load_params, open_model
from seq2seq.scripts import checkpoints
from seq2seq.storage import run_files
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.training import trainer
from seq2seq.training.memory_check import failed_allocation, out_of_memory_message
from seq2seq.training.step import TrainState
from tests.support.event_files import tensorboard_points
from tests.support.forked import call_forked
from tests.support.in_process import call_in_process
from tests.support.tiny import tiny_config, tiny_flags, write_corpus, write_run

ROOT = Path(__file__).parents[2]
TINY = [  # flags of a training with the programs of those in other tests
    *tiny_flags(),
    "--config.training.eval_every=8",
    "--config.training.checkpoint_every=4",
]
# A config file that kills its process at the next step after the checkpoint of step 4.
KILLED_CONFIG = """
import os
import signal
import sys

from seq2seq.config.tree import Config

def get_config():
    write, saved = sys.stderr.write, []
    def write_or_kill(text):
        saved.append(text.startswith("saved step 4"))
        if any(saved) and text.startswith("step "):
            os.kill(os.getpid(), signal.SIGKILL)
        return write(text)
    sys.stderr.write = write_or_kill
    return Config()
"""


def train(*flags, devices=True):
    """(exit code, stdout, lines of stderr) of train.py in this process."""
    return call_in_process(seq2seq.train, *flags, devices=devices)[:3]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with a corpus."""
    path = tmp_path_factory.mktemp("operations")
    write_corpus(path / "pairs.tsv", 113)
    return path


def training(directory, *flags, config=ROOT / "tests" / "support" / "tiny.py"):
    """The flags of a tiny training on the corpus in the directory."""
    corpus = f"--config.data.corpus=tsv:{directory / 'pairs.tsv'}"
    return [f"--config={config}", *TINY, corpus, *flags]


@pytest.fixture(scope="module")
def resumed(directory):
    """A run that was killed after its checkpoint of step 4 and resumed up to step 12."""
    flags = f"--workdir={directory / 'run'}", "--config.training.profile=2:3"
    killed = directory / "killed.py"
    killed.write_text(KILLED_CONFIG)
    # With the devices of this process, both use the same programs, which the first one compiles.
    command = [ROOT / "train.py", *training(directory, *flags, config=killed)]
    code, _, err, _ = call_forked(command, devices=jax.local_device_count())
    assert code == -signal.SIGKILL and any(line.startswith("saved step 4") for line in err), err
    code, _, err = train(*training(directory, *flags))
    assert code == 0, err
    assert any(line.startswith("resumed at step ") for line in err)
    return directory / "run"


def test_a_dry_run_logs_the_same_as_the_run_and_leaves_no_file(directory, resumed):
    before = sorted(directory.rglob("*"))
    workdir = directory / "new" / "run"
    code, out, err = train(*training(directory, f"--workdir={workdir}", "--dry_run"))
    assert (code, out) == (0, ""), err
    assert sorted(directory.rglob("*")) == before
    log = (resumed / "train.log").read_text().splitlines()
    for start in ("train: ", "vocabulary: ", "parameters: ", "devices: "):
        assert [x for x in err if x.startswith(start)][0] in log
    for part in (
        "checkpoints: ",
        "one batch: 128 target tokens",
        "memory of a step on each device",
        "one step: ",
        "nothing was kept",
    ):
        assert part in "\n".join(err), part


def test_a_dry_run_of_an_existing_run_makes_the_checks_of_a_resume(directory, resumed):
    flags = f"--workdir={resumed}", "--dry_run", "--config.model.d_ff=32"
    code, _, err = train(*training(directory, *flags), devices=False)
    assert code == 2 and f"{resumed} was trained with" in err[-1] and "d_ff 16 → 32" in err[-1]
    code, _, err = train(*training(directory, *flags[:2], "--config.training.keep=1000000000"))
    assert code == 6 and "lower training.keep" in err[-1]


def test_a_profiler_trace_is_written(resumed):
    (trace,) = (resumed / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000


@pytest.mark.parametrize("spec", ["3", "0:2", "4:3", "a:b", "1:2:3"])
def test_malformed_or_reversed_steps_of_a_trace_are_refused(spec):
    with pytest.raises(ValueError, match="FIRST:LAST"):
        profile_steps(spec)


@pytest.mark.parametrize(
    "field, value, rule",
    [
        ("profile", "9:99", "ends after training.num_steps=10"),  # it would never be written
        ("adam_epsilon", 0.0, "must be above 0"),  # 0 / 0 for a zero gradient
        ("seed", 2**32, "must be below 4294967296"),  # the initialisation would be that of seed 0
    ],
)
def test_impossible_settings_are_refused(field, value, rule):
    with pytest.raises(ValueError, match=f"training.{field}.* {rule}"):
        TrainingConfig(num_steps=10, **{field: value}).validate()


def test_metrics_are_continuous_after_a_kill(resumed):
    lines = map(json.loads, (resumed / "metrics.jsonl").read_text().splitlines())
    losses = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
    assert [step for step, _ in losses] == list(range(1, 13))
    points = tensorboard_points(resumed / "tensorboard")["train_loss"]
    assert points == {step: np.float32(loss) for step, loss in losses}


def test_a_run_records_its_commands_versions_and_hosts(resumed):
    facts = json.loads((resumed / "run.json").read_text())
    for start in (facts, *facts["resumed"]):
        assert start["command"][0].endswith("train.py") and start["host"] == os.uname().nodename
        assert len(start["commit"]) == 40 and start["seed"] == 0
        assert {"jax", "flax", "numpy"} <= start["versions"].keys()
    assert len(facts["resumed"]) == 1


def test_an_out_of_memory_error_gives_advice_and_logs_the_traceback(directory, monkeypatch):
    message = "RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes."
    step = mock.Mock(side_effect=jax.errors.JaxRuntimeError(message))
    step.lower = step
    monkeypatch.setattr(trainer, "parallel_train_step", lambda *_: step)
    code, _, err = train(*training(directory, f"--workdir={directory / 'short'}"))
    assert code == 2
    assert err[-1].startswith("error: out of memory, 4398046511104 bytes could not be allocated")
    for part in (
        "training.tokens_per_batch=128",
        "8 rows of 16 + 16 tokens",
        "config.training.accumulate=2",
        "lower training.tokens_per_batch",
    ):
        assert part in err[-1], part
    log = (directory / "short" / "train.log").read_text()
    assert "Traceback" in log and log.splitlines()[-1] == err[-1]
    assert not any("Traceback" in line for line in err)


@pytest.mark.parametrize(
    ("message", "amount"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes.",
            "4398046511104 bytes",
        ),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 31.47GiB.", "31.47GiB"),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.48G hbm.",
            "20.5G",
        ),
    ],
)
def test_the_amount_that_could_not_be_allocated_is_found(message, amount):
    advice = out_of_memory_message(failed_allocation(message), tiny_config("x"))
    assert f"out of memory, {amount} could not be allocated" in advice


def test_advice_omits_options_that_are_already_set():
    config = tiny_config("x")
    config.training.accumulate, config.training.loss_block, config.model.remat = 8, 4, True
    advice = out_of_memory_message("", config)
    assert "resume with config.training.model_parallel=2 (" in advice and "slower" not in advice
    config.training.model_parallel = 2  # the model has two heads
    advice = out_of_memory_message("", config)
    assert "resume with" not in advice and "start over with a lower" in advice


def test_a_run_that_has_only_an_average_is_listed(tmp_path):
    write_run(tmp_path / "run")  # as scripts/convert.py writes it
    code, out, err, _ = call_in_process(checkpoints, "list", f"--workdir={tmp_path / 'run'}")
    assert (code, err) == (0, []) and out.split()[0] == "average" and out.split()[-1] == "best"


def test_checkpoints_are_listed_verified_and_pruned(resumed, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(resumed, run)
    code, out, err, _ = call_in_process(checkpoints, "list", f"--workdir={run}")
    assert (code, err) == (0, [])
    assert [line.split()[0] for line in out.splitlines()] == ["4", "8", "12", "average"]
    assert out.splitlines()[2].endswith("latest")
    listed = out
    code, out, err, _ = call_in_process(checkpoints, "verify", f"--workdir={run}")
    assert (code, err) == (0, []) and out.count("intact") == 4
    (run / "best.json").write_text("{")
    code, out, err, _ = call_in_process(checkpoints, "list", f"--workdir={run}")
    assert (code, out) == (0, listed) and "best.json is damaged" in err[0]
    (run / "best.json").unlink()
    damaged = max((run / "checkpoints" / "8").rglob("*"), key=lambda p: p.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    code, out, err, _ = call_in_process(checkpoints, "verify", f"--workdir={run}")
    assert code == 4 and "1 of 4 checkpoints are damaged: 8" in err[0] and damaged.name in out
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (run / "checkpoints" / "3.corrupt").symlink_to(elsewhere)
    (run / "checkpoints" / "5.0123456789ab.seq2seq-tmp").mkdir()
    for name in ("5.tmp", "notes.corrupt"):  # of the user
        (run / "checkpoints" / name).mkdir()
    code, out, err, _ = call_in_process(checkpoints, "prune", f"--workdir={run}", "--keep=1")
    assert (code, err) == (0, [])
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["12", "5.tmp", "8", "notes.corrupt"]
    code, out, err, _ = call_in_process(checkpoints, "prune", f"--workdir={run}", "--keep=1")
    assert (code, out, err) == (0, "nothing to delete (intact checkpoints: 1, --keep=1)\n", [])
    assert (elsewhere / "deep").is_dir()

    def deleted(path):  # by a training, while the next one is read
        shutil.rmtree(path)
        return "no such file"

    with mock.patch.object(checkpoints, "damage", deleted):
        assert call_in_process(checkpoints, "verify", f"--workdir={run}")[:2] == (0, "")
    with mock.patch.object(checkpoints, "checkpoints", lambda run: [run / "checkpoints" / "9"]):
        assert call_in_process(checkpoints, "list", f"--workdir={run}")[:2] == (0, "")
    shutil.rmtree(run / "checkpoints")
    code, out, err, _ = call_in_process(checkpoints, "prune", f"--workdir={run}")
    assert (code, out.partition(",")[0], err) == (0, "nothing to delete (intact checkpoints: 0", [])


def test_chosen_steps_are_averaged_into_a_checkpoint_that_is_decoded(resumed, tmp_path):
    """decode.py writes the same as for a run whose parameters are the mean in NumPy."""
    run, expected = tmp_path / "run", tmp_path / "expected"
    shutil.copytree(resumed, run)
    average = partial(
        call_in_process, checkpoints, "average", f"--workdir={run}", "--output=mean-2"
    )
    done = average("--steps=4,12")
    assert (done.code, done.err) == (0, []) and "--checkpoint=mean-2" in done.out
    kept = [load_params(run, step) for step in ("4", "12")]
    mean = jax.tree.map(lambda *x: np.mean(x, axis=0, dtype=np.float64).astype(np.float32), *kept)
    assert jax.tree.map(np.array_equal, load_params(run, "mean-2"), mean) == jax.tree.map(
        lambda _: True, mean
    )
    expected.mkdir()
    run_files.write_run(expected, *open_model(run, "best"), mean)
    (tmp_path / "in").write_text("eins zwei drei\nelf\nvier vier fünf\n")
    translate = partial(call_in_process, seq2seq.decode, f"--input={tmp_path / 'in'}")
    flags = f"--workdir={run}", "--checkpoint=mean-2"
    translated = translate(*flags)
    assert translated.code == 0 and translated.out == translate(f"--workdir={expected}").out
    # It stays when steps are pruned, training is resumed and the steps of the run are listed.
    assert call_in_process(checkpoints, "prune", f"--workdir={run}", "--keep=1").code == 0
    out = call_in_process(checkpoints, "list", f"--workdir={run}").out
    assert [line.split()[0] for line in out.splitlines()] == ["12", "mean-2", "average"]
    corrupted = max((run / "checkpoints" / "mean-2").rglob("*"), key=lambda p: p.stat().st_size)
    corrupted.write_bytes(corrupted.read_bytes()[:-1] + b"\0")
    code, _, err, _ = call_in_process(seq2seq.decode, *flags, devices=False)
    assert code == 4 and "mean-2 is damaged" in err[0] and "--checkpoint=12" in err[0]
    done = average("--steps=12", "--overwrite")
    assert (done.code, done.err) == (0, []) and load_params(run, "mean-2")


def test_the_average_of_steps_with_a_moving_average_is_that_of_the_moving_averages(tmp_path):
    write_run(tmp_path / "run")
    stored = Checkpoints(tmp_path / "run", keep=2, every=1, log=print)
    for step, value in ((1, 3.0), (2, 5.0)):
        params, ema = ({"w": np.full(3, sign * value, np.float32)} for sign in (-1, 1))
        stored.start_save(TrainState(np.array(step), params, {}, np.zeros(2), ema), {"best": {}})
        stored.wait()
    stored.close()
    flags = f"--workdir={tmp_path / 'run'}", "--steps=1,2", "--output=tmp"
    assert call_in_process(checkpoints, "average", *flags).code == 0
    again = Checkpoints(tmp_path / "run", keep=2, every=1, log=print)  # deletes what saves left
    again.close()
    assert load_params(tmp_path / "run", "tmp")["w"].tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("flags", "code", "part"),
    [
        ("--steps=4,7,9 --output=a", 4, "no checkpoint 7, 9: expected some of 4, 8, 12"),
        ("--steps=4,average --output=a", 4, "no checkpoint average: expected some of 4, 8, 12"),
        ("--output=a", 2, "--steps must be different steps, as in --steps=1000,2000, got ''"),
        ("--steps=4,8,4 --output=a", 2, "--steps must be different steps"),
        ("--steps=4,8", 2, "--output must be a name of letters, digits, - and _"),
        ("--steps=4,8 --output=best", 2, "got 'best'"),
        ("--steps=4,8 --output=8", 2, "got '8'"),
        ("--steps=4,8 --output=../a", 2, "got '../a'"),
        ("--steps=4,8 --output=old", 6, "has a checkpoint old already; set --overwrite"),
    ],
    ids=str,
)
def test_wrong_flags_of_an_average_are_one_line(resumed, tmp_path, flags, code, part):
    run = tmp_path / "run"
    for step in ("4", "8", "12", "old"):
        (run / "checkpoints" / step).mkdir(parents=True)
        (run / "checkpoints" / step / "MANIFEST.sha256").touch()
    shutil.copy(resumed / "config.json", run)
    before = sorted(run.rglob("*"))
    done = call_in_process(checkpoints, "average", f"--workdir={run}", *flags.split())
    assert (done.code, done.out) == (code, "") and len(done.err) == 1, done
    assert part in done.err[0]
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--workdir=x"], 2, "expected one of list, verify, prune, average and --workdir"),
        (["lst", "--workdir=x"], 2, "got 'lst'"),
        (["list", "--workdir=nowhere"], 4, "not a run directory"),
        (["prune", "--keep=0"], 1, "keep"),
        (["prune", "--steps=4", "--workdir=x"], 2, "--steps has no effect on prune: expected it"),
        (["--workdir=x", "list", "--keep=2"], 2, "--keep has no effect on list: expected it with"),
        (["average", "list", "--workdir=x"], 1, "unexpected argument 'list'"),
    ],
    ids=str,
)
def test_a_wrong_command_is_one_line(arguments, code, part):
    done = call_in_process(checkpoints, *arguments)
    assert (done.code, done.out) == (code, "") and len(done.err) == 1 and part in done.err[0]

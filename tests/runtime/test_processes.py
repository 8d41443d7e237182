"""Several processes on this machine: the same results as one process, and a single writer.

Two devices can add in one order only, so two processes and one agree bit for bit. Four do not:
Gloo adds around a ring, XLA within a process in sequence, and float32 sums differ in the last bits.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seq2seq.cli.connection import check_process_flags
from seq2seq.files.remote import list_files
from seq2seq.pretrained.models import load_params
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.paths import working_copy
from seq2seq.storage.run_files import steps
from tests.support.object_storage import object_storage
from tests.support.runs import state_bytes
from tests.support.several import ROOT, Job, training, write_data
from tests.support.tiny import WORDS, write_run


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("hosts"))


def trained(path, processes, devices, name, *flags):
    job = training(path, processes, devices, path / name, *flags)
    assert job.codes() == [0] * processes, job.texts(1)
    return path / name, job


@pytest.fixture(scope="module")
def of_two(path):
    """A run of two processes with a device each."""
    return trained(path, 2, 1, "two", f"--config.data.valid=tsv:{path / 'valid.tsv'}")


@pytest.fixture(scope="module")
def of_one(path):
    """The same run in one process with two devices."""
    return trained(path, 1, 2, "one", f"--config.data.valid=tsv:{path / 'valid.tsv'}")


@pytest.fixture(scope="module")
def continued(path, of_one, tmp_path_factory):
    """The run of one process, continued by two, and their lines on stderr."""
    run = tmp_path_factory.mktemp("continued") / "one in two"
    shutil.copytree(of_one[0], run)
    return run, continue_run(path, run, 2, 1)


def continue_run(path, run, processes, devices):
    """Train two more steps; returns the lines of the first process on stderr."""
    more = f"--workdir={run}", "--config.training.num_steps=6"
    job = Job(path, processes, devices, ROOT / "train.py", *more)
    assert job.codes() == [0] * processes, job.texts(1)
    return job.texts(1)[0].splitlines()


def measured(run):
    """metrics.jsonl without times."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {k: v for k, v in line.items() if k not in ("time", "train_tokens_per_second")}
        for line in lines
    ]


@pytest.mark.slow
def test_two_processes_equal_one_with_two_devices_bit_for_bit(of_two, of_one):
    (two, job), (one, single) = of_two, of_one
    assert state_bytes(two) == state_bytes(one)
    assert measured(two) == measured(one)
    assert (two / "samples" / "4.txt").read_bytes() == (one / "samples" / "4.txt").read_bytes()
    results, second_output = job.texts(0)
    assert second_output == ""
    assert results.replace(str(two), str(one)) == single.texts(0)[0]
    assert "2 processes" in job.texts(1)[0] and "step 4/4" not in job.texts(1)[1]


@pytest.mark.slow
def test_four_devices_add_in_another_order_and_agree_to_1e_6(path):
    runs = [trained(path, *shape, "{} of {}".format(*shape))[0] for shape in ((1, 4), (2, 2))]
    for a, b in zip(*(jax.tree.leaves(load_params(run, "latest")) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_model_on_two_devices_is_trained_by_two_processes_as_by_one(path):
    """Two copies of the model, in a process each or both in one, which is stopped and continued by
    two: the sums are of two numbers, so all bits are equal."""
    flags = (
        "--config.training.optimizer=muon",
        "--config.training.model_parallel=2",
        f"--config.data.valid=tsv:{path / 'valid.tsv'}",
    )
    (one, _), (two, job) = (
        trained(path, processes, devices, f"copies {processes}", *flags)
        for processes, devices in ((1, 4), (2, 2))
    )
    assert state_bytes(two) == state_bytes(one)
    assert measured(two) == measured(one)
    assert job.texts(0)[1] == ""
    lines = [continue_run(path, run, *shape) for run, shape in ((one, (2, 2)), (two, (1, 4)))]
    assert all("resumed at step 4" in log for log in lines)
    assert state_bytes(two) == state_bytes(one)


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_resumes_in_one_and_the_reverse(
    path, of_two, of_one, continued, tmp_path
):
    """They get --workdir and one change, and agree on all other fields."""
    shutil.copytree(of_two[0], tmp_path / "two in one")
    run, log = continued
    for lines in (log, continue_run(path, tmp_path / "two in one", 1, 2)):
        assert "resumed at step 4" in lines
        assert [x for x in lines if "changed:" in x] == ["changed: training.num_steps 4 → 6"]
    assert steps(run)[-1] == 6
    assert state_bytes(tmp_path / "two in one") == state_bytes(run)
    assert state_bytes(run) != state_bytes(of_one[0])


@pytest.mark.slow
def test_two_processes_on_two_disks_share_a_run_in_object_storage(
    path, of_two, continued, tmp_path
):
    """Each has a working copy of its own; both are deleted before the run is continued."""
    valid = f"--config.data.valid=tsv:{path / 'valid.tsv'}"
    with object_storage("s3") as storage:
        url = f"{storage.url}/run"
        for disk, more in (("a", ()), ("b", ("--config.training.num_steps=6",))):
            flags = valid, f"--local_dir={tmp_path / disk}", *more
            job = training(path, 2, 1, url, *flags)
            assert job.codes() == [0, 0], job.texts(1)
            first = working_copy(url, str(tmp_path / disk))
            second = first.with_name(f"{first.name}-process-1")
            assert load_params(first, "average").keys() == load_params(second, "average").keys()
            assert state_bytes(first) == state_bytes(second)
            if disk == "a":
                assert state_bytes(first) == state_bytes(of_two[0])
        assert "resumed at step 4" in job.texts(1)[0]
        assert not list_files(f"{url}/LOCK")
    assert state_bytes(first) == state_bytes(continued[0])


@pytest.mark.slow
def test_four_processes_continue_a_run_of_one_with_the_same_batches_and_losses(path, tmp_path):
    """With dropout, whose keys depend on the row: only the order of sums differs."""
    full, run, dropout = tmp_path / "full", tmp_path / "run", "--config.model.dropout=0.3"
    job = training(path, 1, 1, full, dropout, num_steps=6)
    assert job.codes() == [0], job.texts(1)
    shutil.copytree(full, run)
    for name in ("checkpoints/4", "checkpoints/6", "average"):
        shutil.rmtree(run / name)
    job = training(path, 4, 1, run, dropout, num_steps=6)
    assert job.codes() == [0] * 4, job.texts(1)
    assert "resumed at step 2" in job.texts(1)[0]
    data = [state_bytes(directory)[1] for directory in (full, run)]
    assert data[0] == data[1]
    for a, b in zip(measured(full), measured(run), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


@pytest.mark.parametrize(
    "coordinator, num_processes, process_id, part",
    [
        ("a:1", None, None, "belong together"),
        ("", None, 1, "belong together"),
        ("a", 2, 1, "HOST:PORT"),
        ("a:1", 2, 2, "from 0 to"),
    ],
)
def test_incomplete_flags_are_refused(coordinator, num_processes, process_id, part):
    process_flags = SimpleNamespace(
        coordinator=coordinator, num_processes=num_processes, process_id=process_id
    )
    with pytest.raises(UserError, match=part) as refused:
        check_process_flags(process_flags)
    assert refused.value.code == CONFIGURATION


@pytest.mark.slow
def test_two_processes_translate_a_file_as_one_does(path, tmp_path):
    write_run(tmp_path / "run")
    lines = [" ".join(WORDS[i % 11 : i % 11 + 1 + i % 4]) for i in range(4100)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = (
        ROOT / "decode.py",
        f"--workdir={tmp_path / 'run'}",
        "--beam_size=1",
        "--max_extra_length=2",
        f"--input={tmp_path / 'in.txt'}",
        "--batch_size=64",
    )
    for processes in (1, 2):
        output = tmp_path / f"{processes}.txt"
        job = Job(path, processes, 1, *command, f"--output={output}")
        assert job.codes() == [0] * processes, job.texts(1)
        assert not Path(f"{output}.parts").exists()
    assert (tmp_path / "1.txt").read_bytes() == (tmp_path / "2.txt").read_bytes()
    assert [text.splitlines()[-1].split()[0] for text in job.texts(1)] == ["4096", "4"]

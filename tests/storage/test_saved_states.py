"""The states that `Checkpoints` keeps: their average, the best one, damaged and missing ones."""

import hashlib
from unittest import mock

import numpy as np
import pytest

from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.best_checkpoint import read_best, write_best
from seq2seq.storage.checkpoints import Checkpoints
from seq2seq.storage.manifest import FIRST, listed_files
from seq2seq.storage.newest_step import newest_intact_step
from seq2seq.storage.run_files import mean_params, steps
from seq2seq.training.step import TrainState


def state(step):
    """A state whose parameters are the number of its step."""
    params = {"w": np.full(3, step, np.float32)}
    return TrainState(np.array(step), params, {}, np.zeros(2, np.uint32))


@pytest.fixture
def saved(tmp_path):
    """Checkpoints with the steps 1, 2 and 3, and the lines of their log."""
    lines = []
    checkpoints = Checkpoints(tmp_path, keep=3, every=1, log=lines.append)
    for step in (1, 2, 3):
        checkpoints.start_save(state(step), {"best": {}})
        checkpoints.wait()
    yield checkpoints, lines
    checkpoints.close()


def test_the_mean_of_parameters_is_computed_in_float64():
    trees = [{"w": np.array([x], np.float32)} for x in (1e8, 1.0, -1e8)]
    assert mean_params(trees)["w"] == np.float32(1 / 3)


def test_a_damaged_checkpoint_is_not_averaged(saved, tmp_path):
    checkpoints, lines = saved
    files = filter(lambda path: path.is_file(), (tmp_path / "checkpoints/3/params").rglob("*"))
    file = max(files, key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    np.testing.assert_array_equal(checkpoints.average()["w"], 1.5)
    assert "not averaged" in lines[-1]


def test_an_average_that_does_not_exist_is_not_the_best(saved, tmp_path):
    write_best(tmp_path, {"checkpoint": "average"})
    saved[0].restore(state(0))
    assert read_best(tmp_path) == {}


def test_a_best_checkpoint_that_is_missing_is_reset(saved, tmp_path):
    checkpoints, lines = saved
    checkpoints.start_save(state(4), {"best": {"checkpoint": 9, "loss": 1.0}})
    checkpoints.wait()
    _, data = checkpoints.restore(state(0))
    assert data["best"] == {} == read_best(tmp_path) and "9, is missing" in lines[-1]


def test_a_checkpoint_that_cannot_be_read_is_read_again_before_it_is_given_up(saved, tmp_path):
    """The storage may be readable again; TensorStore reports its errors as ValueError."""
    checkpoints, _ = saved
    files = filter(lambda path: path.is_file(), (tmp_path / "checkpoints/3/params/d").rglob("*"))
    file = max(files, key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.unlink()
    message = "checkpoints/3 cannot be restored: .*; run the same command again; if it fails again,"
    with mock.patch("seq2seq.storage.newest_step.damage", return_value=""):  # read before
        with pytest.raises(UserError, match=message):
            checkpoints.restore(state(0))
    file.write_bytes(content)
    assert checkpoints.restore(state(0)) is not None


def test_a_run_whose_checkpoints_are_all_quarantined_does_not_start_again(tmp_path):
    (tmp_path / "checkpoints" / "4.corrupt").mkdir(parents=True)
    with pytest.raises(UserError, match="4.corrupt: quarantined earlier") as refused:
        newest_intact_step(tmp_path)
    assert refused.value.code == CHECKPOINT


def test_a_manifest_cannot_list_files_outside_its_directory():
    for name in ("../a", "a/../../b", "/a"):
        below = f"{'0' * 64}  {name}\n".encode()
        with pytest.raises(ValueError, match="outside its directory"):
            listed_files(FIRST.format(hashlib.sha256(below).hexdigest()).encode() + below)


def test_a_number_with_leading_zeros_is_no_step(tmp_path):
    for name in ("7", "07", "0"):
        (tmp_path / "checkpoints" / name / "params").mkdir(parents=True)
    assert steps(tmp_path) == [0, 7]

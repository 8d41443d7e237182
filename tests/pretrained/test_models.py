"""The registry of model families: which functions read a directory."""

import pytest

from seq2seq.pretrained import models
from seq2seq.pretrained.family import ModelFamily
from seq2seq.runtime.errors import CHECKPOINT, UserError

PARAMS = {"table": [1.0]}
TOY = ModelFamily(
    name="Toy",
    matches=lambda directory: (directory / "toy.json").exists(),
    params_path=lambda directory: directory / "toy.bin",
    open=lambda directory: ("config", ("source", "target")),
    load_params=lambda directory: PARAMS,
)


@pytest.mark.parametrize("checkpoint", ["best", "latest"])
def test_a_registered_family_reads_its_directories(tmp_path, monkeypatch, checkpoint):
    monkeypatch.setattr(models, "FAMILIES", (*models.FAMILIES, TOY))
    (tmp_path / "toy.json").touch()
    assert models.find_params(tmp_path, checkpoint) == tmp_path / "toy.bin"
    assert models.open_model(tmp_path, checkpoint) == ("config", ("source", "target"))
    assert models.load_params(tmp_path, checkpoint) is PARAMS
    (tmp_path / "checkpoints").mkdir()  # not of a run
    assert models.current_checkpoint(tmp_path, checkpoint) == checkpoint


def test_a_family_has_no_other_checkpoints_than_best_and_latest(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "FAMILIES", (TOY,))
    (tmp_path / "toy.json").touch()
    for read in (models.find_params, models.open_model, models.load_params):
        with pytest.raises(UserError, match="a Toy model, has no checkpoint 'average'") as caught:
            read(tmp_path, "average")
        assert caught.value.code == CHECKPOINT

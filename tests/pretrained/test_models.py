"""The registry of model families: which functions read a directory."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from seq2seq.pretrained import models
from seq2seq.pretrained.family import ModelFamily
from seq2seq.pretrained.transformers_family import TransformersFamily
from seq2seq.runtime.errors import CHECKPOINT, UserError

PARAMS = {"table": [1.0]}
TOY = ModelFamily(
    name="Toy",
    matches=lambda directory: (directory / "toy.json").exists(),
    params_path=lambda directory: directory / "toy.bin",
    open=lambda directory: ("config", ("source", "target")),
    load_params=lambda directory, placer: PARAMS,
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


def test_the_row_in_contributing_has_the_fields_of_a_row():
    text = Path("CONTRIBUTING.md").read_text(encoding="utf-8")
    (row,) = (code for code in text.split("```python\n") if code.startswith("# mymt.py"))
    (assignment,) = ast.parse(row.split("```")[0]).body
    assert assignment.value.func.id == TransformersFamily.__name__
    named = [keyword.arg for keyword in assignment.value.keywords]
    assert named == [field.name for field in fields(TransformersFamily)]

"""The code of docs/PYTHON.md runs in order, and trains and translates as the commands do."""

import copy
import json

import jax
import numpy as np
import pytest

from seq2seq import Translator
from seq2seq.storage.run_files import restore_params
from tests.support.documents import TEXTS, fenced
from tests.support.runs import run_training
from tests.support.tiny import tiny_config, write_corpus

BLOCKS = fenced(TEXTS["docs/PYTHON.md"], "python")


def write_text_files(path):
    """Write the corpora that the page reads."""
    for split, count, seed in (("train", 60, 0), ("valid", 13, 1)):
        write_corpus(path / f"{split}.tsv", count, seed)
        lines = (path / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        for side, language in enumerate(("de", "en")):
            text = "".join(line.split("\t")[side] + "\n" for line in lines)
            (path / f"{split}.{language}").write_text(text, encoding="utf-8")


def run_page(path, monkeypatch):
    """Execute the blocks of the page in one namespace; the config takes tiny sizes after the first
    block. Returns the namespace and a copy of that config."""
    write_text_files(path)
    monkeypatch.chdir(path)
    names = {}
    exec(BLOCKS[0], names)
    names["config"].validate()
    data = names["config"].data
    names["config"] = tiny_config(data.corpus, data.valid)
    names["config"].training.eval_sentences = 0
    config = copy.deepcopy(names["config"])
    for block in BLOCKS[1:]:
        exec(block, names)
    return names, config


@pytest.mark.slow
def test_the_page_trains_evaluates_and_translates_as_the_commands_do(tmp_path, monkeypatch):
    names, config = run_page(tmp_path, monkeypatch)
    run_training(tmp_path / "run", config)
    steps = config.training.num_steps
    trained = restore_params(tmp_path / "run", str(steps))
    jax.tree.map(np.testing.assert_array_equal, names["state"].params, trained)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    recorded = dict(item for line in lines if line["step"] == steps for item in line.items())
    assert names["loss"] == recorded["train_loss"]
    assert names["scores"] == {name: recorded[name] for name in names["scores"]}
    assert names["bleu"](names["texts"], names["held_out"].target).value == recorded["valid_bleu"]
    saved = Translator.load("runs/notebook")
    assert saved.translate(names["held_out"].source) == names["texts"]
    assert [len(nbest) for nbest in names["nbest"]] == [3, 3]

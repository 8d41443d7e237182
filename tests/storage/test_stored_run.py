"""A run that an earlier version wrote is decoded and resumed with the same results.

data/run_of_COMMIT.tar.xz holds a run of that commit that was stopped after step 300 of 312, its
corpus, and what that commit did with it: the token ids of translations of the validation data, and
the best checkpoint and the losses of the further steps. To add a run of another version, train a
small one there, stop it, copy its directory without tensorboard/, and record the same of its own
continuation. That of 7b8e221 has another order of the training data: it is decoded only.
"""

import json
import tarfile
from pathlib import Path
from unittest import mock

import pytest
from absl import flags

from seq2seq.config.flag import define_config, parsed_config
from seq2seq.decoding.translator import Translator
from seq2seq.pretrained.models import load_params
from seq2seq.runtime.errors import UserError
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.run_files import steps
from tests.support.runs import run_training

DATA = Path(__file__).parent / "data"


@pytest.fixture
def extract(tmp_path, monkeypatch):
    """A function of a commit: the current directory has its run; what it did with it."""
    monkeypatch.chdir(tmp_path)  # the config of the run names its corpus without a directory

    def extract(commit):
        with tarfile.open(DATA / f"run_of_{commit}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return json.loads(Path("expected.json").read_text())

    return extract


def resumed_config(run):
    """The config with which train.py --workdir=RUN resumes a run."""
    argv, values = ["train.py", f"--workdir={run}"], flags.FlagValues()
    flags.DEFINE_string("workdir", "", "", flag_values=values)
    define_config(argv, values)
    values(argv)
    return parsed_config(values)


TRANSLATORS = []  # the first one translates, with the parameters of the others


def token_ids(checkpoint):
    sources = [line.split("\t")[0] for line in Path("valid.tsv").read_text().splitlines()]
    TRANSLATORS.append(Translator.load("run", checkpoint))
    first, last = TRANSLATORS[0], TRANSLATORS[-1]
    assert (last.engine.models, last.decoding) == (first.engine.models, first.decoding)
    assert last.source_tokenizer.serialized() == first.source_tokenizer.serialized()
    first.use(load_params(Path("run"), checkpoint))
    return [list(translation.hypotheses[0].ids) for translation in first.stream(sources)]


def test_a_run_of_a_version_with_another_order_is_decoded_but_not_resumed(extract):
    expected = extract("7b8e221")
    assert token_ids("300") == expected["token_ids"]
    with pytest.raises(UserError, match="read the training data in another order"):
        run_training(Path("run").absolute(), resumed_config("run"))
    assert steps(Path("run")) == [300]


def test_a_run_of_an_earlier_version_is_decoded_and_resumed_with_the_same_results(extract):
    expected, run = extract("d0ee2a1"), Path("run").absolute()
    assert token_ids("300") == expected["token_ids"]
    with mock.patch("seq2seq.train.Translator", lambda *_, **__: TRANSLATORS[0]):
        run_training(run, resumed_config("run"))
    assert steps(run) == [300, 312] and read_best(run)["checkpoint"] == expected["best"]
    log = (run / "train.log").read_text()
    assert "resumed at step 300" in log and "warning" not in log and "changed" not in log
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = {str(e["step"]): e["train_loss"] for e in entries if "train_loss" in e}
    assert [int(step) for step in losses] == list(range(4, 313, 4))
    resumed = {step: losses[step] for step in expected["train_loss"]}
    assert resumed == pytest.approx(expected["train_loss"], rel=1e-4)  # of another processor
    assert token_ids("312") == expected["token_ids"]

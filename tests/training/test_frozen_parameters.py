"""Frozen parameters: patterns and fine-tuning; test_training_combinations.py computes updates."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from seq2seq.pretrained.models import load_params
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.training import optimizer
from seq2seq.training.dry_run import dry_run
from seq2seq.training.parameters import merge_params, parameter_shapes, split_params
from tests.support.runs import run_training, state_bytes
from tests.support.tiny import tiny_config, write_corpus, write_run

TREE = {
    "encoder": {"layers_0": {"query": 1, "bias": 2}, "norm": {"bias": 3}},
    "decoder": {"norm": {"bias": 4}},
    "target_embedding": {"table": 5},
}


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        ("", []),
        ("encoder/*", [1, 2, 3]),  # * matches / too
        ("encoder/norm/bias", [3]),
        ("*bias", [2, 3, 4]),
        ("encoder/*, *embedding*", [1, 2, 3, 5]),
        ("*/norm/*,encoder/norm/*", [3, 4]),
        ("*/layers_?/query", [1]),
    ],
)
def test_patterns_select_the_frozen_leaves_by_path(freeze, frozen):
    parts = split_params(TREE, freeze)
    assert [sorted(jax.tree.leaves(part)) for part in parts] == [
        sorted({1, 2, 3, 4, 5} - {*frozen}),
        frozen,
    ]
    assert merge_params(*parts) == TREE


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("encoder/layer_0/*", "'encoder/layer_0/.' matches no parameter.*such as encoder/layers_0"),
        ("encoder/*,*embeddings*", r"'\*embeddings\*' matches no parameter"),
        ("encoder", "'encoder' matches no parameter.* encoder/"),
        ("Encoder/*", "'Encoder/.' matches no parameter"),
        ("encoder/*,", "'' matches no parameter: .* decoder/.* or encoder/.* or target_embedding/"),
        ("*", "freezes all 5 parameters: expected at least one"),
        ("encoder/*,decoder/*,target*", "freezes all 5 parameters"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_one_line(freeze, message):
    with pytest.raises(UserError, match=f"training.freeze.*{message}") as refused:
        split_params(TREE, freeze)
    assert refused.value.code == CONFIGURATION and "\n" not in str(refused.value)


def test_the_shapes_of_parameters_need_no_vocabulary():
    config = tiny_config("").model
    sized = replace(config, source_vocab_size=23, target_vocab_size=23)
    shapes, expected = (flatten_dict(parameter_shapes(c)) for c in (config, sized))
    assert shapes.keys() == expected.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name, part", [("adafactor", "_attention/"), ("muon", "encoder/")])
def test_fine_tuning_keeps_frozen_parameters_and_resumes_bit_exactly(
    tmp_path, monkeypatch, name, part
):
    """With optimizers whose state depends on the shape of a parameter; Adafactor's is factored at
    these sizes.
    """
    monkeypatch.setattr(optimizer, "SMALLEST_FACTORED", 8)
    write_run(tmp_path / "start")
    config = tiny_config(
        write_corpus(tmp_path / "pairs.tsv", 40),
        training__num_steps=4,
        training__init_from=str(tmp_path / "start"),
        training__freeze=f"*{part}*",
        training__optimizer=name,
        training__learning_rate=0.1,
    )
    run_training(tmp_path / "whole", config)
    with pytest.raises(Stopped):
        run_training(tmp_path / "run", config, stop_after=3)
    run_training(tmp_path / "run", config)
    assert state_bytes(tmp_path / "run") == state_bytes(tmp_path / "whole")
    before, after = (
        flatten_dict(load_params(tmp_path / run, checkpoint), sep="/")
        for run, checkpoint in (("start", "best"), ("whole", "latest"))
    )
    frozen = {path for path in before if part in path}
    assert len(frozen) == 12  # four in each of three attentions, or all of the encoder layer
    for path, x in before.items():
        assert np.array_equal(x, after[path]) == (path in frozen), path
    count = sum(before[path].size for path in frozen)
    total = sum(x.size for x in before.values())
    log = (tmp_path / "run" / "train.log").read_text().splitlines()
    assert f"parameters: {total:,}, {count:,} frozen and {total - count:,} trained" in log


@pytest.mark.parametrize("start", ["a training", "a dry run", "overwriting"])
def test_a_wrong_pattern_is_refused_before_a_run_is_written_or_deleted(tmp_path, start):
    path, corpus = tmp_path / "run", write_corpus(tmp_path / "pairs.tsv", 29)
    config = tiny_config(corpus, training__freeze="encoder/layer_0/*")
    if start == "overwriting":
        write_run(path)
    with pytest.raises(UserError, match=r"training.freeze: .* such as encoder/layers_0/") as error:
        if start == "a dry run":
            dry_run(config, path, None, False, "off")
        else:
            run_training(path, config, overwrite=start == "overwriting")
    assert error.value.code == CONFIGURATION
    for name in ("config.json", "average"):
        assert (path / name).exists() == (start == "overwriting")

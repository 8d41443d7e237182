"""Frozen parameters: the patterns, and training against Adam with gradients zeroed by hand."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from runs import run_training, state_bytes
from small_steps import (
    D_MODEL,
    TRAINING,
    assert_close,
    batch,
    gradient_function,
    host_state,
    model,
    norm,
    spread_over,
)
from tiny import tiny_config, write_corpus, write_run

from seq2seq.interop.models import load_params
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.signals import Stopped
from seq2seq.training import optimizer
from seq2seq.training.dry_run import dry_run
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import split_rows
from seq2seq.training.parameters import merge_params, parameter_shapes, split_params
from seq2seq.training.step import init_state, make_train_step

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
    config = replace(model().config, source_vocab_size=0, target_vocab_size=0)
    found, expected = (flatten_dict(parameter_shapes(c)) for c in (config, model().config))
    assert found.keys() == expected.keys()


FROZEN = replace(TRAINING, freeze="encoder/*,*embedding*", weight_decay=0.1)


def zeroed(tree):
    """The tree with zeros for the frozen leaves of FROZEN."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: 0.0 * x if path[0].key in ("encoder", "target_embedding") else x, tree
    )


def two_steps_with_zeroed_gradients():
    """(parameters, moving average, norm of the second gradient) after two steps of an optimizer
    that neither sees the gradients of frozen leaves nor changes these leaves."""
    inner = make_optimizer(replace(FROZEN, freeze=""), D_MODEL)
    params = ema = host_state().params
    state, update = inner.init(params), jax.jit(inner.update)
    for n in range(2):
        _, gradient = gradient_function()(params)
        updates, state = update(zeroed(gradient), state, params, step=n)
        params = jax.tree.map(np.add, params, jax.device_get(zeroed(updates)))
        decay = min(FROZEN.ema_decay, (1 + n) / (10 + n))
        ema = jax.tree.map(lambda old, new, d=decay: d * old + (1 - d) * new, ema, params)
    return params, ema, norm(gradient)


def test_frozen_leaves_keep_their_bits_and_the_others_have_the_updates_of_zeroed_gradients():
    """Two steps on two devices with two micro-batches. Clipping is active, so the gradients of
    frozen parameters would change its factor."""
    optimizer = make_optimizer(FROZEN, D_MODEL)
    step = spread_over(make_train_step(model(), optimizer, FROZEN), 2)
    first = last = jax.device_get(init_state(model(), optimizer, FROZEN))
    for _ in range(2):
        last, metrics = jax.device_get(step(last, split_rows(batch(), 2, 2)))
    params, ema, whole_norm = two_steps_with_zeroed_gradients()
    assert_close((last.params, last.ema), (params, ema), 1e-6)
    for tree in (last.params, last.ema):
        trained, frozen = split_params(tree, FROZEN.freeze)
        before = split_params(first.params, FROZEN.freeze)
        assert set(frozen) == {"encoder", "target_embedding"}
        for old, new in zip(*map(jax.tree.leaves, (before[1], frozen)), strict=True):
            assert old.tobytes() == new.tobytes()
        for old, new in zip(*map(jax.tree.leaves, (before[0], trained)), strict=True):
            assert np.abs(old - new).max() > 1e-4
    assert FROZEN.clip_norm < metrics["gradient_norm"] < 0.99 * whole_norm
    trained, _ = split_params(first.params, FROZEN.freeze)
    size = sum(x.size for x in jax.tree.leaves(trained))
    assert sum(x.size for x in jax.tree.leaves(last.optimizer)) == 2 * size + 2  # and two counts


@pytest.mark.slow
def test_fine_tuning_keeps_frozen_parameters_and_resumes_bit_exactly(tmp_path, monkeypatch):
    """With Adafactor, whose state is factored at these sizes and of the trained part only."""
    monkeypatch.setattr(optimizer, "SMALLEST_FACTORED", 8)
    write_run(tmp_path / "start")
    config = tiny_config(
        write_corpus(tmp_path / "pairs.tsv", 40),
        training__num_steps=4,
        training__init_from=str(tmp_path / "start"),
        training__freeze="*_attention/*",
        training__optimizer="adafactor",
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
    frozen = {path for path in before if "_attention/" in path}
    assert len(frozen) == 12  # query, key, value, output of three attentions
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

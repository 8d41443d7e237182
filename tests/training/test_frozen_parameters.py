"""Frozen parameters: the patterns, and training against Adam with gradients zeroed by hand."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from runs import run_training, state_bytes
from test_step import TRAINING, assert_close, batch, model, spread_over
from tiny import tiny_config, write_corpus, write_run

from interop.models import load_params
from runtime.errors import CONFIGURATION, UserError
from runtime.signals import Stopped
from training import optimizer
from training.dry_run import dry_run
from training.optimizer import make_optimizer
from training.parameters import merge_params, parameter_shapes, split_params
from training.step import init_state, make_train_step, split_rows

assert batch  # a fixture
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


FROZEN = replace(TRAINING, freeze="encoder/*,*embedding*", weight_decay=0.1, ema_decay=0.3)


def zeroed(tree):
    """The tree with zeros for the frozen leaves of FROZEN."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: 0.0 * x if path[0].key in ("encoder", "target_embedding") else x, tree
    )


def with_zeroed_gradients(inner):
    """An optimizer that neither sees the gradients of frozen leaves nor changes these leaves."""

    def update(gradients, state, params, **step):
        updates, state = inner.update(zeroed(gradients), state, params, **step)
        return zeroed(updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def two_steps(batch, training, make=lambda inner: inner):
    """(states before and after, metrics) of two steps on two devices with two micro-batches."""
    made = make(make_optimizer(training, 8))
    step = spread_over(make_train_step(model(), made, training), 2)
    first = state = jax.device_get(init_state(model(), made, training))
    for _ in range(2):
        state, metrics = step(state, split_rows(batch, 2, 2))
        state = jax.device_get(state)
    return first, state, jax.device_get(metrics)


def test_frozen_leaves_keep_their_bits_and_the_others_have_the_updates_of_zeroed_gradients(batch):
    """Clipping is active, so the gradients of frozen parameters would change its factor."""
    first, last, metrics = two_steps(batch, FROZEN)
    everything = replace(FROZEN, freeze="")
    _, expected, others = two_steps(batch, everything, with_zeroed_gradients)
    assert_close((last.params, last.ema), (expected.params, expected.ema), 1e-6)
    for tree in (last.params, last.ema):
        trained, frozen = split_params(tree, FROZEN.freeze)
        before = split_params(first.params, FROZEN.freeze)
        assert set(frozen) == {"encoder", "target_embedding"}
        for old, new in zip(*map(jax.tree.leaves, (before[1], frozen)), strict=True):
            assert old.tobytes() == new.tobytes()
        for old, new in zip(*map(jax.tree.leaves, (before[0], trained)), strict=True):
            assert np.abs(old - new).max() > 1e-4
    assert FROZEN.clip_norm < metrics["gradient_norm"] < 0.99 * others["gradient_norm"]
    trained, _ = split_params(first.params, FROZEN.freeze)
    size = sum(x.size for x in jax.tree.leaves(trained))
    assert sum(x.size for x in jax.tree.leaves(last.optimizer)) == 2 * size + 2  # and two counts


@pytest.mark.slow
def test_fine_tuning_keeps_frozen_parameters_and_resumes_bit_exactly(tmp_path, monkeypatch):
    """With Adafactor, whose state is factored at these sizes and of the trained part only."""
    monkeypatch.setattr(optimizer, "SMALLEST_FACTORED", 8)
    write_run(tmp_path / "start")
    config = tiny_config(write_corpus(tmp_path / "pairs.tsv", 40))
    config.training = replace(
        config.training,
        num_steps=4,
        init_from=str(tmp_path / "start"),
        freeze="*_attention/*",
        optimizer="adafactor",
        learning_rate=0.1,
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
    path, config = tmp_path / "run", tiny_config(write_corpus(tmp_path / "pairs.tsv", 29))
    config.training.freeze = "encoder/layer_0/*"
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

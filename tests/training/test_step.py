"""The training step: any number of devices and micro-batches gives the same update; it learns."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seq2seq.config.data_config import DataConfig
from seq2seq.config.tree import Config, TrainingConfig
from seq2seq.data.tokens.pairs import Pairs, ragged
from seq2seq.model import platforms
from seq2seq.model.encoder_decoder import PairPositions
from seq2seq.model.mesh import replicated
from seq2seq.training.evaluate import held_out_loss
from seq2seq.training.loss import LossSums, cross_entropy
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import split_rows
from seq2seq.training.step import init_state, loss_sums, make_train_step
from tests.support.models.bag_of_words import BagOfWords
from tests.training.small_steps import (
    D_MODEL,
    ROWS,
    TRAINING,
    S,
    T,
    V,
    assert_close,
    batch,
    gradient_function,
    host_state,
    model,
    norm,
    one_step,
    spread_over,
    step_on,
)

MICRO = 3


def test_the_update_is_independent_of_devices_and_micro_batches():
    """Four devices with three micro-batches of two rows each; the last device has padding only."""
    assert jax.device_count() == 4 and ROWS < 3 * MICRO * 2
    states = {1: host_state(), 4: host_state()}
    for _ in range(2):
        results = [one_step(states[n], batch(), n, micro) for n, micro in ((1, 1), (4, MICRO))]
        assert_close(results[1], results[0])
        states = dict(zip(states, (state for state, _ in results), strict=True))


def test_a_batch_of_padding_changes_no_parameter():
    rows = batch()
    empty = rows._replace(
        source_segments=0 * rows.source_segments, target_segments=0 * rows.target_segments
    )
    state, metrics = one_step(host_state(), empty)
    for before, after in zip(
        jax.tree.leaves(host_state().params), jax.tree.leaves(state.params), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    assert metrics["loss"] == 0 and metrics["gradient_norm"] == 0


def test_a_schedule_ends_at_num_steps_even_if_steps_were_skipped():
    """The learning rate of the last step is 0, so that it changes no parameter."""
    start = host_state()
    start = start._replace(step=np.asarray(TRAINING.num_steps - 3, start.step.dtype))
    first, _ = one_step(start, batch())
    broken = first._replace(params=jax.tree.map(lambda x: np.nan * x, first.params))
    skipped, metrics = one_step(broken, batch())
    assert not np.isfinite(metrics["loss"])
    last, _ = one_step(skipped._replace(params=first.params), batch())
    for before, after in zip(*(jax.tree.leaves(x.params) for x in (first, last)), strict=True):
        np.testing.assert_array_equal(before, after)
    changes = jax.tree.map(lambda x, y: np.abs(x - y).max(), start.params, first.params)
    assert max(jax.tree.leaves(changes)) > 0
    assert [int(state.step) for state in (first, skipped, last)] == [98, 99, 100]
    adam = last.optimizer[1][0]
    assert int(adam.count) == 2  # applied updates


@pytest.mark.parametrize("in_branch", [True, False])
def test_any_optimizer_is_applied_only_if_both_loss_and_gradient_are_finite(monkeypatch, in_branch):
    """Gradient descent with a rate of 1 and momentum, whose first update is the gradient of the
    mean loss. The first label of the batch selects what is not finite."""

    def spoilt(model, params, micro, *rest):
        sums = loss_sums(model, params, micro, *rest)
        case = micro.labels[0, 0]
        zero = 0.0 * jax.tree.leaves(params)[0].sum()
        # sqrt(0) is finite but its gradient is not; the gradient of a constant is 0.
        root = jnp.sqrt(jnp.where(case == 2, zero, 1.0))
        return sums._replace(loss=sums.loss + jnp.where(case == 1, jnp.inf, root))

    monkeypatch.setattr("seq2seq.training.step.loss_sums", spoilt)
    monkeypatch.setattr(platforms, "CPU", platforms.CPU._replace(update_in_branch=in_branch))
    descent = optax.chain(optax.trace(0.5), optax.scale(-1.0))
    step = spread_over(make_train_step(model(), descent, TRAINING), 1)
    before = host_state()._replace(optimizer=jax.device_get(descent.init(host_state().params)))

    def stepped(case):
        labels = batch().labels.copy()
        labels[0, 0] = case
        rows = split_rows(batch()._replace(labels=labels), 1, 1)
        state, metrics = jax.device_get(step(before, rows))
        assert state.step == before.step + 1
        return state, metrics

    state, metrics = stepped(batch().labels[0, 0])
    _, gradient = gradient_function()(before.params)
    assert_close(state.params, jax.tree.map(np.subtract, before.params, gradient))
    np.testing.assert_allclose(metrics["gradient_norm"], norm(gradient), rtol=1e-5)
    for case, are_finite in ((1, (False, True)), (2, (True, False))):
        state, metrics = stepped(case)
        assert (np.isfinite(metrics["loss"]), np.isfinite(metrics["gradient_norm"])) == are_finite
        for old, new in zip(
            jax.tree.leaves((before.params, before.optimizer, before.ema)),
            jax.tree.leaves((state.params, state.optimizer, state.ema)),
            strict=True,
        ):
            np.testing.assert_array_equal(old, new)


def test_given_parameters_replace_the_random_ones(monkeypatch):
    """They become those of the state without a second copy on the devices. The moving average
    starts as a copy of them, because a step donates both."""
    random = host_state()
    monkeypatch.setattr("seq2seq.training.step.init_params", None)  # fails if it is called
    params = jax.tree.map(lambda x: x + 1, random.params)
    placed = jax.device_put(params, replicated())
    state = init_state(model(), make_optimizer(TRAINING, D_MODEL), TRAINING, placed)
    assert all(x.is_deleted() for x in jax.tree.leaves(placed))
    assert not any(x.weak_type for x in jax.tree.leaves(state))  # as those of a checkpoint
    expected = random._replace(params=params, ema=params)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), expected)
    spread = split_rows(batch(), jax.device_count(), MICRO)
    _, metrics = step_on(jax.device_count())(state, spread)
    assert np.isfinite(metrics["loss"]) and jax.tree.leaves(state.ema)[0].is_deleted()


def test_the_step_learns_and_donates():
    """pmap_train_step on all devices: the state stays on them, and the loss decreases."""
    state = jax.device_put(host_state(), replicated())
    spread = split_rows(batch(), jax.device_count(), MICRO)
    losses = []
    for _ in range(40):
        old = state
        state, metrics = step_on(jax.device_count())(state, spread)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    assert int(state.step) == 40
    assert jax.tree.leaves(old.params)[0].is_deleted()


def test_split_rows_pads_with_rows_that_add_nothing():
    split = split_rows(batch(), 3, 3)
    assert split.source.shape == (3, 3, 2, S)
    flat = split.target_segments.reshape(-1, T)
    np.testing.assert_array_equal(flat[:ROWS], batch().target_segments)
    assert (flat[ROWS:] == 0).all() and len(flat) == 18
    assert jnp.asarray(split.row_ids).reshape(-1)[:ROWS].tolist() == list(range(ROWS))


def test_the_moving_average_follows_its_formula():
    state = host_state()
    expected = state.params
    for n in range(4):
        state, _ = one_step(state, batch())
        decay = min(0.3, (1 + n) / (10 + n))
        expected = jax.tree.map(
            lambda old, new, decay=decay: decay * old + (1 - decay) * new, expected, state.params
        )
    assert_close(state.ema, expected, 1e-6)
    assert_close(state.eval_params, state.ema, 0)


@pytest.mark.parametrize("micro", [1, 3])
def test_an_evaluation_uses_at_most_the_rows_of_a_micro_batch(micro):
    random = np.random.default_rng(1)
    ids = ragged([random.integers(4, V, n).tolist() for n in random.integers(1, T, 60)])
    config = Config(
        data=DataConfig(source_length=T, target_length=T),
        training=TrainingConfig(tokens_per_batch=T * ROWS, accumulate=micro),
    )
    seen = []

    def eval_step(params, rows):
        seen.append(rows.labels.shape[0] * rows.labels.shape[1])
        real = rows.target_segments > 0
        return LossSums((rows.labels * real).sum(), 2.0 * real.sum(), real.sum() / 4, real.sum())

    metrics = held_out_loss(eval_step, None, Pairs(ids, ids), config)
    parts = micro * jax.local_device_count()
    assert max(seen) <= -(-ROWS // parts) * jax.local_device_count()
    tokens = len(ids.ids) + 60  # one end token per pair
    assert metrics["valid_loss"] == pytest.approx((ids.ids.sum() + 60 * 2) / tokens)
    assert metrics["valid_nll"] == 2.0 and metrics["valid_accuracy"] == 0.25


def test_an_evaluation_in_bfloat16_has_float32_logits():
    """Those of a training are rounded, so that more of them are equal."""
    narrow = BagOfWords(replace(model().config, dtype="bfloat16"))
    names = "source decoder_input source_segments target_segments".split()

    @jax.jit
    def run(params, inputs):
        evaluated, trained = (
            loss_sums(narrow, params, inputs, TRAINING, key) for key in (None, jax.random.key(0))
        )
        positions = PairPositions(inputs.source_positions, inputs.target_positions)
        arguments = *(getattr(inputs, name) for name in names), positions
        logits = narrow.apply({"params": params}, *arguments)
        weights = (inputs.target_segments > 0).astype(jnp.float32)
        expected = cross_entropy(logits, inputs.labels, weights, TRAINING.label_smoothing)
        return evaluated, trained, expected

    evaluated, trained, expected = jax.device_get(run(host_state().params, batch()))
    assert_close(evaluated, expected, 1e-6)
    assert abs(trained.nll - expected.nll) > 1e-4

"""Models that several devices share: the training step and its evaluation against one device."""

from functools import cache

import jax
import numpy as np
import pytest

from seq2seq.config.tree import TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.model.config import ModelConfig
from seq2seq.model.kinds import make_model
from seq2seq.model.mesh import by_copy, bytes_on_device, mesh_of, placements, shardings
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import make_eval_step, sharded_step, split_rows
from seq2seq.training.step import init_state, make_train_step, state_shapes

ROWS, S, T, V, STEPS = 8, 7, 9, 28, 3
SIZES = dict(
    num_layers=1, d_model=16, num_heads=4, d_ff=32, source_vocab_size=V, target_vocab_size=V,
    dropout=0.2, attention_dropout=0.1, max_length=16,
)  # fmt: skip
T5 = dict(
    positions="relative", norm="pre", norm_function="rms", attention_bias=False,
    feed_forward_bias=False, gated_feed_forward=True, tied_embeddings="inputs",
    scale_scores=False,
)  # fmt: skip
BART = dict(positions="learned", activation="gelu", embedding_norm=True, output_bias=True)
# Each has an option of training that changes the state or the step.
CASES = {
    "adafactor T5": ("adafactor", T5, dict(accumulate=2)),
    "adam BART": ("adam", BART, dict(ema_decay=0.9, r_drop=0.5)),
    "muon": ("muon", {}, dict(freeze="*embedding*", weight_decay=0.1)),
}


@cache
def batch():
    random = np.random.default_rng(0)
    ids = lambda length: random.integers(4, V, (ROWS, length)).astype(np.int32)  # noqa: E731
    segments = lambda length: (  # noqa: E731
        np.arange(length) < random.integers(2, length + 1, (ROWS, 1))
    ).astype(np.int32)
    column = lambda length: np.tile(np.arange(length, dtype=np.int32), (ROWS, 1))  # noqa: E731
    return Batch(
        ids(S), segments(S), column(S), ids(T), ids(T), segments(T), column(T),
        np.arange(ROWS, dtype=np.int32),
    )  # fmt: skip


@cache
def trained(case, devices, copies):
    """(losses of the steps, loss of an evaluation, state on the host and on the devices)."""
    optimizer_name, fields, options = CASES[case]
    training = TrainingConfig(
        optimizer=optimizer_name, schedule="constant", learning_rate=1e-2, warmup_steps=1,
        model_parallel=devices, **options,
    )  # fmt: skip
    config = ModelConfig(**SIZES | fields)
    model, optimizer = make_model(config), make_optimizer(training, config.d_model, "float32")
    mesh = mesh_of(jax.devices()[: devices * copies], devices)
    state = jax.device_get(init_state(model, optimizer, training))
    state = jax.device_put(state, shardings(state, mesh))
    step = sharded_step(make_train_step(model, optimizer, training), mesh, donate_argnums=0)
    rows = split_rows(batch(), copies, training.accumulate)
    rows, losses = jax.device_put(rows, by_copy(mesh)), []
    for _ in range(STEPS):
        state, metrics = step(state, rows)
        losses.append(float(metrics["loss"]))
    evaluate = sharded_step(make_eval_step(model, training), mesh)
    rows = jax.device_put(split_rows(batch(), copies), by_copy(mesh))
    sums = evaluate(state.eval_params, rows)
    return losses, float(sums.loss / sums.tokens), jax.device_get(state), state


@pytest.mark.parametrize(
    ("case", "devices", "copies"),
    [
        ("adafactor T5", 2, 2),
        pytest.param("adam BART", 2, 2, marks=pytest.mark.slow),
        pytest.param("adam BART", 2, 1, marks=pytest.mark.slow),
        pytest.param("adam BART", 4, 1, marks=pytest.mark.slow),
        pytest.param("muon", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_devices_that_share_a_model_train_it_as_one_device_does(case, devices, copies):
    losses, evaluated, state, on_devices = trained(case, devices, copies)
    expected_losses, expected_evaluated, expected, _ = trained(case, 1, 1)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    np.testing.assert_allclose(evaluated, expected_evaluated, rtol=2e-6)
    assert losses[-1] < losses[0]
    jax.tree.map(
        # Adam divides small gradients by their size, so that their rounding grows.
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-3 * 1e-2 * STEPS),
        state.params, expected.params,
    )  # fmt: skip
    # The new state lies where the old one did, and a device has its part of the arrays.
    placed = shardings(state, mesh_of(jax.devices()[: devices * copies], devices))
    for x, sharding in zip(*map(jax.tree.leaves, (on_devices, placed)), strict=True):
        assert x.sharding.is_equivalent_to(sharding, x.ndim)
    stored = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(on_devices))
    assert stored == bytes_on_device(state, devices)
    whole = sum(x.nbytes for x in jax.tree.leaves(state))
    assert stored < (0.5 / devices + 0.5) * whole


def test_all_large_arrays_of_a_state_are_divided():
    """Those of optimizers too, except the factored moments of Adafactor."""
    config = ModelConfig(**SIZES | dict(d_model=512, d_ff=2048, num_heads=8, max_length=512))
    for optimizer_name in ("adam", "adafactor", "muon"):
        training = TrainingConfig(optimizer=optimizer_name, ema_decay=0.9, model_parallel=4)
        optimizer = make_optimizer(training, config.d_model, "float32")
        shapes = state_shapes(make_model(config), optimizer, training)
        specs = jax.tree.leaves(placements(shapes, 4))
        for (path, x), spec in zip(jax.tree.leaves_with_path(shapes), specs, strict=True):
            assert x.size < 10_000 or "model" in spec, jax.tree_util.keystr(path)
    # A vocabulary that is no multiple: its columns are divided.
    odd = ModelConfig(**SIZES | dict(source_vocab_size=29, target_vocab_size=29))
    shapes = state_shapes(make_model(odd), optimizer, training)
    table = placements(shapes, 4).params["target_embedding"]["table"]
    assert table == jax.sharding.PartitionSpec(None, "model")

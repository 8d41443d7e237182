"""The schedules against their formulas, and AdamW against plain NumPy."""

from dataclasses import fields
from functools import partial

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from seq2seq.config.tree import TrainingConfig
from seq2seq.model.config import ModelConfig
from seq2seq.model.transformer import Transformer
from seq2seq.training import gradient_norm
from seq2seq.training.optimizer import SCALINGS, learning_rate_schedule, make_optimizer
from seq2seq.training.parameters import parameter_shapes
from seq2seq.training.step import init_state


def rates_of(config, d_model, steps):
    """The learning rates of some steps."""
    return np.asarray(jax.jit(learning_rate_schedule(config, d_model))(np.array(steps)))


def test_the_paper_schedule_is_equation_3():
    n = np.array([1, 17, 3999, 4000, 4001, 100_000])  # the paper counts updates from 1
    rates = rates_of(TrainingConfig(warmup_steps=4000, learning_rate=1.0), 512, n - 1)
    np.testing.assert_allclose(rates, 512**-0.5 * np.minimum(n**-0.5, n * 4000**-1.5), rtol=1e-5)


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_other_schedules_warm_up_to_the_peak_and_end_at_their_final_rate(name):
    config = TrainingConfig(schedule=name, learning_rate=0.3, warmup_steps=10, num_steps=110)
    *rates, half, last = rates_of(config, 64, [0, 4, 9, 59, 109])
    np.testing.assert_allclose(rates, [0.03, 0.15, 0.3], rtol=1e-5)
    middle = {"cosine": 0.15, "linear": 0.15, "constant": 0.3}[name]
    np.testing.assert_allclose(half, middle, rtol=1e-4)
    np.testing.assert_allclose(last, 0.3 if name == "constant" else 0.0, atol=1e-7)


def test_the_inverse_square_root_has_its_peak_at_the_end_of_the_warm_up():
    config = TrainingConfig(schedule="inverse_sqrt", learning_rate=7e-4, warmup_steps=400)
    n = np.array([1, 17, 399, 400, 401, 100_000, 1600])  # update n is that of step n − 1
    rates = rates_of(config, 64, n - 1)
    expected = 7e-4 * np.where(n <= 400, n / 400, np.sqrt(400 / n))
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    np.testing.assert_allclose(rates[-1], 3.5e-4, rtol=1e-5)  # four times as late: half


def test_the_paper_schedule_is_the_inverse_square_root_with_the_peak_of_equation_3():
    steps = np.arange(500)
    paper = rates_of(TrainingConfig(warmup_steps=70, learning_rate=2.0), 96, steps)
    peak = 2.0 * 96**-0.5 * 70**-0.5
    config = TrainingConfig(schedule="inverse_sqrt", warmup_steps=70, learning_rate=peak)
    np.testing.assert_allclose(rates_of(config, 7, steps), paper, rtol=1e-5)


PATHS = {"w": 13, "inner_bias": 13, "scale": 13}


def numpy_adamw(config, rates, params, gradients):
    """Parameters after clipped AdamW in float64, with the learning rate of each update."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    first = {name: np.zeros(len(value)) for name, value in params.items()}
    second = {name: np.zeros(len(value)) for name, value in params.items()}
    for n, (rate, gradient) in enumerate(zip(rates, gradients, strict=True), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for name, g in gradient.items():
            g = g / max(1.0, norm / config.clip_norm)
            first[name] = config.adam_b1 * first[name] + (1 - config.adam_b1) * g
            second[name] = config.adam_b2 * second[name] + (1 - config.adam_b2) * g**2
            m, v = first[name] / (1 - config.adam_b1**n), second[name] / (1 - config.adam_b2**n)
            decay = config.weight_decay * params[name] if name == "w" else 0.0
            params[name] -= float(rate) * (m / (np.sqrt(v) + config.adam_epsilon) + decay)
    return params


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_updates_are_clipped_adamw_at_the_rate_of_the_step(weight_decay):
    """Steps 3 and 4 are skipped: Adam counts five updates, the schedule seven steps."""
    config = TrainingConfig(
        schedule="linear",
        learning_rate=0.5,
        warmup_steps=2,
        num_steps=9,
        clip_norm=0.7,
        weight_decay=weight_decay,
    )
    optimizer, steps = make_optimizer(config, 64), [0, 1, 2, 5, 6]
    random = np.random.default_rng(0)
    start = {name: random.normal(size=n).astype(np.float32) for name, n in PATHS.items()}
    gradients = [
        {name: scale * random.normal(size=n) for name, n in PATHS.items()}
        for scale in (10.0, 1e-3, 10.0, 1.0, 10.0)
    ]
    params, state, update = start, optimizer.init(start), jax.jit(optimizer.update)
    for step, gradient in zip(steps, gradients, strict=True):
        gradient = {name: g.astype(np.float32) for name, g in gradient.items()}
        updates, state = update(gradient, state, params, step=step)
        params = jax.tree.map(np.add, params, jax.device_get(updates))
    expected = numpy_adamw(config, rates_of(config, 64, steps), start, gradients)
    for name in PATHS:
        np.testing.assert_allclose(params[name], expected[name], rtol=1e-4, atol=1e-6)


def test_weight_decay_does_not_apply_to_biases_and_layer_norms():
    """With gradient 0, only the decay changes parameters."""
    config = ModelConfig(
        source_vocab_size=7,
        target_vocab_size=7,
        d_model=4,
        d_ff=6,
        num_heads=2,
        num_layers=1,
        max_length=8,
        positions="learned",
        attention_bias=True,
        output_bias=True,
    )
    paths = jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
    params = {path[-1].key: np.ones(2, np.float32) for path, _ in paths}
    optimizer = make_optimizer(
        TrainingConfig(schedule="constant", learning_rate=0.1, warmup_steps=1, weight_decay=0.5), 4
    )
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = jax.jit(lambda x: optimizer.update(zeros, optimizer.init(x), x, step=0))(params)
    spared = set()
    for name, update in jax.device_get(updates).items():
        if np.allclose(update, 0.0):
            spared.add(name)
        else:
            np.testing.assert_allclose(update, -0.05, rtol=1e-6)
            assert name in {"query", "key", "value", "output", "inner", "outer", "table"}
    assert spared == {
        "scale",
        "bias",
        "query_bias",
        "key_bias",
        "value_bias",
        "output_bias",
        "inner_bias",
        "outer_bias",
    }


def test_every_choice_of_the_optimizer_is_implemented():
    (field,) = (candidate for candidate in fields(TrainingConfig) if candidate.name == "optimizer")
    assert field.metadata["choices"] == tuple(SCALINGS)


def adafactor_config(**changes):
    constant = {"schedule": "constant", "learning_rate": 0.03, "warmup_steps": 1}
    return TrainingConfig(optimizer="adafactor", **constant, **changes)


def test_adafactor_is_that_of_optax_with_decay_times_the_learning_rate():
    """A factored matrix, factored heads, a full vector, and a bias of zeros without decay."""
    random = np.random.default_rng(0)
    shapes = {"inner": (40, 48), "query": (64, 2, 32), "w": (31,), "inner_bias": (48,)}
    params = {name: random.normal(size=shape) for name, shape in shapes.items()}
    params = expected = {name: x.astype(np.float32) for name, x in params.items()}
    params["inner_bias"][:] = 0.0
    ours = make_optimizer(adafactor_config(weight_decay=0.3, clip_norm=0.0), 8)
    theirs = optax.adafactor(
        0.03,
        min_dim_size_to_factor=32,
        weight_decay_rate=0.03 * 0.3,
        weight_decay_mask={name: name != "inner_bias" for name in shapes},
    )

    @jax.jit
    def update(gradients, states, params, expected, step):
        updates, state = ours.update(gradients, states[0], params, step=step)
        their_updates, their_state = theirs.update(gradients, states[1], expected)
        expected = optax.apply_updates(expected, their_updates)
        return (state, their_state), optax.apply_updates(params, updates), expected

    states = jax.jit(lambda x: (ours.init(x), theirs.init(x)))(params)
    for step in range(3):
        gradients = {name: random.normal(size=shape) for name, shape in shapes.items()}
        states, params, expected = update(gradients, states, params, expected, step)
    for name, x in params.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-7)


def test_the_first_update_of_adafactor_follows_its_paper():
    """Shazeer and Stern 2018, algorithms 4 and 5: R Cᵀ / mean(R), ∥U∥ clipped to 1, steps relative
    to the parameter."""
    random = np.random.default_rng(1)
    params, gradient = 3.0 * random.normal(size=(33, 37)), random.normal(size=(33, 37)) ** 3
    optimizer = make_optimizer(adafactor_config(clip_norm=0.0), 8)
    params = {"inner": params.astype(np.float32)}
    state = optimizer.init(params)
    updates, _ = jax.jit(optimizer.update)({"inner": gradient}, state, params, step=0)
    rows, columns = ((gradient**2).mean(axis, keepdims=True) for axis in (1, 0))
    update = gradient / np.sqrt(rows * columns / rows.mean())
    update /= max(1.0, np.sqrt((update**2).mean()))
    expected = -0.03 * np.sqrt((params["inner"] ** 2).mean()) * update
    np.testing.assert_allclose(updates["inner"], expected, rtol=1e-4)


def test_the_gradient_is_clipped_before_adafactor():
    """Its first update does not depend on the gradient's scale, the second one does."""
    params = {"inner": np.ones((2, 3), np.float32)}
    recorded = []
    for clip_norm in (0.0, 1.0):
        optimizer = make_optimizer(adafactor_config(clip_norm=clip_norm), 8)
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step, scale in enumerate((0.1, 100.0)):
            gradient = {"inner": np.full((2, 3), scale, np.float32)}
            updates, state = update(gradient, state, params, step=step)
        recorded.append(state[-1][0].v["inner"][0, 0])
    decay = 1 - 2**-0.8  # of the second update
    moments = [decay * 0.01 + (1 - decay) * g**2 for g in (100.0, 6**-0.5)]
    np.testing.assert_allclose(recorded, moments, rtol=1e-5)


def test_the_state_of_adafactor_has_rows_and_columns_only():
    """The weights of attention heads of width 32 and more are factored too."""
    config = ModelConfig(
        source_vocab_size=101,
        target_vocab_size=101,
        d_model=128,
        d_ff=96,
        num_heads=4,
        num_layers=1,
    )
    sizes = {}
    for name in ("adam", "adafactor"):
        training = TrainingConfig(optimizer=name)
        start = partial(init_state, Transformer(config), make_optimizer(training, 128), training)
        state = jax.eval_shape(start)
        sizes[name] = sum(x.size for x in jax.tree.leaves(state.optimizer))
    expected = 2  # the counts of updates and steps
    for x in jax.tree.leaves(state.params):
        *_, second, first = 1, *sorted(x.shape)
        factored = second >= 32
        expected += x.size // first + x.size // second + 1 if factored else x.size + 2
    assert sizes["adafactor"] == expected < 0.06 * sizes["adam"]


def matrices_of(path, x):
    """The matrices, of inputs times outputs, that a parameter of a layer consists of."""
    name = path.split("/")[-1]
    if name in ("query", "key", "value", "output"):
        if x.ndim == 2:  # of recurrent models
            return [x]
        return [x.reshape(len(x), -1) if name != "output" else x.reshape(-1, x.shape[-1])]
    if name in ("input", "recurrent", "context", "initial"):  # a matrix for each gate or layer
        return [x[:, i] for i in range(x.shape[1])]
    return [x] if name in ("inner", "gate", "outer") else []


@pytest.mark.parametrize("kind, dtype", [("transformer", "float32"), ("rnn_attention", "bfloat16")])
def test_muon_makes_the_momentum_of_matrices_orthogonal_and_updates_the_rest_by_adam(kind, dtype):
    """Against singular value decompositions, for the parameters of a model, in two updates."""
    transformer = kind == "transformer"
    options = dict(d_ff=20, num_heads=2, attention_bias=True, gated_feed_forward=True)
    config = ModelConfig(
        kind=kind, source_vocab_size=7, target_vocab_size=7, d_model=8, num_layers=1,
        **(options if transformer else {}),
    )  # fmt: skip
    training = TrainingConfig(
        optimizer="muon", schedule="constant", learning_rate=0.03, warmup_steps=1, clip_norm=0.0,
        weight_decay=0.5,
    )  # fmt: skip
    random = np.random.default_rng(0)

    def drawn(scale):
        return jax.tree.map(
            lambda x: (scale * random.normal(size=x.shape)).astype(np.float32),
            parameter_shapes(config),
        )

    params, gradients = drawn(1.0), [drawn(1.0), drawn(2.0)]
    adam, optimizer = optax.nadam(0.03, b2=0.98), make_optimizer(training, 8, dtype)

    @jax.jit
    def two_updates(params, gradients):
        state, adam_state = optimizer.init(params), adam.init(params)
        for step, gradient in enumerate(gradients):
            changes, state = optimizer.update(gradient, state, params, step=step)
            by_adam, adam_state = adam.update(gradient, adam_state)
        return changes, by_adam, state

    changes, by_adam, state = jax.device_get(two_updates(params, gradients))
    changes, by_adam, params, first, second = (
        flatten_dict(tree, sep="/") for tree in (changes, by_adam, params, *gradients)
    )
    for path, change in changes.items():
        name = path.split("/")[-1]
        decay = 0.0 if name.endswith("bias") or name == "scale" else 0.5 * 0.03 * params[path]
        momentum = 0.95 * (0.95 * first[path] + second[path]) + second[path]
        pairs = list(zip(*(matrices_of(path, x) for x in (change + decay, momentum)), strict=True))
        if not pairs:
            np.testing.assert_allclose(change + decay, by_adam[path], rtol=1e-4, atol=1e-7)
        for matrix, moment in pairs:
            u, values, v = np.linalg.svd(moment.astype(np.float64), full_matrices=False)
            values /= np.sqrt((values**2).sum())
            for _ in range(5):
                values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
            expected = -0.03 * 0.2 * np.sqrt(max(moment.shape)) * (u * values) @ v
            error = np.abs(matrix - expected).max()
            assert error < 1e-6 if dtype == "float32" else 1e-5 < error < 2e-3, path
    moments = sum(x.size for path, x in params.items() if matrices_of(path, x))
    rest = sum(x.size for x in params.values()) - moments
    sizes = sum(x.size for x in jax.tree.leaves(state))
    assert moments + 2 * rest < sizes < moments + 2 * rest + 30  # and counts and coefficients


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_state_has_the_structure_of_optax_for_older_checkpoints(weight_decay, clip_norm):
    config, params = TrainingConfig(weight_decay=weight_decay, clip_norm=clip_norm), {"w": 1.0}
    adam = optax.adamw(lambda _: 1.0) if weight_decay else optax.adam(lambda _: 1.0)
    clip = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    states = [
        optimizer.init(params)
        for optimizer in (make_optimizer(config, 8), optax.chain(*clip, adam))
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@pytest.mark.parametrize("joined", [False, True])
def test_the_norm_is_that_of_all_numbers_of_all_arrays(joined, monkeypatch):
    monkeypatch.setattr(gradient_norm, "by_platform", lambda choose, run: run(joined))
    random = np.random.default_rng(0)
    shapes = {"scalar": (), "bias": (5,), "matrix": (3, 4), "heads": (2, 3, 4)}
    arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
    numbers = np.concatenate([x.ravel() for x in arrays.values()])
    norm = gradient_norm.global_norm(jax.tree.map(np.float32, arrays))
    np.testing.assert_allclose(norm, np.sqrt((numbers**2).sum()), rtol=1e-6)

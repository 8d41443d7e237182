"""The schedules against their formulas, and AdamW against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model.config import ModelConfig
from model.transformer import Transformer
from storage.config import TrainingConfig
from training.optimizer import learning_rate_schedule, make_optimizer


def test_the_paper_schedule_is_equation_3():
    schedule = learning_rate_schedule(TrainingConfig(warmup_steps=4000, learning_rate=1.0), 512)
    for n in (1, 17, 3999, 4000, 4001, 100_000):  # the paper counts updates from 1
        expected = 512**-0.5 * min(n**-0.5, n * 4000**-1.5)
        np.testing.assert_allclose(schedule(n - 1), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_other_schedules_warm_up_to_the_peak_and_end_at_their_final_rate(name):
    config = TrainingConfig(schedule=name, learning_rate=0.3, warmup_steps=10, num_steps=110)
    schedule = learning_rate_schedule(config, 64)
    np.testing.assert_allclose([schedule(n) for n in (0, 4, 9)], [0.03, 0.15, 0.3], rtol=1e-5)
    middle = {"cosine": 0.15, "linear": 0.15, "constant": 0.3}[name]
    np.testing.assert_allclose(schedule(59), middle, rtol=1e-4)
    np.testing.assert_allclose(schedule(109), 0.3 if name == "constant" else 0.0, atol=1e-7)


def test_the_inverse_square_root_has_its_peak_at_the_end_of_the_warm_up():
    config = TrainingConfig(schedule="inverse_sqrt", learning_rate=7e-4, warmup_steps=400)
    schedule = learning_rate_schedule(config, 64)
    for n in (1, 17, 399, 400, 401, 1600, 100_000):  # update n is that of step n − 1
        expected = 7e-4 * (n / 400 if n <= 400 else np.sqrt(400 / n))
        np.testing.assert_allclose(schedule(n - 1), expected, rtol=1e-5)
    np.testing.assert_allclose(schedule(1599), 3.5e-4, rtol=1e-5)  # four times as late: half


def test_the_paper_schedule_is_the_inverse_square_root_with_the_peak_of_equation_3():
    paper = learning_rate_schedule(TrainingConfig(warmup_steps=70, learning_rate=2.0), 96)
    peak = 2.0 * 96**-0.5 * 70**-0.5
    config = TrainingConfig(schedule="inverse_sqrt", warmup_steps=70, learning_rate=peak)
    steps = np.arange(500)
    np.testing.assert_allclose(learning_rate_schedule(config, 7)(steps), paper(steps), rtol=1e-5)


PATHS = {"w": 13, "inner_bias": 13, "scale": 13}


def numpy_adamw(config, schedule, params, gradients, steps):
    """Parameters after clipped AdamW in float64; update i is that of step `steps[i]`."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    first = {name: np.zeros(len(value)) for name, value in params.items()}
    second = {name: np.zeros(len(value)) for name, value in params.items()}
    for n, (step, gradient) in enumerate(zip(steps, gradients, strict=True), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for name, g in gradient.items():
            g = g / max(1.0, norm / config.clip_norm)
            first[name] = config.adam_b1 * first[name] + (1 - config.adam_b1) * g
            second[name] = config.adam_b2 * second[name] + (1 - config.adam_b2) * g**2
            m, v = first[name] / (1 - config.adam_b1**n), second[name] / (1 - config.adam_b2**n)
            decay = config.weight_decay * params[name] if name == "w" else 0.0
            params[name] -= float(schedule(step)) * (m / (np.sqrt(v) + config.adam_epsilon) + decay)
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
    params, state = start, optimizer.init(start)
    for step, gradient in zip(steps, gradients, strict=True):
        gradient = {name: g.astype(np.float32) for name, g in gradient.items()}
        updates, state = optimizer.update(gradient, state, params, step=step)
        params = optax.apply_updates(params, updates)
    expected = numpy_adamw(config, learning_rate_schedule(config, 64), start, gradients, steps)
    for name in PATHS:
        np.testing.assert_allclose(params[name], expected[name], rtol=1e-4, atol=1e-6)


def test_weight_decay_does_not_apply_to_biases_and_layer_norms():
    """With gradient 0, only the decay changes parameters."""
    model = Transformer(
        ModelConfig(
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
    )
    ids = jnp.ones((1, 2), int)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids, ids)["params"]
    params = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)
    optimizer = make_optimizer(
        TrainingConfig(schedule="constant", learning_rate=0.1, warmup_steps=1, weight_decay=0.5), 4
    )
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params, step=0)
    spared = set()
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        name = path[-1].key
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


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_state_has_the_structure_of_optax_for_older_checkpoints(weight_decay, clip_norm):
    config, params = TrainingConfig(weight_decay=weight_decay, clip_norm=clip_norm), {"w": 1.0}
    adam = optax.adamw(lambda _: 1.0) if weight_decay else optax.adam(lambda _: 1.0)
    clip = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
    states = [one.init(params) for one in (make_optimizer(config, 8), optax.chain(*clip, adam))]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])

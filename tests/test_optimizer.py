"""The schedules against their formulas, and Adam against plain NumPy."""

import numpy as np
import optax
import pytest

from training.config import TrainingConfig
from training.optimizer import learning_rate_schedule, make_optimizer


def test_the_paper_schedule_is_equation_3():
    schedule = learning_rate_schedule(TrainingConfig(warmup_steps=4000, learning_rate=1.0), 512)
    for n in (1, 17, 3999, 4000, 4001, 100_000):  # the paper counts updates from 1
        expected = 512**-0.5 * min(n**-0.5, n * 4000**-1.5)
        np.testing.assert_allclose(schedule(n - 1), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_other_schedules_warm_up_to_the_peak_and_end_where_they_say(name):
    config = TrainingConfig(schedule=name, learning_rate=0.3, warmup_steps=10, num_steps=110)
    schedule = learning_rate_schedule(config, 64)
    np.testing.assert_allclose([schedule(n) for n in (0, 4, 9)], [0.03, 0.15, 0.3], rtol=1e-5)
    middle = {"cosine": 0.15, "linear": 0.15, "constant": 0.3}[name]
    np.testing.assert_allclose(schedule(59), middle, rtol=1e-4)
    np.testing.assert_allclose(schedule(109), 0.3 if name == "constant" else 0.0, atol=1e-7)


def test_updates_are_clipped_adam():
    config = TrainingConfig(schedule="constant", learning_rate=0.5, warmup_steps=1, clip_norm=1.0)
    optimizer = make_optimizer(config, 64)
    random = np.random.default_rng(0)
    params = {"w": random.normal(size=13).astype(np.float32)}
    state = optimizer.init(params)
    expected = params["w"].astype(np.float64)
    first = second = np.zeros(13)
    for n in range(1, 6):
        gradient = 10.0 * random.normal(size=13)
        updates, state = optimizer.update({"w": gradient.astype(np.float32)}, state, params)
        params = optax.apply_updates(params, updates)
        clipped = gradient / max(1.0, np.sqrt((gradient**2).sum()))
        first = config.adam_b1 * first + (1 - config.adam_b1) * clipped
        second = config.adam_b2 * second + (1 - config.adam_b2) * clipped**2
        corrected = first / (1 - config.adam_b1**n), second / (1 - config.adam_b2**n)
        expected -= 0.5 * corrected[0] / (np.sqrt(corrected[1]) + config.adam_epsilon)
    np.testing.assert_allclose(params["w"], expected, rtol=1e-4)

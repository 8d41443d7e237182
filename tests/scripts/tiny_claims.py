"""Results of the trained claims at the size tiny, and whether the checks of their rules hold."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seq2seq.data.korean import corpus
from seq2seq.model.mesh import AXIS
from seq2seq.scripts.experiments import parallel_training, small_model
from seq2seq.scripts.experiments.outcome import rounded
from seq2seq.training.step import TrainState


@pytest.fixture(autouse=True)
def one_compilation(monkeypatch):
    """Only the step is compiled, once: `fresh_state` in place of `init_state`."""
    for module in (small_model, parallel_training):
        monkeypatch.setattr(module, "init_state", fresh_state)


@pytest.fixture(autouse=True)
def short_corpus(monkeypatch):
    """A part of the built-in corpus, which takes seconds to generate."""
    monkeypatch.setattr(corpus, "TRAIN_SIZE", 10_000)


def fresh_state(model, optimizer, config):
    """A state as that of `init_state`, placed as a step on one device returns it. Its parameters
    are computed one by one, which compiles a small program for each shape."""
    init_key, key = jax.random.split(jax.random.PRNGKey(config.seed))
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    params = model.lazy_init(init_key, ids, ids, ids, ids)["params"]
    state = TrainState(jnp.array(0), params, optimizer.init(params), key, None)
    one_device = NamedSharding(Mesh(jax.local_devices()[:1], AXIS), PartitionSpec())
    return jax.device_put(state, one_device)


def measured(module, *arms):
    """One result of each arm, of size tiny; as they are stored."""
    return {arm: [rounded(module.measure(arm, 0, "tiny"))] for arm in arms or module.ARMS}


def held(module, results, *numbers):
    """Whether the checks of these numbers hold (default: all)."""
    checks = module.judge(results)
    return [checks[i].holds for i in numbers or range(len(checks))]

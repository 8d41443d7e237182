"""Results of the trained claims at the size tiny, and whether the checks of their rules hold."""

import jax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seq2seq.runtime.devices import AXIS
from seq2seq.scripts.experiments import parallel_training, small_model
from seq2seq.scripts.experiments.outcome import rounded
from seq2seq.training.step import init_state


@pytest.fixture(autouse=True)
def steps_compile_once(monkeypatch):
    """The initial state is placed as a step on one device returns it."""
    one_device = NamedSharding(Mesh(jax.local_devices()[:1], AXIS), PartitionSpec())
    for module in (small_model, parallel_training):
        monkeypatch.setattr(
            module,
            "init_state",
            lambda *arguments: jax.device_put(init_state(*arguments), one_device),
        )


def measured(module, *arms):
    """One result of each arm, of size tiny; as they are stored."""
    return {arm: [rounded(module.measure(arm, 0, "tiny"))] for arm in arms or module.ARMS}


def held(module, results, *numbers):
    """Whether the checks of these numbers hold (default: all)."""
    checks = module.judge(results)
    return [checks[i].holds for i in numbers or range(len(checks))]

"""Results of the trained claims at the size tiny, and whether the checks of their rules hold."""

import jax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seq2seq.runtime.devices import AXIS
from seq2seq.scripts.experiments import small_model
from seq2seq.scripts.experiments.outcome import rounded
from seq2seq.training.step import init_state


def measured(module, *arms):
    """One result of each arm, of size tiny; as they are stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_model, "init_state", state_on_one_device)
        return {arm: [rounded(module.measure(arm, 0, "tiny"))] for arm in arms or module.ARMS}


def state_on_one_device(*arguments):
    """The initial state, placed as a step on one device returns it: such a step compiles once."""
    one_device = NamedSharding(Mesh(jax.local_devices()[:1], AXIS), PartitionSpec())
    return jax.device_put(init_state(*arguments), one_device)


def held(module, results, *numbers):
    """Whether the checks of these numbers hold (default: all)."""
    checks = module.judge(results)
    return [checks[i].holds for i in numbers or range(len(checks))]

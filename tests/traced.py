"""Shared training steps: trainings of one configuration in a process compile once."""

from contextlib import ExitStack, contextmanager
from unittest import mock

from training import trainer

STEPS = {}


@contextmanager
def shared_steps(config):
    """A context in which a Trainer reuses the steps of earlier ones with the same configuration."""
    with ExitStack() as stack:
        for name in ("pmap_train_step", "pmap_eval_step"):
            stack.enter_context(mock.patch.object(trainer, name, memoised(name, config)))
        yield


def memoised(name, config):
    make = getattr(trainer, name)

    def step(*args):
        # When the Trainer calls this, the config has the vocabulary sizes.
        key = make, trainer.make_train_step, repr(config.model), repr(config.training)
        if key not in STEPS:
            STEPS[key] = make(*args)
        return STEPS[key]

    return step

"""Shared training steps: trainings of one configuration in a process compile once."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

from training import trainer

STEPS = {}


@contextmanager
def shared_steps(config):
    """A context in which a Trainer reuses the steps of earlier ones with the same configuration."""
    with ExitStack() as stack:
        for name in ("parallel_train_step", "pmap_eval_step"):
            stack.enter_context(mock.patch.object(trainer, name, memoised(name, config)))
        yield


def memoised(name, config):
    make = getattr(trainer, name)

    def step(*args):
        # When the Trainer calls this, the config has the vocabulary sizes. The steps do not depend
        # on these limits, nor on num_steps with a constant learning rate.
        training = replace(config.training, max_epochs=0, max_hours=0.0)
        if training.schedule == "constant":
            training.num_steps = 1
        key = make, trainer.make_train_step, repr(config.model), repr(training)
        if key not in STEPS:
            STEPS[key] = make(*args)
        return STEPS[key]

    return step

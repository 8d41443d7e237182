"""Trainings in one process share their steps: a configuration is traced and compiled once."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import train

STEPS = {}


@contextmanager
def shared_steps(config):
    """Inside, train.train takes the steps of an earlier training with this model and training."""
    with ExitStack() as stack:
        for name in ("pmap_train_step", "pmap_eval_step"):
            stack.enter_context(mock.patch.object(train, name, memoised(name, config)))
        yield


def memoised(name, config):
    make = getattr(train, name)

    def step(*args):
        # As train.train calls it: by then the data has filled in the sizes of the vocabularies.
        key = make, train.make_train_step, repr(config.model), repr(config.training)
        if key not in STEPS:
            STEPS[key] = make(*args)
        return STEPS[key]

    return step

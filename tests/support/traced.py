"""Shared programs: trainings with equal settings in a process trace and compile once."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from unittest import mock

from seq2seq.config.tree import TrainingConfig
from seq2seq.training import dry_run, parts, step, trainer
from seq2seq.training.optimizer import learning_rate_schedule

SHARED = {}
# The fields of config.training that the steps do not depend on.
OTHER_FIELDS = (
    "max_epochs max_hours patience eval_every eval_sentences best_metric bleu_tokenizer "
    "checkpoint_every keep log_every init_from allow_data_change tokens_per_batch accumulate "
    "profile seed"
).split()


@contextmanager
def shared_steps():
    """A context in which a Trainer or a dry run reuses the programs of earlier ones."""
    with ExitStack() as stack:
        replacements = {
            "make_train_step": shared(trainer.make_train_step),
            "parallel_train_step": compiled_once(trainer.parallel_train_step),
            "learning_rate_schedule": shared_schedule,
        }
        for name, replacement in replacements.items():
            stack.enter_context(mock.patch.object(trainer, name, replacement))
        eval_step = shared(parts.parallel_eval_step)
        stack.enter_context(mock.patch.object(parts, "parallel_eval_step", eval_step))
        dry_run_steps = {
            "make_train_step": replacements["make_train_step"],
            "parallel_train_step": replacements["parallel_train_step"],
        }
        stack.enter_context(mock.patch.multiple(dry_run, **dry_run_steps))
        init_function = shared(step.init_function, "seed")
        stack.enter_context(mock.patch.object(step, "init_function", init_function))
        yield


compiled_once = cache(cache)  # of a function of a function


def shared(make, *fields):
    """`make(model, …, training)`, called once for all equal settings, and `fields` of training."""

    def make_once(model, *rest):
        training = rest[-1]
        values = [getattr(training, name) for name in fields]
        key = make, repr(model), settings(training), *values
        if key not in SHARED:
            SHARED[key] = make(model, *rest)
        return SHARED[key]

    return make_once


def shared_schedule(training, d_model):
    """A schedule for all equal settings, so that `jax.jit` of it compiles once."""
    key = settings(training), d_model
    return SHARED.setdefault(key, learning_rate_schedule(training, d_model))


def settings(training: TrainingConfig) -> str:
    """The settings of training without those of OTHER_FIELDS."""
    default = TrainingConfig()
    default_values = {name: getattr(default, name) for name in OTHER_FIELDS}
    if training.schedule in ("paper", "inverse_sqrt", "constant"):
        default_values["num_steps"] = 1
    return repr(replace(training, **default_values))

"""Whether a model fits into memory: checks before the first step, and advice where it does not.

XLA reports the memory that a compiled program needs on each device. CPU devices share the memory
of the host. A smaller model is also recommended for few pairs.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import jax
from jax.stages import Wrapped

from seq2seq.compilation.report import total_memory
from seq2seq.config.model_parallel import smallest_above
from seq2seq.config.tree import Config
from seq2seq.data.batching.packing import Batch
from seq2seq.data.tokens.corpus_cache import deleting_damaged_stores
from seq2seq.model.config import num_parameters
from seq2seq.model.mesh import bytes_on_device
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.memory import free_memory
from seq2seq.storage.run import Run
from seq2seq.storage.sizes import megabytes
from seq2seq.training.step import Metrics, TrainState, TrainStep

# XLA's messages for out of memory, and the amount in them.
OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
AMOUNT = re.compile(r"(?:allocat\w+|Used) ([\d.,]+ ?(?:bytes|[KMGT]i?B?)\b)")
LARGE = 10_000_000  # parameters of a large model; configs/small.py has half of them
PARAMETERS_PER_PAIR = 250  # more than configs/small.py has with 20,000 pairs
SMALL = "--config=configs/small.py"  # a Transformer
NARROW = "a lower --config.model.d_model"  # makes an RNN smaller


def check_state(state: TrainState, config: Config) -> None:
    """Raise UserError(CONFIGURATION) if the shapes of a TrainState do not fit into free memory."""
    training = config.training

    def message(detail: str) -> str:
        less = "" if training.optimizer == "adafactor" else "training.optimizer=adafactor or "
        free = free_memory() or 0
        more = more_devices(config, lambda n: bytes_on_device(state, n) <= free)
        divide = f"set training.model_parallel={more}, or " if more else ""
        return f"out of memory, {detail}: {divide}start over with {less}{smaller_model(config)}"

    needed = bytes_on_device(state, training.model_parallel)
    _require_free("the parameters and the optimizer need", needed, message)


def step_memory(train_step: Wrapped, state: Any, batch: Any) -> tuple[int, int] | None:
    """Compile the step; the bytes that it needs on each device in addition to the state.

    The second number is the part for activations and gradients. None if XLA does not report them.
    jit keeps the program: calling `train_step` afterwards does not compile again.
    """
    memory = train_step.lower(state, batch).compile().memory_analysis()
    if memory is None:
        return None
    return total_memory(memory) - stored_bytes(state), memory.temp_size_in_bytes


def stored_bytes(state: Any) -> int:
    """The bytes of arrays on each of their devices."""
    return sum(
        prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state)
    )


def check_step(memory: tuple[int, int] | None, config: Config) -> None:
    """Raise UserError(CONFIGURATION) if the result of `step_memory` exceeds the free memory."""
    if memory is not None:
        _require_free(
            "in addition to the parameters and the optimizer a step needs",
            memory[0],
            partial(out_of_memory_message, config=config),
        )


def with_memory_check(train_step: Wrapped, config: Config) -> TrainStep:
    """`train_step`, with `check_step` before the first call: an error message instead of a kill."""
    first = True

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal first
        if first:
            check_step(step_memory(train_step, state, batch), config)
            first = False
        return train_step(state, batch)

    return step


def _require_free(what: str, needed: int, message: Callable[[str], str]) -> None:
    free = free_memory()
    if free is not None and needed > free:
        detail = (
            f"{what} {megabytes(needed)} on each of {jax.local_device_count()} devices, "
            f"{megabytes(free)} are free for each"
        )
        raise UserError(CONFIGURATION, message(detail))


@contextmanager
def explain_failure(config: Config, run: Run) -> Iterator[None]:
    """Log the traceback of an error. Running out of memory becomes a UserError(CONFIGURATION), and
    damaged token ids a UserError(DATA) (`deleting_damaged_stores`)."""
    try:
        with run.log_traceback(), deleting_damaged_stores():
            yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            message = out_of_memory_message(failed_allocation(str(error)), config)
            raise UserError(CONFIGURATION, message) from error
        raise


def failed_allocation(error: str) -> str:
    """The amount that could not be allocated, from XLA's message; "" if it has none."""
    amount = AMOUNT.search(error)
    return f"{amount[1]} could not be allocated" if amount else ""


def out_of_memory_message(detail: str, config: Config) -> str:
    """The error message for a step, with the settings to change; first those that do not change the
    result."""
    training, rows = config.training, config.rows_at_a_time
    options = []
    if rows > jax.device_count() // training.model_parallel:
        options.append(f"config.training.accumulate={2 * training.accumulate}")
    if not training.loss_block and config.data.target_length > 32:
        options.append("config.training.loss_block=32")
    if not config.model.remat:
        options.append("config.model.remat=True")
    advice = (
        f"resume with {' or '.join(options)} (slower, the same results), or " if options else ""
    )
    if more := more_devices(config):
        advice += (
            f"resume with config.training.model_parallel={more} (results differ by rounding), or "
        )
    return (
        f"out of memory{f', {detail}' if detail else ''}: "
        f"training.tokens_per_batch={training.tokens_per_batch} and training.accumulate="
        f"{training.accumulate} make {rows} rows of {config.data.source_length} + "
        f"{config.data.target_length} tokens at a time, over all devices; "
        f"{advice}start over with a lower training.tokens_per_batch or {smaller_model(config)}"
    )


def more_devices(config: Config, fits: Callable[[int], bool] = lambda _: True) -> int:
    """The next larger training.model_parallel that is possible and `fits`; 0 if there is none."""
    value, devices = config.training.model_parallel, jax.local_device_count()
    return smallest_above(value, [config.model], devices, fits)


def smaller_model(config: Config) -> str:
    """The advice for a model that does not fit into memory."""
    if num_parameters(config.model) <= LARGE:
        return "a smaller model"
    return f"a smaller model ({SMALL if config.model.kind == 'transformer' else NARROW})"


def size_hint(config: Config, pairs: int) -> str:
    """The recommendation if the model is large and new and `pairs` are few for it; else ""."""
    parameters = num_parameters(config.model)
    if parameters <= max(LARGE, PARAMETERS_PER_PAIR * pairs) or config.training.init_from:
        return ""
    advice = f"{NARROW} is recommended"
    if config.model.kind == "transformer":
        advice = f"{SMALL} is for 20 thousand to a million pairs"
    return f"hint: {pairs:,} pairs are few for a model of {parameters:,} parameters; {advice}"

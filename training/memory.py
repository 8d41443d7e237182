"""Memory of the devices: an error before the first step if the state or a step does not fit.

XLA reports the memory that a compiled program needs on each device. CPU devices share the memory
of the host.
"""

from collections.abc import Callable
from typing import Any

import jax

from runtime.errors import CONFIGURATION, UserError
from runtime.memory import free_memory
from storage.config import Config
from storage.sizes import megabytes, num_bytes
from training.failure import out_of_memory_message


def check_state(state: Any, config: Config) -> None:
    """Raise UserError(CONFIGURATION) if the shapes of a TrainState do not fit into free memory."""
    _require_free("the parameters and the optimizer need", num_bytes(state), config)


def step_memory(train_step: Any, state: Any, batch: Any) -> tuple[int, int] | None:
    """Compile the step; the bytes that it needs on each device in addition to the state.

    The second number is the part for activations and gradients. None if XLA does not report them.
    jit keeps the program: calling `train_step` afterwards does not compile again.
    """
    memory = train_step.lower(state, batch).compile().memory_analysis()
    if memory is None:
        return None
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes
    total += memory.temp_size_in_bytes - memory.alias_size_in_bytes  # outputs that overwrite inputs
    return total - num_bytes(state), memory.temp_size_in_bytes


def check_step(memory: tuple[int, int] | None, config: Config) -> None:
    """Raise UserError(CONFIGURATION) if the result of `step_memory` exceeds the free memory."""
    if memory is not None:
        _require_free(
            "in addition to the parameters and the optimizer a step needs", memory[0], config
        )


def with_memory_check(train_step: Callable, config: Config) -> Callable:
    """`train_step`, with `check_step` before the first call: an error message instead of a kill."""
    first = True

    def step(state, batch):
        nonlocal first
        if first:
            check_step(step_memory(train_step, state, batch), config)
            first = False
        return train_step(state, batch)

    return step


def _require_free(message: str, needed: int, config: Config) -> None:
    free = free_memory()
    if free is not None and needed > free:
        raise UserError(
            CONFIGURATION,
            out_of_memory_message(
                f"{message} {megabytes(needed)} on each of {jax.local_device_count()} devices, "
                f"{megabytes(free)} are free for each",
                config,
            ),
        )

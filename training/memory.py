"""Memory of the devices: what a step needs, what is free, and a refusal where it does not fit.

XLA states what a compiled program needs on each device. The devices of a CPU share the memory of
the host.
"""

from collections.abc import Callable
from typing import Any

import jax

from runtime.errors import CONFIGURATION, UserError
from runtime.memory import free_memory
from storage.config import Config
from storage.saving import megabytes, num_bytes
from training.failure import too_little_memory


def check_state(state: Any, config: Config) -> None:
    """UserError(CONFIGURATION) where the shapes of a TrainState do not fit into free memory."""
    _refuse("the parameters and the optimizer need", num_bytes(state), config)


def step_memory(train_step: Any, state: Any, batch: Any) -> tuple[int, int] | None:
    """Compile the step; what it needs on each device besides the state, and how much of that are
    activations and gradients, in bytes. None where XLA does not say.

    jit keeps the program: calling `train_step` afterwards does not compile again.
    """
    memory = train_step.lower(state, batch).compile().memory_analysis()
    if memory is None:
        return None
    whole = memory.argument_size_in_bytes + memory.output_size_in_bytes
    whole += memory.temp_size_in_bytes - memory.alias_size_in_bytes  # outputs in place of inputs
    return whole - num_bytes(state), memory.temp_size_in_bytes


def check_step(memory: tuple[int, int] | None, config: Config) -> None:
    """UserError(CONFIGURATION) where a step needs more than is free; see `step_memory`."""
    if memory is not None:
        _refuse("besides the parameters and the optimizer a step needs", memory[0], config)


def checked(train_step: Callable, config: Config) -> Callable:
    """`train_step`, which raises UserError(CONFIGURATION) before its first call where memory is too
    small, instead of being killed."""
    first = True

    def step(state, batch):
        nonlocal first
        if first:
            check_step(step_memory(train_step, state, batch), config)
            first = False
        return train_step(state, batch)

    return step


def _refuse(what: str, needed: int, config: Config) -> None:
    free = free_memory()
    if free is not None and needed > free:
        raise UserError(
            CONFIGURATION,
            too_little_memory(
                f"{what} {megabytes(needed)} on each of {jax.local_device_count()} devices, "
                f"{megabytes(free)} are free for each",
                config,
            ),
        )

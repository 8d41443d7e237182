"""Profiling of some training steps, as a trace for TensorBoard or Perfetto."""

from collections.abc import Callable
from pathlib import Path

import jax

from runtime import processes
from storage.training_config import profile_steps


def with_profile(train_step: Callable, steps: str, directory: Path, step: int) -> Callable:
    """`train_step` that writes a trace of `steps` ("10:12", inclusive) to `directory`.

    `step` is the number of steps done before. Returns `train_step` itself if `steps` is "", and in
    all processes but process 0.
    """
    if not steps or not processes.is_first():
        return train_step
    first, last = profile_steps(steps)
    tracing = False

    def traced(state, batch):
        nonlocal step, tracing
        step += 1
        if first <= step <= last and not tracing:
            jax.block_until_ready(state)  # earlier steps are not part of the trace
            jax.profiler.start_trace(str(directory))
            tracing = True
        result = train_step(state, batch)
        if step == last and tracing:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
            tracing = False
        return result

    return traced

"""Part: the training step of train.py on full packed rows, at growing batch sizes.

Axes: B rows · S = T tokens of a row on each side.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from benchmarks.parts.counts import training_flops
from benchmarks.parts.measuring import call_seconds, doublings, growing_batches
from benchmarks.parts.sizes import PAIR, Sizes
from seq2seq.config.training_config import TrainingConfig
from seq2seq.data.batching.packing import Batch
from seq2seq.model.config import ModelConfig
from seq2seq.model.transformer import Transformer
from seq2seq.runtime.memory import free_memory
from seq2seq.training.memory_check import step_memory, stored_bytes
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import parallel_train_step, place_batch, split_rows
from seq2seq.training.step import init_state, make_train_step


def packed_batch(config: ModelConfig, rows: int, length: int, pair: int) -> Batch:
    """Random rows without padding: `length` tokens on each side, a segment for each `pair`."""
    shape = 3, rows, length
    ids = np.random.default_rng(0).integers(4, config.target_vocab_size, shape, np.int32)
    places = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    segments, positions = places // pair + 1, places % pair
    numbers = np.arange(rows, dtype=np.int32)
    return Batch(ids[0], segments, positions, ids[1], ids[2], segments, positions, numbers)


class FullStep:
    """The compiled step of train.py (forward, backward, update) with its state, on all devices."""

    def __init__(self, config: ModelConfig):
        training, model = TrainingConfig(), Transformer(config)
        optimizer = make_optimizer(training, config.d_model)
        self._step = parallel_train_step(make_train_step(model, optimizer, training), 1)
        self._state = init_state(model, optimizer, training)

    def place(self, batch: Batch) -> Batch:
        """The batch on the devices."""
        return place_batch(split_rows(batch, jax.local_device_count(), 1), 1)

    def compile(self, batch: Batch) -> int | None:
        """Compile the step; the bytes that it needs on each device, the state included.

        MemoryError, before the step runs, if they are not free. None if XLA does not report them.
        """
        needed, free = step_memory(self._step, self._state, batch), free_memory()
        if needed is None:
            return None
        if free is not None and needed[0] > free:
            raise MemoryError(f"out of memory: a step needs {needed[0]} bytes, {free} are free")
        return needed[0] + stored_bytes(self._state)

    def __call__(self, batch: Batch) -> jax.Array:
        """Do a step; the loss."""
        self._state, metrics = self._step(self._state, batch)
        return metrics["loss"]


def training_rows(sizes: Sizes, deadline: float, size: str, dtype: str) -> Iterator[dict[str, Any]]:
    """A row for each batch size; numbers are per device."""
    training = sizes.training[size]
    config, step = replace(training.model, dtype=dtype), None

    def measure(rows: int) -> dict[str, Any]:
        nonlocal step
        step = step or FullStep(config)
        count = rows * jax.local_device_count()
        batch = step.place(packed_batch(config, count, training.length, min(PAIR, training.length)))
        start = time.perf_counter()
        memory = step.compile(batch)
        compiling = time.perf_counter() - start
        seconds = call_seconds({"": lambda: step(batch)}, sizes.seconds)[""]
        return {
            "size": size, "program": "ours", "dtype": dtype, "tokens": rows * training.length,
            "tokens_per_second": rows * training.length / seconds,
            "flops": rows * training_flops(config, training.length, training.length) / seconds,
            "memory": memory, "compile_seconds": compiling,
        }  # fmt: skip

    sizes_of_batches = doublings(training.first_rows, training.most_rows)
    yield from growing_batches(sizes_of_batches, measure, "tokens_per_second", deadline)

"""Sizes: one object decides how many sentences lanes, calls, windows and chunks have.

Options, platform and memory decide them when the devices are initialised. While a process decodes,
the devices may run out of memory, which halves the lanes; and a job that saves its results measures
how long its calls take, which decides the lines of the next one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import jax

from seq2seq.config.model_parallel import smallest_above
from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.search_memory import sentences_in
from seq2seq.model.config import ModelConfig
from seq2seq.model.platforms import Choices, choices_of
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.streams import note

HALVINGS = 3  # of the lanes when a device runs out of memory


class Pace:
    """The number of batches in a call, chosen so that a call takes about `seconds`.

    Results become available when a call ends, so this bounds the work that a kill can lose. The
    first calls take FIRST batches, one for each thread, and no other is submitted before one ends.
    The size of each later call follows the time per source position of the last call of the same
    bucket, or of the slowest other bucket.
    """

    FIRST = 1

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._seconds_per_position: dict[int, float] = {}  # by bucket

    @property
    def measured(self) -> bool:
        """Whether a call has been measured."""
        return bool(self._seconds_per_position)

    def batches(self, bucket: int, positions: int, limit: int) -> int:
        """The number of batches of `positions` source positions each, from 1 to `limit`."""
        if not self.measured:
            return min(limit, self.FIRST)
        measured = self._seconds_per_position
        per_position = measured.get(bucket) or max(measured.values())
        return max(1, min(limit, int(self._seconds / (per_position * positions))))

    def measure(self, bucket: int, positions: int, seconds: float) -> None:
        """Record that a call of `positions` source positions took `seconds`."""
        self._seconds_per_position[bucket] = max(seconds, 1e-6) / positions


@dataclass
class Sizes:
    """The sizes of one process."""

    batch_size: int  # sentences that a copy of the models searches at once, of up to 32 tokens
    queue: int  # batches in one call of a copy
    calls: int  # that run at the same time
    window: int  # lines that are sorted by length together
    chunk: int  # consecutive lines that a process of a job takes in turn
    compilations: int  # programs compiled at once
    cache_blocks: int  # of each layer (model/cache.py)
    copies: int  # of the models; by default one on each device
    more_devices: int = 0  # the next larger decoding.model_parallel that is possible, if any
    pace: Pace | None = field(default=None, compare=False)  # None: full calls
    _halvings: int = field(default=0, init=False)
    _lock: Any = field(default_factory=Lock, init=False, compare=False)

    def lanes(self, bucket: int) -> int:
        """Sentences of this bucket that a copy of the models searches at once. Long ones need more
        memory, so they are fewer; they are fewer still after a device has run out of memory."""
        full = max(1, self.batch_size * 32 // max(32, bucket))
        return max(1, full >> self._halvings)

    def batch(self, lanes: int) -> int:
        """Sentences that all copies search at once."""
        return lanes * self.copies

    def capacity(self, lanes: int) -> int:
        """Sentences that a compiled call of all copies can hold."""
        return self.batch(lanes) * self.queue

    def lines(self, bucket: int, lanes: int) -> int:
        """The most lines of the next call: its capacity, or fewer because of the pace."""
        if self.pace is None:
            return self.capacity(lanes)
        batch = self.batch(lanes)
        return batch * self.pace.batches(bucket, batch * bucket, self.queue)

    @property
    def submitted(self) -> int:
        """The calls that are submitted before the results of the first one are read. Meanwhile
        `calls` others run and one waits for a thread; no other one before the pace is measured."""
        return self.calls + (2 if self.pace is None or self.pace.measured else 0)

    def measure(self, bucket: int, lanes: int, lines: int, seconds: float) -> None:
        """Record how long a call of so many lines took."""
        if self.pace is not None:
            batch = self.batch(lanes)
            batches = -(-lines // batch)
            self.pace.measure(bucket, batches * batch * bucket, seconds)

    def run_or_halve(
        self, lanes: int, bucket: int, run: Callable[..., Any], *arguments: Any
    ) -> Any | None:
        """run(*arguments), a batch of `lanes` sentences on each device. If it runs out of memory:
        None, and later ones have half as many lanes.

        UserError(CONFIGURATION) if smaller batches would not help. Other errors are not caught.
        """
        try:
            return run(*arguments)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            with self._lock:
                self._halve(lanes, bucket)
            return None

    def _halve(self, lanes: int, bucket: int) -> None:
        if lanes > self.lanes(bucket):
            return  # already halved because of another call of this size
        message = f"{lanes} sentences of up to {bucket} tokens do not fit into the device's memory"
        if self._halvings == HALVINGS or lanes == 1:
            advice = "lower decoding.batch_size or decoding.beam_size"
            if self.more_devices:
                advice += f", or set decoding.model_parallel={self.more_devices}"
            raise UserError(CONFIGURATION, f"{message}; {advice}")
        self._halvings += 1
        note(f"{message}: trying half as many")


class Machine(NamedTuple):
    """What sizes depend on besides models and options."""

    platform: str
    memory: int | None = None  # bytes of each device; None: unknown
    devices: int = 1
    cores: int = 1  # of the host that the process may use


def sizes_of(
    models: Sequence[ModelConfig],
    options: DecodingConfig,
    machine: Machine,
    call_seconds: float | None = None,
) -> Sizes:
    """The sizes of a process; each call takes about `call_seconds` (None: calls are full)."""
    choices, copies = choices_of(machine.platform), machine.devices // options.model_parallel
    batch_size = options.batch_size or automatic_batch_size(
        models, options, choices, machine.memory
    )
    # The devices of a copy wait for each other, so two such programs must not run at once.
    call_per_core = choices.call_per_core and options.model_parallel == 1
    calls = max(1, machine.cores // copies) if call_per_core else 1
    lines = batch_size * copies * calls
    return Sizes(
        batch_size=batch_size,
        queue=1 if options.samples else choices.queue,  # samples are drawn for all lanes at once
        calls=calls,
        window=choices.window * lines,
        chunk=max(choices.chunk, lines),
        compilations=choices.compilations,
        cache_blocks=choices.cache_blocks,
        copies=copies,
        more_devices=smallest_above(options.model_parallel, models, machine.devices),
        pace=None if call_seconds is None else Pace(call_seconds),
    )


def automatic_batch_size(
    models: Sequence[ModelConfig], options: DecodingConfig, choices: Choices, memory: int | None
) -> int:
    """The batch size for devices with `memory` bytes (None: unknown)."""
    if not choices.hypotheses:
        return choices.sentences
    most = max(1, choices.hypotheses // (options.samples or options.beam_size))
    if memory is not None:
        most = min(most, sentences_in(memory, models, options))
    # A power of two: devices of slightly different memory get the same programs, so the same bytes.
    return min(choices.sentences, 1 << most.bit_length() - 1)

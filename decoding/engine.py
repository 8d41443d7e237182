"""Engine: token ids → length bucket → encode and search in one graph on every device → token ids.

Sentences go to the devices in queues: a row whose sentence is done takes the next one.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, isnan
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding.calls import Found, Job, Pace
from decoding.programs import Program, compiled, graph, search_of, values_of
from model.config import ModelConfig
from model.hypotheses import Hypotheses
from model.transformer import Transformer
from model.translate import Request
from runtime.devices import replicated
from runtime.errors import CONFIGURATION, DIVERGED, UserError
from storage.config import DecodingConfig

QUEUE = 16  # batches that a device gets at once
IN_FLIGHT = 2  # queues the devices have in hand while the host prepares and reads others
HALVINGS = 3  # of the batch where a device has too little memory


class Engine:
    """Models of one vocabulary with one set of options; all local devices share each queue."""

    def __init__(
        self, models: Sequence[ModelConfig], decoding: DecodingConfig, suppress: tuple[int, ...]
    ):
        models = [replace(model, dtype=decoding.dtype or model.dtype) for model in models]
        self.models = [Transformer(model) for model in models]
        self._decoding, self.suppress, self._halved = decoding, suppress, 0
        self._kind, self._values = search_of(decoding, suppress), values_of(decoding)
        longest = min(model.max_length for model in models)
        # One compiled shape for each: short sentences need not wait for a long one's padding.
        self.buckets = [s for s in (16, 32, 64, 128, 256, 512, 1024, 2048) if s < longest]
        self.buckets.append(longest)
        self.poll = lambda: None  # called around each compiled call; may raise to end the search
        self.pace: Pace | None = None  # bounds the duration of a call; None: the throughput decides

    def use(self, *params: Any) -> None:
        """Translate with these parameters from now on; nothing is compiled again for that."""
        self.variables = [{"params": jax.device_put(one, replicated())} for one in params]

    def search(self, jobs: Iterable[Job | None]) -> Iterator[list[Found]]:
        """What each compiled call finds, for all lines that are not blank. The next job begins
        before the last calls of one have ended.

        None in place of a job means that none is available now: the oldest call is waited for, and
        [] is given where there is none. UserError(CONFIGURATION) where even a smaller batch does
        not fit into memory.
        """
        begun = deque()
        for job in jobs:
            self.poll()
            if job is None:
                yield list(self._end(*begun.popleft())) if begun else []
                continue
            for bucket, lines in self._queues(job.sources):
                self.poll()
                begun.append((bucket, lines, *self._begin(bucket, lines, job), job))
                if len(begun) > (IN_FLIGHT if self.pace is None or self.pace.known else 0):
                    yield list(self._end(*begun.popleft()))
        while begun:
            self.poll()
            yield list(self._end(*begun.popleft()))

    def table(self) -> str:
        """The shapes that may be compiled, each when it is first needed, and kept in the cache."""
        shapes = ", ".join(f"{bucket} × {self.rows(bucket)}" for bucket in self.buckets)
        return (
            f"{jax.local_device_count()} devices ({jax.default_backend()}); at most "
            f"{len(self.buckets)} programs, source tokens × sentences: {shapes}"
        )

    def program(self, bucket: int) -> tuple[Callable[..., Hypotheses], int]:
        """(variables, source [Q, bucket], lengths [Q]) → Hypotheses, and Q: what one device does
        with a queue, with the limits of length in it, for one who is not here to compute them."""
        run, of_all = graph(self._program(bucket)), np.arange(bucket + 1)
        limits, min_lengths = self._limits(of_all), self._min_lengths(of_all)

        def program(variables, source, lengths):
            request = Request(
                source,
                lengths,
                jnp.asarray(limits)[lengths],
                None if min_lengths is None else jnp.asarray(min_lengths)[lengths],
            )
            return run(variables, request, None, self._values)

        return program, self.rows(bucket) * QUEUE

    def rows(self, bucket: int) -> int:
        """Sentences that a device has side by side; long ones are few and need more memory."""
        return max(1, (self._decoding.batch_size * 32 // max(32, bucket)) >> self._halved)

    def longest_prefix(self, length: int) -> int:
        """The most tokens that a translation of a sentence of so many tokens may have to begin
        with."""
        bucket = next(bucket for bucket in self.buckets if bucket >= length)
        return int(self._limits(np.array(bucket))) - 1

    def halve(self, rows: int, bucket: int, error: Exception) -> None:
        """What is to be done after an error of a batch of so many rows on a device: fewer from now
        on, if it was for want of memory. Raises what is no such error, and UserError where fewer
        would not help."""
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise error
        if rows > self.rows(bucket):
            return  # another batch has said so already
        said = f"{rows} sentences of up to {bucket} tokens do not fit into the device's memory"
        if self._halved == HALVINGS or rows == 1:
            raise UserError(
                CONFIGURATION, f"{said}; lower decoding.batch_size or decoding.beam_size"
            )
        self._halved += 1
        print(f"{said}: trying half as many", file=sys.stderr)

    def _search(self, bucket: int) -> Callable[..., Hypotheses]:
        """(variables, request, line numbers) → Hypotheses, all with an axis of devices."""
        run = compiled(self._program(bucket))
        return lambda *arguments: run(*arguments, self._values)

    def _program(self, bucket: int) -> Program:
        length = int(self._limits(np.array(bucket)))
        return Program(tuple(self.models), self._kind, bucket, length, self.rows(bucket))

    def _limits(self, lengths: np.ndarray) -> np.ndarray:
        """The most tokens that translations of sentences of these lengths may have: of none, 0.
        At most as many as the models have positions."""
        o = self._decoding
        limits = np.minimum(lengths + o.max_extra_length, self.buckets[-1])
        if o.max_length:
            limits = np.minimum(limits, o.max_length)
        if o.max_length_ratio:
            limits = np.minimum(limits, multiplied(lengths, o.max_length_ratio))
        return np.where(lengths > 0, np.maximum(limits, 1), 0).astype(np.int32)

    def _min_lengths(self, lengths: np.ndarray) -> np.ndarray | None:
        """The fewest tokens that they may have; None where there is no such rule."""
        o = self._decoding
        if not (o.min_length or o.min_length_ratio):
            return None
        return np.maximum(multiplied(lengths, o.min_length_ratio), o.min_length).astype(np.int32)

    def _queues(self, sources: Sequence[list[int]]) -> Iterator[tuple[int, list[int]]]:
        """(bucket, lines): in the bucket of each line's own length, the longest first, so that no
        row is left with a long sentence when the others have run out of work."""
        order = sorted(((len(ids) + 1, i) for i, ids in enumerate(sources) if ids), reverse=True)
        low = 0
        for bucket in self.buckets:
            lines = [i for length, i in order if low < length <= bucket]
            low = bucket
            for part in self._parts(bucket, lines):
                yield bucket, part

    def _parts(self, bucket: int, lines: list[int]) -> Iterator[list[int]]:
        """The lines of each call: as many as fit, or fewer where there is a pace. Both may change
        between two calls."""
        while lines:
            size = self._queue_size(bucket)
            if self.pace:
                batch = self._batch(bucket)
                size = batch * self.pace.batches(bucket, batch * bucket, size // batch)
            yield lines[:size]
            lines = lines[size:]

    def _queue_size(self, bucket: int) -> int:
        """Sentences of one call. Samples are all drawn side by side."""
        batches = 1 if self._decoding.samples else QUEUE
        return self._batch(bucket) * batches

    def _batch(self, bucket: int) -> int:
        """Sentences that all devices have side by side."""
        return self.rows(bucket) * jax.local_device_count()

    def _begin(self, bucket, lines, job):
        """Hand a queue to the devices; places without a sentence have length 0 and come last."""
        config, rows, size = self.models[0].config, self.rows(bucket), self._queue_size(bucket)
        source = np.full((size, bucket), config.pad_id, np.int32)
        lengths, numbers = np.zeros(size, np.int32), np.zeros(size, np.int32)
        for row, i in enumerate(lines):
            lengths[row] = len(job.sources[i]) + 1
            source[row, : lengths[row]] = [*job.sources[i], config.end_id]
            numbers[row] = job.numbers[i]
        limits, min_lengths, prefix = self._limits(lengths), self._min_lengths(lengths), None
        if any(i in job.prefixes for i in lines):
            width = int(self._limits(np.array(bucket)))
            given = [job.prefixes.get(i, []) for i in lines]
            given += [[]] * (size - len(given))
            prefix = np.zeros((size, width), np.int32), np.array([*map(len, given)], np.int32)
            for row, ids in enumerate(given):
                prefix[0][row, : len(ids)] = ids
            limits = np.where(lengths > 0, np.maximum(limits, prefix[1] + 1), 0)
        queue = jax.tree.map(
            dealt, (Request(source, lengths, limits, min_lengths, prefix), numbers)
        )
        try:
            found = self._search(bucket)(self.variables, *queue)
        except jax.errors.JaxRuntimeError as error:
            found = error
        return rows, found, time.perf_counter()  # compilation is over

    def _end(self, bucket, lines, rows, hypotheses, begun, job):
        """Wait for a call. If it was out of memory, repeat it in smaller batches."""
        try:
            if isinstance(hypotheses, Exception):
                raise hypotheses
            tokens, *numbers = map(gathered, jax.device_get(hypotheses))
        except jax.errors.JaxRuntimeError as error:
            self.halve(rows, bucket, error)
            for part in self._parts(bucket, lines):
                yield from self._end(bucket, part, *self._begin(bucket, part, job), job)
            return
        if self.pace:
            batch = self._batch(bucket)
            self.pace.measure(bucket, -(-len(lines) // batch) * batch * bucket, begun)
        lengths, scores, log_probs = (values.tolist() for values in numbers)
        for row, i in enumerate(lines):
            if any(map(isnan, scores[row])):
                raise diverged(job.numbers[i])
            each = zip(tokens[row], lengths[row], scores[row], log_probs[row], strict=True)
            found = [
                (ids[: n - 1].tolist(), score, log_prob)
                for ids, n, score, log_prob in each
                if n > 0
            ]
            yield Found(job, i, found or [([], float("-inf"), float("-inf"))])  # none is allowed


def multiplied(lengths: np.ndarray, ratio: float) -> np.ndarray:
    """⌈length × ratio⌉, at most 2^31 − 1; exact in decimals: 25 × 2.2 is 55, not above."""
    exact = Fraction(str(ratio))
    return np.vectorize(lambda n: min(ceil(int(n) * exact), 2**31 - 1), otypes=[int])(lengths)


def diverged(line: int) -> UserError:
    """The error of a line (from 0) whose scores are NaN."""
    return UserError(
        DIVERGED,
        f"line {line + 1}: the model's logits are not finite: expected "
        "numbers, got NaN or infinity; decode with --dtype=float32 or another "
        "--checkpoint",
    )


def dealt(x: np.ndarray) -> np.ndarray:
    """One place for each device in turn: all get sentences of like lengths."""
    return x.reshape(-1, jax.local_device_count(), *x.shape[1:]).swapaxes(0, 1)


def gathered(x: np.ndarray) -> np.ndarray:
    """What was `dealt`, in its order."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

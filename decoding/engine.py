"""Engine: token ids → length bucket → encode and search in one graph on every device → token ids.

A call takes a queue of sentences for each device: a lane whose sentence is done takes the next
one.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding.batches import by_bucket, distribute, pad
from decoding.calls import Call, Job, Pace, Result, read_results
from decoding.programs import Program, compiled, graph, search_of, values_of, with_values
from model.config import ModelConfig
from model.constraints import Rules
from model.hypotheses import Hypotheses
from model.kinds import make_model
from model.translate import Request
from runtime.devices import replicated
from runtime.errors import CONFIGURATION, UserError
from storage.config import DecodingConfig

QUEUE = 16  # batches in one call of a device
IN_FLIGHT = 2  # calls submitted while the host prepares the next and reads earlier results
HALVINGS = 3  # of the batch size when a device runs out of memory


class Engine:
    """Models of one vocabulary with one set of options; all local devices share each call."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        decoding: DecodingConfig,
        suppress: tuple[int, ...],
        weights: tuple[float, ...] | None = None,
        rules: Rules | None = None,
    ):
        """`suppress` are the ids of tokens that no hypothesis may hold; `weights` sum to one;
        `rules` are a caller's own."""
        models = [replace(model, dtype=decoding.dtype or model.dtype) for model in models]
        self.models = [make_model(model) for model in models]
        self._decoding, self._halvings = decoding, 0
        self._search_options = search_of(decoding, suppress, rules)
        self.weights = None if weights is None else np.array(weights, np.float32)
        self._values = values_of(decoding, self.weights)
        self.rule_options = with_values(self._search_options.rules, self._values)
        longest = min(model.max_length for model in models)
        # One compiled shape for each bucket: short sentences are not padded to the longest length.
        self.buckets = [s for s in (16, 32, 64, 128, 256, 512, 1024, 2048) if s < longest]
        self.buckets.append(longest)
        self.poll = lambda: None  # called around each compiled call; may raise to end the search
        self.pace: Pace | None = None  # limits the duration of a call; None: full queues

    def use(self, *params: Any) -> None:
        """Set the parameters of each model. Nothing is compiled again."""
        self.variables = [{"params": jax.device_put(one, replicated())} for one in params]

    def search(self, jobs: Iterable[Job | None]) -> Iterator[list[Result]]:
        """The results of each compiled call, for all lines that are not blank.

        Calls of the next job are submitted before the last calls of a job have ended. A job of None
        means that no job is available yet: then the results of the oldest call are yielded, or []
        if there is no call. UserError(CONFIGURATION) if even the smallest batch does not fit into
        memory.
        """
        calls: deque[Call] = deque()
        for job in jobs:
            self.poll()
            if job is None:
                yield self._collect(calls.popleft()) if calls else []
                continue
            for bucket, lines in self._split(job.sources):
                self.poll()
                calls.append(self._submit(job, bucket, lines))
                if len(calls) > (IN_FLIGHT if self.pace is None or self.pace.measured else 0):
                    yield self._collect(calls.popleft())
        while calls:
            self.poll()
            yield self._collect(calls.popleft())

    def description(self) -> str:
        """The devices, and the shapes that may be compiled, each on its first use."""
        shapes = ", ".join(f"{bucket} × {self.lanes(bucket)}" for bucket in self.buckets)
        return (
            f"{jax.local_device_count()} devices ({jax.default_backend()}); at most "
            f"{len(self.buckets)} programs, source tokens × sentences: {shapes}"
        )

    def export_program(self, bucket: int) -> tuple[Callable[..., Hypotheses], int]:
        """((variables, source [Q, bucket], lengths [Q]) → Hypotheses, Q): the program of one device
        with the length limits built in, for export."""
        run, lengths_to_bucket = graph(self._program(bucket)), np.arange(bucket + 1)
        limits, fewest = self._max_lengths(lengths_to_bucket), self._min_lengths(lengths_to_bucket)

        def program(variables, source, lengths):
            request = Request(
                source,
                lengths,
                jnp.asarray(limits)[lengths],
                None if fewest is None else jnp.asarray(fewest)[lengths],
            )
            return run(variables, request, None, self._values)

        return program, self.lanes(bucket) * QUEUE

    def lanes(self, bucket: int) -> int:
        """Sentences that a device searches at once; fewer for long ones, which need more memory."""
        return max(1, (self._decoding.batch_size * 32 // max(32, bucket)) >> self._halvings)

    def max_prefix_length(self, source_length: int) -> int:
        """The most tokens of a prefix of the translation, for a source of `source_length`."""
        bucket = next(bucket for bucket in self.buckets if bucket >= source_length)
        return int(self._max_lengths(np.array(bucket))) - 1

    def run_or_halve(
        self, lanes: int, bucket: int, run: Callable[..., Any], *arguments: Any
    ) -> Any | None:
        """run(*arguments), a batch of `lanes` sentences on each device. If it runs out of memory:
        None, and later batches have half as many lanes.

        UserError(CONFIGURATION) if smaller batches would not help. Other errors are not caught.
        """
        try:
            return run(*arguments)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self._halve(lanes, bucket)
            return None

    def _halve(self, lanes: int, bucket: int) -> None:
        if lanes > self.lanes(bucket):
            return  # already halved because of another call of this size
        message = f"{lanes} sentences of up to {bucket} tokens do not fit into the device's memory"
        if self._halvings == HALVINGS or lanes == 1:
            raise UserError(
                CONFIGURATION, f"{message}; lower decoding.batch_size or decoding.beam_size"
            )
        self._halvings += 1
        print(f"{message}: trying half as many", file=sys.stderr)

    def _search(self, bucket: int) -> Callable[..., Hypotheses]:
        """(variables, request, line numbers) → Hypotheses; arrays begin with an axis of devices."""
        run = compiled(self._program(bucket))
        return lambda *arguments: run(*arguments, self._values)

    def _program(self, bucket: int) -> Program:
        length = int(self._max_lengths(np.array(bucket)))
        return Program(tuple(self.models), self._search_options, bucket, length, self.lanes(bucket))

    def _max_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """The most tokens of a translation for each source length; 0 for length 0. At most the
        models' max_length."""
        o = self._decoding
        limits = np.minimum(lengths + o.max_extra_length, self.buckets[-1])
        if o.max_length:
            limits = np.minimum(limits, o.max_length)
        if o.max_length_ratio:
            limits = np.minimum(limits, rounded_up_product(lengths, o.max_length_ratio))
        return np.where(lengths > 0, np.maximum(limits, 1), 0).astype(np.int32)

    def _min_lengths(self, lengths: np.ndarray) -> np.ndarray | None:
        """The fewest tokens of a translation for each source length; None without such a rule."""
        o = self._decoding
        if not (o.min_length or o.min_length_ratio):
            return None
        products = rounded_up_product(lengths, o.min_length_ratio)
        return np.maximum(products, o.min_length).astype(np.int32)

    def _split(self, sources: Sequence[list[int]]) -> Iterator[tuple[int, list[int]]]:
        """(bucket, lines) of each call. The size of a call is decided when it is needed, because
        memory and pace may change it."""
        lengths = [len(ids) + 1 if ids else 0 for ids in sources]
        for bucket, lines in by_bucket(lengths, self.buckets):
            while lines:
                size = self._call_size(bucket)
                yield bucket, lines[:size]
                lines = lines[size:]

    def _call_size(self, bucket: int) -> int:
        """The most lines of the next call: its capacity, or fewer because of the pace."""
        capacity, batch = self._capacity(bucket), self._batch_size(bucket)
        if self.pace is None:
            return capacity
        return batch * self.pace.batches(bucket, batch * bucket, capacity // batch)

    def _capacity(self, bucket: int) -> int:
        """Sentences of a compiled call. Samples of all sentences are drawn at once: one batch."""
        return self._batch_size(bucket) * (1 if self._decoding.samples else QUEUE)

    def _batch_size(self, bucket: int) -> int:
        """Sentences that all devices search at once."""
        return self.lanes(bucket) * jax.local_device_count()

    def _submit(self, job: Job, bucket: int, lines: list[int]) -> Call:
        """Start a compiled call for these lines on the devices."""
        lanes = self.lanes(bucket)
        numbers = np.zeros(self._capacity(bucket), np.int32)
        numbers[: len(lines)] = [job.numbers[i] for i in lines]
        request = jax.tree.map(distribute, (self._request(job, bucket, lines), numbers))
        run = self._search(bucket)
        hypotheses = self.run_or_halve(lanes, bucket, run, self.variables, *request)
        return Call(job, bucket, lines, lanes, hypotheses, time.perf_counter())  # it is compiled

    def _request(self, job: Job, bucket: int, lines: list[int]) -> Request:
        """The request for these lines, padded to the capacity of a call."""
        config, capacity = self.models[0].config, self._capacity(bucket)
        sources = [[*job.sources[i], config.end_id] for i in lines]
        source, lengths = pad(sources, capacity, bucket, config.pad_id)
        limits, prefix = self._max_lengths(lengths), None
        if any(i in job.prefixes for i in lines):
            width = int(self._max_lengths(np.array(bucket)))
            prefix = pad([job.prefixes.get(i, []) for i in lines], capacity, width, 0)
            limits = np.where(lengths > 0, np.maximum(limits, prefix[1] + 1), 0)
        return Request(source, lengths, limits, self._min_lengths(lengths), prefix)

    def _collect(self, call: Call) -> list[Result]:
        """The results of a call. While the devices run out of memory, its lines are searched again
        in smaller calls, one after the other."""
        results, lines = [], call.lines
        while True:
            hypotheses = self._fetch(call)
            if hypotheses is not None:
                results += read_results(call, hypotheses)
                lines = lines[len(call.lines) :]
            if not lines:
                return results
            size = self._call_size(call.bucket)
            call = self._submit(call.job, call.bucket, lines[:size])

    def _fetch(self, call: Call) -> Hypotheses | None:
        """Wait for the hypotheses of a call; None if the devices ran out of memory."""
        if call.hypotheses is None:
            return None
        hypotheses = self.run_or_halve(call.lanes, call.bucket, jax.device_get, call.hypotheses)
        if hypotheses is not None and self.pace:
            batch = self._batch_size(call.bucket)
            batches = -(-len(call.lines) // batch)
            self.pace.measure(call.bucket, batches * batch * call.bucket, call.start)
        return hypotheses


def rounded_up_product(lengths: np.ndarray, ratio: float) -> np.ndarray:
    """⌈length × ratio⌉, at most 2^31 − 1. Exact in decimals: 25 × 2.2 is 55, but above 55 in
    binary."""
    exact = Fraction(str(ratio))
    return np.vectorize(lambda n: min(ceil(int(n) * exact), 2**31 - 1), otypes=[int])(lengths)

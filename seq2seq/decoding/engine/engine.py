"""Engine: token ids → length bucket → encode and search in one graph on every device → token ids.

A call takes a queue of sentences for each device: a lane whose sentence is done takes the next
one. Threads run the calls. On a CPU there is one device, whose calls share the parameters, and one
thread for each core; JAX runs the calls of one thread one after the other.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.buckets import (
    by_bucket,
    distribute,
    divide,
    length_buckets,
    longest_input,
)
from seq2seq.decoding.engine.calls import Call, Pace, Results, read_results
from seq2seq.decoding.engine.compilation import CompilationAhead, wait_for
from seq2seq.decoding.engine.lanes import Lanes
from seq2seq.decoding.engine.programs import (
    Program,
    compiled,
    graph,
    split,
)
from seq2seq.decoding.engine.requests import (
    limits_with_prefix,
    max_lengths,
    min_lengths,
    padded_request,
    prefix_arrays,
)
from seq2seq.decoding.engine.sizes import Sizes, sizes_of
from seq2seq.decoding.results import Source
from seq2seq.decoding.search_options import search_options
from seq2seq.model.config import ModelConfig
from seq2seq.model.inference import inference_variables, original_params
from seq2seq.model.kinds import make_model
from seq2seq.model.platforms import choices_of
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request
from seq2seq.runtime.control import Control
from seq2seq.runtime.devices import check_not_forked, replicated, usable_cores
from seq2seq.runtime.memory import device_memory


class Engine:
    """Models of one vocabulary with one set of options; all local devices share each call."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        decoding: DecodingConfig,
        options: SearchOptions | None = None,
        forced: tuple[int, ...] = (),
        control: Control = Control(),  # noqa: B008 – immutable
    ):
        """`options` are those of `decoding` (`search_options`); None: without the options that are
        texts. `forced` are the tokens with which every translation begins. Sources hold them too
        (`Source.forced`), after config.data.target_begin."""
        models = [replace(model, dtype=decoding.dtype or model.dtype) for model in models]
        for model in models:
            model.validate()  # a key of compiled programs: it does not change any more
        self.models = [make_model(model) for model in models]
        self.options = options or search_options(decoding, models[0].end_id, {})
        self._decoding, self.forced = decoding, forced
        self._static, self._values = split(self.options)
        self.buckets = length_buckets(min(map(longest_input, models)))
        self._ahead = CompilationAhead()
        self._poll, self._log = control.poll, control.log
        self._pace = None if control.call_seconds is None else Pace(control.call_seconds)
        self._shared: list[Any] | None = None  # the variables of another engine, see `share`

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes for the devices of this process; made at the first use, which starts them."""
        models, devices = [model.config for model in self.models], jax.local_device_count()
        backend = jax.default_backend()
        memory, cores = device_memory(), usable_cores()
        return sizes_of(models, self._decoding, backend, memory, devices, cores)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that run compiled calls, one call each."""
        return ThreadPoolExecutor(self.sizes.calls, "call")

    def use(self, *params: Any) -> None:
        """Set the parameters of each model. Nothing is compiled again. UserError as
        `check_not_forked`."""
        check_not_forked()
        bias_in_table = choices_of(jax.default_backend()).bias_in_table
        self.variables = [
            jax.device_put(inference_variables(model.config, tree, bias_in_table), replicated())
            for model, tree in zip(self.models, params, strict=True)
        ]

    def params(self) -> list[Any]:
        """The parameters of each model, as they were set, but cast for the products."""
        return [
            original_params(model.config, variables)
            for model, variables in zip(self.models, self.variables, strict=True)
        ]

    def share(self, other: "Engine") -> None:
        """Use the parameters of another engine of the same models.

        ValueError if the products of this engine are float32 and those of the other one are not.
        """
        dtypes, shared = (
            [model.config.weights_dtype for model in engine.models] for engine in (self, other)
        )
        if dtypes == shared:
            self.variables = other.variables
        elif self._shared is not other.variables:
            self.use(*other.params())
        self._shared = other.variables

    def search(self, windows: Iterable[Sequence[Source] | None]) -> Iterator[Results]:
        """The results of each compiled call, for all sources that are not blank.

        The sources of a window are sorted by length and searched together. Calls of the next window
        are submitted before the last calls of a window have ended. A window of None means that none
        is available yet: then the results of the oldest call are yielded, or [] if there is no
        call. UserError(CONFIGURATION) if even the smallest batch does not fit into memory.
        """
        calls: deque[Call] = deque()
        try:
            yield from self._search_windows(windows, calls)
        finally:
            for call in calls:
                call.outcome.cancel()
            self._ahead.cancel()

    def _search_windows(
        self, windows: Iterable[Sequence[Source] | None], calls: deque[Call]
    ) -> Iterator[Results]:
        for window in windows:
            self._poll()
            if window is None:
                yield self._collect(calls.popleft()) if calls else []
                continue
            lengths = [source.length for source in window]
            groups = [group for group in by_bucket(lengths, self.buckets) if group[1]]
            self._compile_ahead(window, groups)
            for program, lines in self._split(groups, lengths):
                self._poll()
                calls.append(self._submit(program, [window[line] for line in lines]))
                # As many that run, and one that waits for a thread while results are read.
                measured = self._pace is None or self._pace.measured
                if len(calls) >= self.sizes.calls + 2 * measured:
                    yield self._collect(calls.popleft())
        while calls:
            self._poll()
            yield self._collect(calls.popleft())

    def description(self) -> str:
        """The devices, and the shapes that may be compiled, each on its first use."""
        shapes = ", ".join(f"{bucket} × {self.lanes.of(bucket)}" for bucket in self.buckets)
        devices, calls = jax.local_device_count(), self.sizes.calls
        return (
            f"{devices} devices ({jax.default_backend()}), {calls} calls at once; at most "
            f"{len(self.buckets)} programs, source tokens × sentences: {shapes}"
        )

    def export_program(self, bucket: int) -> tuple[Callable[..., Hypotheses], int]:
        """((variables, source [Q, bucket], lengths [Q]) → Hypotheses, Q): the program of one device
        with the length limits built in. Sampling also needs the numbers [Q] of the lines."""
        key = self._program(bucket)
        run, lengths_to_bucket = graph(key), np.arange(bucket + 1)
        limits, fewest = self._max_lengths(lengths_to_bucket), self._min_lengths(lengths_to_bucket)
        if self.forced:
            limits = limits_with_prefix(limits, len(self.forced))

        def program(
            variables: list[Any],
            source: jax.Array,
            lengths: jax.Array,
            numbers: jax.Array | None = None,
        ) -> Hypotheses:
            request = Request(
                source,
                lengths,
                jnp.asarray(limits)[lengths],
                None if fewest is None else jnp.asarray(fewest)[lengths],
                self._forced_prefix(len(source)) if self.forced else None,
                numbers,
            )
            return run(variables, request, self._values)

        return program, self._sentences(key.lanes)

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of a device; fewer after the devices have run out of memory."""
        return Lanes(self.sizes.batch_size)

    def _forced_prefix(self, sentences: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`Request.prefix` of sentences that begin with `forced`."""
        number = jnp.full(sentences, len(self.forced))
        return jnp.tile(jnp.array(self.forced), (sentences, 1)), number, number

    def limit(self, source_length: int, prefix: int) -> int:
        """The most tokens of the translation of a source that must begin with `prefix` tokens."""
        return int(limits_with_prefix(self._max_lengths(np.array(source_length)), prefix))

    def max_prefix_length(self, source_length: int) -> int:
        """The most tokens of a prefix of the translation, for a source of `source_length`."""
        bucket = next(bucket for bucket in self.buckets if bucket >= source_length)
        return int(self._max_lengths(np.array(bucket))) - 1

    def _search(self, program: Program) -> Callable[..., Hypotheses]:
        """(variables, request) → Hypotheses; arrays begin with an axis of devices."""
        run = compiled(program)
        return lambda *arguments: run(*arguments, self._values)

    def _program(self, bucket: int) -> Program:
        """The program of a bucket, with the lanes of this moment: another thread may halve them."""
        length = int(self._max_lengths(np.array(bucket)))
        lanes = self.lanes.of(bucket)
        return Program(tuple(self.models), self._static._replace(max_length=length), bucket, lanes)

    def _max_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return max_lengths(self._decoding, lengths, self.buckets[-1])

    def _min_lengths(self, lengths: np.ndarray) -> np.ndarray | None:
        return min_lengths(self._decoding, lengths)

    def _compile_ahead(
        self, window: Sequence[Source], groups: Sequence[tuple[int, list[int]]]
    ) -> None:
        """Start to compile the program of the first call of each bucket, in the order of calls."""
        started, threads = [], self.sizes.compilations
        for bucket, lines in groups:
            program = self._program(bucket)
            sources = [window[line] for line in lines[: self._call_size(program)]]
            if (key := self._call_key(program, sources)) in self._ahead:
                continue
            # The source with the most arrays alone gives arrays of the same shapes.
            source = max(sources, key=lambda source: prefix_arrays([source]))
            arguments = self.variables, self._request(program, [source]), self._values
            if self._ahead.start(key, partial(compiled(program).lower, *arguments), threads):
                started.append(f"{bucket} × {program.lanes}")
        if started:
            self._log(f"compiling the search, source tokens × sentences: {', '.join(started)}")

    def _call_key(self, program: Program, sources: list[Source]) -> tuple[Program, int]:
        """Calls with equal keys run the same compiled program."""
        return program, prefix_arrays(sources)

    def _split(
        self, groups: Sequence[tuple[int, list[int]]], lengths: Sequence[int]
    ) -> Iterator[tuple[Program, list[int]]]:
        """(program, lines) of each call. The size of a call is decided when it is needed, because
        memory and pace may change it."""
        batch_size = lambda bucket: self._batch_size(self._program(bucket))  # noqa: E731
        for bucket, shares in divide(groups, lengths, self.sizes.calls, batch_size):
            while shares := [share for share in shares if share]:
                for thread, share in enumerate(shares):
                    program = self._program(bucket)
                    size = self._call_size(program)
                    yield program, share[:size]
                    shares[thread] = share[size:]

    def _call_size(self, program: Program) -> int:
        """The most lines of the next call: its capacity, or fewer because of the pace."""
        capacity, batch = self._capacity(program), self._batch_size(program)
        if self._pace is None:
            return capacity
        positions = batch * program.bucket
        return batch * self._pace.batches(program.bucket, positions, capacity // batch)

    def _capacity(self, program: Program) -> int:
        """Sentences of a compiled call. Samples of all sentences are drawn at once: one batch."""
        return self._sentences(self._batch_size(program))

    def _sentences(self, lanes: int) -> int:
        """The sentences of a device in a call; sampling has no queue."""
        return lanes * (1 if self._decoding.samples else self.sizes.queue)

    def _batch_size(self, program: Program) -> int:
        """Sentences that all devices search at once."""
        return program.lanes * jax.local_device_count()

    def _submit(self, program: Program, sources: list[Source]) -> Call:
        """Give a compiled call for these sources to the threads."""
        arguments = self.variables, self._request(program, sources)
        run = partial(self._run, program, self._search(program), arguments)
        self._ahead.wait(self._call_key(program, sources), self._poll)
        return Call(program, sources, self.threads.submit(run))

    def _run(
        self, program: Program, search: Callable[..., Hypotheses], arguments: Sequence[Any]
    ) -> tuple[Hypotheses | None, float]:
        """The hypotheses of a call, None if the devices ran out of memory; and its seconds."""
        start = time.perf_counter()
        hypotheses = self.lanes.run_or_halve(
            program.lanes, program.bucket, lambda: jax.device_get(search(*arguments))
        )
        return hypotheses, time.perf_counter() - start

    def _request(self, program: Program, sources: Sequence[Source]) -> Request:
        """The request for these sources, distributed over the devices."""
        config, shape = self.models[0].config, (self._capacity(program), program.bucket)
        request = padded_request(sources, shape, config, self._decoding, self.buckets[-1])
        return jax.tree.map(distribute, request)  # [devices, Q, …]

    def _collect(self, call: Call) -> Results:
        """The results of a call. While the devices run out of memory, its sources are searched
        again in smaller calls, one after the other."""
        results, sources = [], call.sources
        while True:
            hypotheses = self._fetch(call)
            if hypotheses is not None:
                has_own_rules = self.options.rules is not None
                results += read_results(call.sources, hypotheses, has_own_rules)
                sources = sources[len(call.sources) :]
            if not sources:
                return results
            program = self._program(call.program.bucket)
            call = self._submit(program, sources[: self._call_size(program)])

    def _fetch(self, call: Call) -> Hypotheses | None:
        """Wait for the hypotheses of a call; None if the devices ran out of memory."""
        wait_for(call.outcome, self._poll)
        hypotheses, seconds = call.outcome.result()
        if hypotheses is not None and self._pace:
            bucket, batch = call.program.bucket, self._batch_size(call.program)
            batches = -(-len(call.sources) // batch)
            self._pace.measure(bucket, batches * batch * bucket, seconds)
        return hypotheses

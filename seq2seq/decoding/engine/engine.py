"""Engine: token ids → length bucket → encode and search in one graph on every device → token ids.

A call takes a queue of sentences for each device: a lane whose sentence is done takes the next
one. Threads run the calls. On a CPU there is one device, whose calls share the parameters, and one
thread for each core; JAX runs the calls of one thread one after the other.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import jax
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.engine.buckets import (
    by_bucket,
    distribute,
    divide,
    length_buckets,
    longest_input,
)
from seq2seq.decoding.engine.calls import Call, Results, read_results
from seq2seq.decoding.engine.compilation import CompilationAhead, wait_for
from seq2seq.decoding.engine.placed_parameters import check_parameters, placers_of
from seq2seq.decoding.engine.programs import Program, compiled, split
from seq2seq.decoding.engine.requests import (
    limits_with_prefix,
    max_lengths,
    min_lengths,
    padded_request,
    prefix_arrays,
)
from seq2seq.decoding.engine.sizes import Machine, Sizes, sizes_of
from seq2seq.decoding.results import Source
from seq2seq.decoding.search_options import search_options
from seq2seq.model.config import ModelConfig
from seq2seq.model.inference import inference_variables, original_params
from seq2seq.model.kinds import make_model
from seq2seq.model.mesh import Placer, local_mesh, shardings
from seq2seq.model.platforms import choices_of
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request
from seq2seq.runtime.control import Control
from seq2seq.runtime.devices import check_not_forked, usable_cores
from seq2seq.runtime.memory import device_memory

EXCLUSIVE = Lock()


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
        self.model_parallel = decoding.model_parallel
        self._static, self.values = split(self.options)
        self.buckets = length_buckets(min(map(longest_input, models)))
        self.variables: list[Any] = []  # of each model, see `use`
        self._shared: list[Any] | None = None  # the variables of another engine, see `share`
        self._ahead, self._control = CompilationAhead(), control

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes for the devices of this process; made at the first use, which starts them."""
        devices, models = jax.local_device_count(), [model.config for model in self.models]
        machine = Machine(jax.default_backend(), device_memory(), devices, usable_cores())
        return sizes_of(models, self._decoding, machine, self._control.call_seconds)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """The threads that run compiled calls, one call each."""
        return ThreadPoolExecutor(self.sizes.calls, "call")

    def distribute(self, x: np.ndarray) -> np.ndarray:
        """[rows, …] → [copies of the models, rows of a copy, …]."""
        return distribute(x, self.sizes.copies)

    def placers(self) -> list[Placer | None]:
        """See `placers_of`."""
        return placers_of(self.models, self.model_parallel)

    def exclusive(self) -> AbstractContextManager[Any]:
        """A context for running a program. Programs in which devices wait for each other must start
        in the same order on all devices, so of two threads one waits."""
        return EXCLUSIVE if self.model_parallel > 1 else nullcontext()

    def use(self, *params: Any) -> None:
        """Set the parameters of each model. Nothing is compiled again. UserError as
        `check_not_forked`."""
        check_not_forked()
        check_parameters(self.models, self.model_parallel)
        bias_in_table = choices_of(jax.default_backend()).bias_in_table
        mesh = local_mesh(self.model_parallel)
        self.variables = [
            jax.device_put(variables, shardings(variables, mesh))
            for variables in (
                inference_variables(model.config, tree, bias_in_table)
                for model, tree in zip(self.models, params, strict=True)
            )
        ]

    def params(self) -> list[Any]:
        """The parameters of each model, as they were set, but cast for the products."""
        return [
            original_params(model.config, variables)
            for model, variables in zip(self.models, self.variables, strict=True)
        ]

    def share(self, other: "Engine") -> None:
        """Use the parameters of another engine of the same models.

        ValueError if the products of this engine are float32 and those of the other one are not, or
        if its models lie on another number of devices.
        """
        if self.model_parallel != other.model_parallel:
            raise ValueError(
                f"model_parallel={self.model_parallel} is not supported by a model that lies on "
                f"{other.model_parallel} devices; load the model with it"
            )
        dtypes, shared = (
            [model.config.weights_dtype for model in engine.models] for engine in (self, other)
        )
        if dtypes == shared:
            self.variables = other.variables
        elif self._shared is not other.variables:
            self.use(*other.params())
        self._shared = other.variables

    def max_lengths(self, source_lengths: np.ndarray) -> np.ndarray:
        """The most tokens of a translation for each source length."""
        return max_lengths(self._decoding, source_lengths, self.buckets[-1])

    def min_lengths(self, source_lengths: np.ndarray) -> np.ndarray | None:
        """The fewest tokens of a translation for each source length; None without such a rule."""
        return min_lengths(self._decoding, source_lengths)

    def limit(self, source_length: int, prefix: int) -> int:
        """The most tokens of the translation of a source that must begin with `prefix` tokens."""
        return int(limits_with_prefix(self.max_lengths(np.array(source_length)), prefix))

    def max_prefix_length(self, source_length: int) -> int:
        """The most tokens of a prefix of the translation, for a source of `source_length`."""
        bucket = next(bucket for bucket in self.buckets if bucket >= source_length)
        return int(self.max_lengths(np.array(bucket))) - 1

    def description(self) -> str:
        """The devices, and the shapes that may be compiled, each on its first use."""
        sizes = self.sizes
        shapes = ", ".join(f"{bucket} × {sizes.lanes(bucket)}" for bucket in self.buckets)
        copies = str(sizes.copies)
        if self.model_parallel > 1:
            copies = f"{copies} × {self.model_parallel}"
        return (
            f"{copies} devices ({jax.default_backend()}), {sizes.calls} calls at once; at "
            f"most {len(self.buckets)} programs, source tokens × sentences: {shapes}"
        )

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
            self._control.poll()
            if window is None:
                yield self._results(calls.popleft()) if calls else []
                continue
            lengths = [source.length for source in window]
            groups = [group for group in by_bucket(lengths, self.buckets) if group[1]]
            self._compile_ahead(window, groups)
            for program, lines in self._split(groups, lengths):
                self._control.poll()
                calls.append(self._submit(program, [window[line] for line in lines]))
                if len(calls) >= self.sizes.submitted:
                    yield self._results(calls.popleft())
        while calls:
            self._control.poll()
            yield self._results(calls.popleft())

    def program(self, bucket: int) -> Program:
        """The program of a bucket, with the lanes of this moment: another thread may halve them."""
        length = int(self.max_lengths(np.array(bucket)))
        static = self._static._replace(max_length=length, cache_blocks=self.sizes.cache_blocks)
        models, lanes = tuple(self.models), self.sizes.lanes(bucket)
        return Program(models, static, bucket, lanes, self.model_parallel)

    def _split(
        self, groups: Sequence[tuple[int, list[int]]], lengths: Sequence[int]
    ) -> Iterator[tuple[Program, list[int]]]:
        """(program, lines) of each call. The size of a call is decided when it is needed, because
        memory and pace may change it."""
        sizes = self.sizes
        batch_size = lambda bucket: sizes.batch(sizes.lanes(bucket))  # noqa: E731
        for bucket, shares in divide(groups, lengths, sizes.calls, batch_size):
            while shares := [share for share in shares if share]:
                for thread, share in enumerate(shares):
                    program = self.program(bucket)
                    lines = sizes.lines(bucket, program.lanes)
                    yield program, share[:lines]
                    shares[thread] = share[lines:]

    def _compile_ahead(
        self, window: Sequence[Source], groups: Sequence[tuple[int, list[int]]]
    ) -> None:
        """Start to compile the program of the first call of each bucket, in the order of calls."""
        started, sizes = [], self.sizes
        for bucket, lines in groups:
            program = self.program(bucket)
            first = [window[line] for line in lines[: sizes.lines(bucket, program.lanes)]]
            if (key := call_key(program, first)) in self._ahead:
                continue
            # The source with the most arrays alone gives arrays of the same shapes.
            source = max(first, key=lambda source: prefix_arrays([source]))
            arguments = self.variables, self._request(program, [source]), self.values
            lower = partial(compiled(program).lower, *arguments)
            if self._ahead.start(key, lower, sizes.compilations):
                started.append(f"{bucket} × {program.lanes}")
        if started:
            shapes = ", ".join(started)
            self._control.log(f"compiling the search, source tokens × sentences: {shapes}")

    def _submit(self, program: Program, sources: list[Source]) -> Call:
        """Give a compiled call for these sources to the threads."""
        arguments = self.variables, self._request(program, sources)
        run = partial(self._run, program, self._search(program), arguments)
        self._ahead.wait(call_key(program, sources), self._control.poll)
        return Call(program, sources, self.threads.submit(run))

    def _request(self, program: Program, sources: Sequence[Source]) -> Request:
        """The request for these sources, distributed over the copies of the models."""
        config, shape = self.models[0].config, (self.sizes.capacity(program.lanes), program.bucket)
        request = padded_request(sources, shape, config, self._decoding, self.buckets[-1])
        return jax.tree.map(self.distribute, request)  # [copies, Q, …]

    def _search(self, program: Program) -> Callable[..., Hypotheses]:
        """(variables, request) → Hypotheses; arrays begin with an axis of copies."""
        run = compiled(program)
        return lambda *arguments: run(*arguments, self.values)

    def _run(
        self, program: Program, search: Callable[..., Hypotheses], arguments: Sequence[Any]
    ) -> tuple[Hypotheses | None, float]:
        """The hypotheses of a call, None if the devices ran out of memory; and its seconds."""
        start = time.perf_counter()
        with self.exclusive():
            hypotheses = self.sizes.run_or_halve(
                program.lanes, program.bucket, lambda: jax.device_get(search(*arguments))
            )
        return hypotheses, time.perf_counter() - start

    def _results(self, call: Call) -> Results:
        """The results of a call. While the devices run out of memory, its sources are searched
        again in smaller calls, one after the other."""
        results, sources = [], call.sources
        while True:
            wait_for(call.outcome, self._control.poll)
            hypotheses, seconds = call.outcome.result()
            if hypotheses is not None:  # the devices did not run out of memory
                program, lines = call.program, len(call.sources)
                self.sizes.measure(program.bucket, program.lanes, lines, seconds)
                results += read_results(call.sources, hypotheses, self.options.rules is not None)
                sources = sources[lines:]
            if not sources:
                return results
            program = self.program(call.program.bucket)
            lines = self.sizes.lines(program.bucket, program.lanes)
            call = self._submit(program, sources[:lines])


def call_key(program: Program, sources: Sequence[Source]) -> tuple[Program, int]:
    """Calls with equal keys run the same compiled program."""
    return program, prefix_arrays(sources)

"""Part: the search with forced output lengths, at growing numbers of lanes, and the engine.

Axes: Q sentences of a call · S source · N beams.
Forced lengths make the work of a search with random weights equal to that of a trained model.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from benchmarks.parts.counts import search_steps, step_bytes
from benchmarks.parts.measuring import call_seconds, growing_batches
from benchmarks.parts.sizes import Sizes
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.results import Source
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.arguments import SearchOptions
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request, translate
from seq2seq.model.transformer import Transformer
from seq2seq.training.parameters import init_params

DTYPE = "bfloat16"


def search_program(
    config: ModelConfig, beams: int, max_length: int, lanes: int
) -> Callable[..., Hypotheses]:
    """The jitted (variables, request) → Hypotheses of one device."""
    model = Transformer(config)
    options = SearchOptions(max_length, config.end_id, beam_size=beams)

    def run(variables, request):
        return translate([(model, variables)], request, options, lanes)

    return jax.jit(run)


def sources_of(config: ModelConfig, sentences: int, length: int) -> np.ndarray:
    """Random sources with the end token [Q, S]."""
    random = np.random.default_rng(0)
    ids = random.integers(4, config.source_vocab_size, (sentences, length), np.int32)
    ids[:, -1] = config.end_id
    return ids


def forced_request(sources: np.ndarray, output_lengths: np.ndarray) -> Request:
    """The first sentences, as many as there are output lengths, with these lengths; the other rows
    are padding. All requests of one program have the same shapes."""
    used = np.arange(len(sources)) < len(output_lengths)
    limits = np.zeros(len(sources), np.int32)
    limits[: len(output_lengths)] = output_lengths
    lengths = np.where(used, sources.shape[1], 0).astype(np.int32)
    return jax.device_put(Request(sources, lengths, limits, min_lengths=limits))


def varied_lengths(sentences: int, length: int) -> np.ndarray:
    """Output lengths between a half and one and a half of `length`."""
    return np.random.default_rng(1).integers(length // 2, length * 3 // 2 + 1, sentences)


def random_variables(config: ModelConfig) -> Any:
    """Random parameters on the device."""
    init = jax.jit(lambda key: init_params(Transformer(config), key))
    return {"params": init(jax.random.key(0))}


def decoding_rows(sizes: Sizes, deadline: float, size: str, beams: int) -> Iterator[dict[str, Any]]:
    """A row for each number of lanes, on one device."""
    config = replace(sizes.decoding[size], dtype=DTYPE)
    variables = random_variables(config)

    def measure(lanes: int) -> dict[str, Any]:
        return search_row(sizes, config, variables, beams, lanes) | {"size": size}

    lanes = [hypotheses // beams for hypotheses in sizes.hypotheses]
    yield from growing_batches(lanes, measure, "sentences_per_second", deadline)


def search_row(
    sizes: Sizes, config: ModelConfig, variables: Any, beams: int, lanes: int
) -> dict[str, Any]:
    """The times of one program: full queues of equal and of varied output lengths, and one batch
    with whole and half lengths. The difference of the last two is that of the steps alone."""
    length, sentences = sizes.output_length, lanes * sizes.queue
    sources = sources_of(config, sentences, sizes.source_length)
    varied = varied_lengths(sentences, length)
    requests = {
        "equal": forced_request(sources, np.full(sentences, length)),
        "varied": forced_request(sources, varied),
        "batch": forced_request(sources, np.full(lanes, length)),
        "half": forced_request(sources, np.full(lanes, length // 2)),
    }
    program = search_program(config, beams, sizes.max_length, lanes)
    start = time.perf_counter()
    jax.block_until_ready(program(variables, requests["half"]))
    compiling = time.perf_counter() - start
    calls = {
        name: lambda request=request: program(variables, request)
        for name, request in requests.items()
    }
    seconds = call_seconds(calls, sizes.seconds, jax.device_get)
    step = max(0.0, seconds["batch"] - seconds["half"]) / (length - length // 2)
    # The steps of the difference run while the cache holds length / 2 … length steps.
    slots = (length // 2 + 1 + length) / 2
    steps = search_steps(varied, lanes)
    overhead = sizes.queue * (seconds["batch"] - length * step)  # encoding, start and end
    refill_time = 1 - (overhead + steps.steps * step) / seconds["varied"]
    return {
        "program": "ours", "device": jax.default_backend(), "dtype": config.dtype, "beams": beams,
        "batch": lanes, "sentences_per_second": sentences / seconds["equal"],
        "varied_per_second": sentences / seconds["varied"], "step_seconds": step,
        "step_bytes": sum(step_bytes(config, lanes, beams, sizes.source_length, slots)),
        "steps": steps.steps, "refill_steps": steps.refills / steps.steps,
        "refill_time": max(0.0, refill_time), "occupied": steps.occupied,
        "compile_seconds": compiling,
    }  # fmt: skip


def engine_rows(sizes: Sizes, deadline: float, size: str, beams: int) -> Iterator[dict[str, Any]]:
    """One row: the engine of decode.py with its default batch size, on all devices, from token ids
    to token ids, with outputs of one forced length."""
    length = sizes.output_length
    forced = dict(min_length=length, max_length=length, max_extra_length=length)
    config = sizes.decoding[size]
    engine = Engine([config], DecodingConfig(beam_size=beams, dtype=DTYPE, **forced))
    engine.use(random_variables(config)["params"])
    bucket = next(bucket for bucket in engine.buckets if bucket >= sizes.source_length)
    hypotheses = sizes.hypotheses[len(sizes.hypotheses) // 2]
    batch = max(hypotheses // beams, engine.sizes.batch(engine.sizes.lanes(bucket)))
    count = sizes.queue * batch
    sources = sources_of(config, count, sizes.source_length)[:, :-1].tolist()
    window = [Source(number, ids) for number, ids in enumerate(sources)]
    calls = {"": lambda: sum(len(results) for results in engine.search([window]))}
    seconds = call_seconds(calls, sizes.seconds, lambda _: None)[""]
    yield {
        "program": "ours, engine of decode.py", "device": jax.default_backend(), "dtype": DTYPE,
        "size": size, "beams": beams, "batch": engine.sizes.lanes(bucket),
        "sentences_per_second": count / seconds,
    }  # fmt: skip

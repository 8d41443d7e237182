"""The program of a length bucket for one device; its arguments are parameters, ids and lengths."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.programs import graph
from seq2seq.decoding.engine.requests import limits_with_prefix
from seq2seq.model.search.arguments import Prefix
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.translate import Request


def export_program(engine: Engine, bucket: int) -> tuple[Callable[..., Hypotheses], int]:
    """((variables, source [Q, bucket], lengths [Q]) → Hypotheses, Q): the program of one device
    with the length limits built in. Sampling also needs the numbers [Q] of the lines."""
    key = engine.program(bucket)
    run, forced, lengths_to_bucket = graph(key), engine.forced, np.arange(bucket + 1)
    limits, fewest = engine.max_lengths(lengths_to_bucket), engine.min_lengths(lengths_to_bucket)
    if forced:
        limits = limits_with_prefix(limits, len(forced))

    def program(
        variables: list[Any],
        source: jax.Array,
        lengths: jax.Array,
        numbers: jax.Array | None = None,
    ) -> Hypotheses:
        prefix = None
        if forced:
            number = jnp.full(len(source), len(forced))
            prefix = Prefix(jnp.tile(jnp.array(forced), (len(source), 1)), number, number)
        request = Request(
            source,
            lengths,
            jnp.asarray(limits)[lengths],
            None if fewest is None else jnp.asarray(fewest)[lengths],
            prefix,
            numbers,
        )
        return run(variables, request, engine.values)

    return program, key.lanes * engine.sizes.queue

"""A search that repeats its input and compiles in milliseconds, for tests of what surrounds it."""

from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

import jax.numpy as jnp

from seq2seq.decoding.engine import engine, programs
from seq2seq.model.search.hypotheses import Hypotheses


@contextmanager
def quick_searches(search=None):
    """A context in which engines compile `search`, by default `repeat`, in place of `translate`.
    Compiled programs of other tests are neither used nor released."""
    compiled = lru_cache(programs.PROGRAMS)(programs.compiled.__wrapped__)
    with (
        patch.object(programs, "translate", search or repeat),
        patch.object(programs, "compiled", compiled),
        patch.object(engine, "compiled", compiled),
    ):
        yield


def repeat(models, request, options, lanes):
    """The forced prefix of each sentence and the rest of its source, as each of the best."""
    length, lengths = options.max_length, request.lengths
    positions = jnp.arange(length)
    tokens = jnp.pad(request.source, ((0, 0), (0, length)))[:, :length]
    if request.prefix is not None:
        forced, number, *_ = request.prefix
        prefix = jnp.pad(forced, ((0, 0), (0, length)))[:, :length]
        tokens = jnp.where(positions < number[:, None], prefix, tokens)
        lengths = jnp.where(lengths > 0, jnp.maximum(lengths, number + 1), 0)
    shape = len(tokens), options.samples or options.nbest
    lengths = jnp.minimum(lengths, request.limits)[:, None]
    scores = jnp.broadcast_to(-jnp.arange(shape[1], dtype=jnp.float32), shape)
    repeated = jnp.broadcast_to(tokens[:, None], (*shape, length))
    return Hypotheses(repeated, jnp.broadcast_to(lengths, shape), scores, scores)

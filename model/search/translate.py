"""Encode and search: the whole decoding as one function for one compiled graph.

Axes: B sentences · S source · N beams · V vocabulary · T steps · P prefix · M models · Q queued
sentences · R sentences that are loaded together.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..checks import check_array, check_length, check_shape
from ..encoder_decoder import DecoderState, EncoderDecoder
from ..platforms import Choices, by_platform
from .arguments import Prefix, SearchOptions, Targets
from .beam_search import Queue, Step, beam_search
from .hypotheses import Hypotheses
from .sampling import sample


class Request(NamedTuple):
    """One batch to translate: what `Targets` has of each sentence, and its source.

    Rows of length 0 are padding: they come last and have no hypotheses.
    """

    source: Int[Array, "B S"]  # with the end token
    lengths: Int[Array, " B"]  # of the sources, with the end token
    limits: Int[Array, " B"]
    min_lengths: Int[Array, " B"] | None = None
    prefix: Prefix | None = None
    numbers: Int[Array, " B"] | None = None  # of the lines: samples depend on them and the seed


class Encoded(NamedTuple):
    """The sentences of a queue that B lanes take next, encoded B at a time.

    Few are kept, so that they take little memory: sentence q is row q modulo 2B (modulo B if the
    queue has at most B).
    """

    outputs: tuple[Any, ...]  # `EncoderDecoder.encode` of each model
    sentences: Int[Array, ""]  # number of those encoded until now


class QueueState(NamedTuple):
    """The state of a search in which lanes take the sentences of a queue."""

    decoders: tuple[DecoderState, ...]  # of the models
    encoded: Encoded


def ensemble(steps: Sequence[Step], weights: Float[Array, " M"] | None = None) -> Step:
    """The steps as one, with `mixture_logits`; its state is the tuple of their states."""

    def step(
        tokens: Array, states: tuple[Any, ...], t: Array, parents: Array, ancestry: Array
    ) -> tuple[Array, tuple[Any, ...]]:
        results = [
            model_step(tokens, state, t, parents, ancestry)
            for model_step, state in zip(steps, states, strict=True)
        ]
        logits, states = zip(*results, strict=True)  # M × [B, N, V]
        return mixture_logits(logits, weights), states

    return step


def mixture_logits(
    logits: Sequence[Float[Array, "B N V"]], weights: Float[Array, " M"] | None = None
) -> Float[Array, "B N V"]:
    """Logits of the mean of the models' probabilities, up to a constant.

    `weights` are positive and sum to one; None: equal weights. The logits of a single model are
    returned unchanged, so their consumers (rules, temperature, nucleus) must depend on the softmax
    only.
    """
    if len(logits) == 1:
        return logits[0]
    log_probs = jnp.stack(  # [M, B, N, V]
        [jax.nn.log_softmax(x.astype(jnp.float32), axis=-1) for x in logits]
    )
    factors = None if weights is None else weights[:, None, None, None]
    return jax.nn.logsumexp(log_probs, axis=0, b=factors)


def translate(
    models: Sequence[tuple[EncoderDecoder, Any]],
    request: Request,
    options: SearchOptions,
    lanes: int,
) -> Hypotheses:
    """The `nbest` translations of each source, best first, or samples in the order drawn.

    `models` are modules and their variables, with one vocabulary; several form an ensemble.
    `options.max_length` is at most the `longest` of each model's config. `lanes` sentences are
    searched side by side; sampling draws for all sentences side by side.
    """
    check_request(models, request, options, lanes)
    (sentences, source_length), config = request.source.shape, models[0][0].config
    lanes = sentences if options.samples else min(lanes, sentences)
    steps = [partial(model.apply, variables, method="step") for model, variables in models]
    decoder_step = ensemble(steps, options.weights)

    def step(
        tokens: Array, state: QueueState, t: Array, parents: Array, ancestry: Array
    ) -> tuple[Array, QueueState]:
        logits, decoders = decoder_step(tokens, state.decoders, t, parents, ancestry)
        return logits, state._replace(decoders=decoders)

    targets = Targets(
        start_tokens=jnp.full(sentences, config.start_id),
        limits=jnp.where(request.lengths > 0, request.limits, 0),
        min_lengths=request.min_lengths,
        prefix=request.prefix,
    )
    state = empty_queue(models, sentences, lanes, source_length, options)
    padding = -sentences % lanes  # after the last sentence, because `lanes` are encoded together
    source = jnp.pad(request.source, ((0, padding), (0, 0)))
    lengths = jnp.pad(jnp.asarray(request.lengths, jnp.int32), (0, padding))
    load = partial(load_sentences, models, source, lengths)
    if not options.samples:
        return beam_search(step, state, targets, options, Queue(lanes, load))
    assert request.numbers is not None  # `check_request`
    key = jax.random.PRNGKey(options.seed)
    keys = jax.vmap(partial(jax.random.fold_in, key))(request.numbers)  # [Q, 2]
    state = load(state, jnp.arange(lanes), jnp.arange(lanes))
    return sample(step, state, targets, keys, options)


def empty_queue(
    models: Sequence[tuple[EncoderDecoder, Any]],
    sentences: int,
    lanes: int,
    source_length: int,
    options: SearchOptions,
) -> QueueState:
    """The state before the first sentence is encoded."""
    beams = options.samples or options.beam_size
    rows = lanes * min(2, -(-sentences // lanes))
    decoders = tuple(
        DecoderState(
            model.empty_memory(lanes, source_length),
            jnp.zeros(lanes, jnp.int32),
            model.empty_caches(lanes, options.max_length, beams, options.cache_blocks),
        )
        for model, _ in models
    )
    outputs = tuple(model.empty_encoded(rows, source_length) for model, _ in models)
    return QueueState(decoders, Encoded(outputs, jnp.int32(0)))


def load_sentences(
    models: Sequence[tuple[EncoderDecoder, Any]],
    source: Int[Array, "Q S"],
    lengths: Int[Array, " Q"],
    state: QueueState,
    lanes: Int[Array, " R"],
    sentences: Int[Array, " R"],
) -> QueueState:
    """Compute the memory of R ≤ B sentences and write it to lanes, where all steps read it.

    The caches keep their values: stale entries are in no ancestry, so they stay masked, and an RNN
    does not read its state at t = 0.
    """

    def needed(encoded: Encoded) -> Bool[Array, ""]:
        return encoded.sentences < jnp.minimum(sentences[-1] + 1, len(source))

    encode = partial(encode_next, models, source, lengths, len(state.decoders[0].lengths))
    encoded = jax.lax.while_loop(needed, encode, state.encoded)

    def write_to_lanes(old: Array, new: Array) -> Array:
        return old.at[lanes].set(new, unique_indices=True)

    def loaded(
        model: EncoderDecoder, variables: Any, output: Any, decoder: DecoderState
    ) -> DecoderState:
        rows = jax.tree.map(lambda x: x[sentences % len(x)], output)  # begin with R
        memory = model.apply(variables, rows, method="memory")
        return DecoderState(
            jax.tree.map(write_to_lanes, decoder.memory, memory),
            write_to_lanes(decoder.lengths, lengths[sentences]),
            decoder.caches,
        )

    decoders = tuple(
        loaded(*model, output, decoder)
        for model, output, decoder in zip(models, encoded.outputs, state.decoders, strict=True)
    )
    return QueueState(decoders, encoded)


def encode_next(
    models: Sequence[tuple[EncoderDecoder, Any]],
    source: Int[Array, "Q S"],
    lengths: Int[Array, " Q"],
    lanes: int,
    encoded: Encoded,
) -> Encoded:
    """Encode the next sentences of the queue, as many as there are lanes; these divide Q."""

    def next_rows(x: Array) -> Array:  # [B, …]
        return jax.lax.dynamic_slice_in_dim(x, encoded.sentences, lanes)

    def write_rows(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, encoded.sentences % len(old), axis=0)

    outputs = tuple(
        jax.tree.map(write_rows, old, encode_sources(*model, next_rows(source), next_rows(lengths)))
        for model, old in zip(models, encoded.outputs, strict=True)
    )
    return Encoded(outputs, encoded.sentences + lanes)


def encode_sources(
    model: EncoderDecoder, variables: Any, source: Int[Array, "B S"], lengths: Int[Array, " B"]
) -> Any:
    """`EncoderDecoder.encode`, for as many sentences at a time as the platform suits."""
    lanes, length = source.shape

    def batch(choices: Choices) -> int:
        return max(1, min(lanes, choices.encoder_tokens // length))

    return by_platform(batch, partial(encode_batches, model, variables, source, lengths))


def encode_batches(
    model: EncoderDecoder,
    variables: Any,
    source: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    batch: int,
) -> Any:
    """`EncoderDecoder.encode`, for `batch` sentences at a time."""
    sentences, length = source.shape

    def encode(i: Array, encoded: Any) -> Any:
        start = jnp.minimum(i * batch, sentences - batch)
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=batch)
        segments = jnp.arange(length) < cut(lengths)[:, None]  # [batch, S]
        new = model.apply(variables, cut(source), segments.astype(jnp.int32), method="encode")
        write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        return jax.tree.map(write, encoded, new)

    batches = -(-(lengths > 0).sum() // batch)
    empty = model.empty_encoded(sentences, length)
    return jax.lax.fori_loop(0, batches, encode, empty)


def check_request(
    models: Sequence[tuple[EncoderDecoder, Any]],
    request: Request,
    options: SearchOptions,
    lanes: int,
) -> None:
    """Raises TypeError or ValueError that names an argument of `translate`."""
    if not models:
        raise ValueError("models must hold at least one (module, variables); got none")
    longest = min(model.config.longest for model, _ in models)
    if not 1 <= options.max_length <= longest:
        raise ValueError(
            f"max_length must be from 1 to the models' max_length, {longest}; got "
            f"{options.max_length}"
        )
    if options.end_id != (end_id := models[0][0].config.end_id):
        raise ValueError(f"end_id must be that of the models, {end_id}; got {options.end_id}")
    check_array("request.source", request.source, "integer", "B S")
    check_length("request.source", request.source, longest)
    if not request.source.size:
        raise ValueError(f"request.source must not be empty; got shape {request.source.shape}")
    if lanes < 1:
        raise ValueError(f"lanes must be at least 1; got {lanes}")
    sentences = len(request.source)
    if request.prefix is not None:
        tokens = request.prefix.tokens
        check_array("request.prefix.tokens", tokens, "integer", "B P")
        shape = sentences, tokens.shape[1]
        check_shape("request.prefix.tokens", tokens, shape, "one row for each source")
        for name in ("lengths", "free"):
            if (x := getattr(request.prefix, name)) is not None:
                check_array(f"request.prefix.{name}", x, "integer", "B")
                check_shape(f"request.prefix.{name}", x, (sentences,), "one for each source")
    for name in ("lengths", "limits", "min_lengths", "numbers"):
        if (x := getattr(request, name)) is not None:
            check_array(f"request.{name}", x, "integer", "B")
            check_shape(f"request.{name}", x, (sentences,), "one for each source")
    if options.weights is not None and len(options.weights) != len(models):
        raise ValueError(
            f"weights must hold one weight for each of {len(models)} models; got "
            f"{len(options.weights)}"
        )
    if options.samples and request.numbers is None:
        raise ValueError("request.numbers must hold a number for each source; got None")

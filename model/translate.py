"""Encode once, then search: the whole decode as one function for one compiled graph.

Axes: B sentences · S source · N beams · T steps · P prefix.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .attention import Cache, KeysValues, to_cache
from .beam_search import Queue, Step, beam_search
from .checks import check_array, check_shape
from .config import ModelConfig
from .constraints import make_rules
from .hypotheses import Hypotheses
from .sampling import sample
from .transformer import Transformer

CPU_TOKENS = 512  # encoded at once by a core; more fall out of its cache (half the speed at 1024)


class Search(NamedTuple):
    """How to search; the defaults are the paper's. `samples` above 0 draws so many hypotheses
    (model/sampling.py) instead of a beam search; the rules are those of model/constraints.py.

    alpha, temperature, top_p and repetition may be traced values; the rest is static.
    """

    beam_size: int = 4
    nbest: int = 1
    alpha: float | Array = 0.6
    power_penalty: bool = False
    horizon: int = 0
    samples: int = 0
    temperature: float | Array = 1.0
    top_k: int = 0
    top_p: float | Array = 1.0
    suppressed: tuple[int, ...] = ()
    repetition: float | Array = 1.0
    no_repeat_ngram: int = 0
    renormalize: bool = False


class Request(NamedTuple):
    """One batch to translate; lengths and limits count the end token. Rows of length 0 are no
    sentences, have no hypotheses, and come last. What is None is off and costs nothing."""

    source: Int[Array, "B S"]  # with the end token
    lengths: Int[Array, " B"]
    limits: Int[Array, " B"]  # of the target
    least: Int[Array, " B"] | None = None  # tokens of the target
    prefix: tuple[Int[Array, "B P"], Int[Array, " B"]] | None = None  # tokens and how many
    keys: Array | None = None  # [B] of samples


class Reading(NamedTuple):
    """What a model knows of the sentences in its rows: the state of its step."""

    memory: tuple[Cache, ...]  # keys and values of each layer's cross-attention
    lengths: Int[Array, " B"]  # of the sources
    caches: tuple[Cache, ...]  # [B, H, K, T·N] and [B, H, T·N, K] of each layer's self-attention


def empty_caches(config: ModelConfig, rows: int, slots: int) -> tuple[Cache, ...]:
    """Room for `slots` keys in every decoder layer."""
    zeros = jnp.zeros((rows, config.num_heads, slots, config.head_size), config.values_dtype)
    return (to_cache(KeysValues(zeros, zeros)),) * config.decoder_layers


def ancestry_mask(ancestry: Int[Array, "B N T"]) -> Bool[Array, "B 1 N T*N"]:
    """Which slots of an append-only cache each hypothesis may see.

    Slot n of step s is key s·N + n; a hypothesis sees it where n was its ancestor at s.
    """
    mine = ancestry[:, :, :, None] == jnp.arange(ancestry.shape[1])
    return mine.reshape(*ancestry.shape[:2], -1)[:, None]


def memories(model: Transformer, variables: Any, request: Request, rows: int) -> tuple[Cache, ...]:
    """The memory of every sentence, encoded `rows` at a time as far as there are sentences."""
    (sentences, length) = request.source.shape

    def encoded(rows):
        def encode(i, memories):
            at = jnp.minimum(i * rows, sentences - rows)
            cut = partial(jax.lax.dynamic_slice_in_dim, start_index=at, slice_size=rows)
            segments = jnp.arange(length) < cut(request.lengths)[:, None]
            memory = model.apply(
                variables, cut(request.source), segments.astype(jnp.int32), method="encode"
            )
            memory = map(to_cache, model.apply(variables, memory, method="memory_keys_values"))
            write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=at, axis=0)
            return jax.tree.map(write, memories, tuple(memory))

        batches = -(-(request.lengths > 0).sum() // rows)
        empty = empty_caches(model.config, sentences, length)
        return jax.lax.fori_loop(0, batches, encode, empty)

    fewer = max(1, min(rows, CPU_TOKENS // length))
    if fewer == rows:
        return encoded(rows)
    # Known when it is lowered, perhaps for several platforms (scripts/export.py).
    return jax.lax.platform_dependent(cpu=lambda: encoded(fewer), default=lambda: encoded(rows))


def search_step(model: Transformer, variables: Any) -> Step:
    """The Transformer as `beam_search`'s step: an append-only cache, masked by ancestry."""

    def step(tokens, reading, t, parents, ancestry):
        beams, source_length = tokens.shape[1], reading.memory[0].values.shape[2]
        mask = ancestry_mask(ancestry)
        memory_mask = jnp.arange(source_length) < reading.lengths[:, None]
        memory = tuple(cache.keys_values for cache in reading.memory)
        logits, caches = model.apply(
            variables, tokens, reading.caches, t * beams, t, mask, memory,
            memory_mask[:, None, None], method="step",
        )  # fmt: skip
        return logits, reading._replace(caches=caches)

    return step


def ensemble(steps: Sequence[Step]) -> Step:
    """A step with the `mixture` of several steps; its state is the tuple of their states."""

    def step(tokens, states, t, parents, ancestry):
        results = [
            one(tokens, state, t, parents, ancestry)
            for one, state in zip(steps, states, strict=True)
        ]
        logits, states = zip(*results, strict=True)
        return mixture(logits), states

    return step


def mixture(logits: Sequence[Float[Array, "B N V"]]) -> Float[Array, "B N V"]:
    """Logits of the mean of the models' probabilities (up to a constant); one model's as they are.

    Everything after it must depend on their softmax only: rules, temperature, nucleus.
    """
    if len(logits) == 1:
        return logits[0]
    return jax.nn.logsumexp(jnp.stack([jax.nn.log_softmax(x, axis=-1) for x in logits]), axis=0)


def translate(
    models: Sequence[tuple[Transformer, Any]],
    request: Request,
    search: Search,
    max_length: int,
    rows: int,
) -> Hypotheses:
    """The translations of each source: the n best, best first, or samples as drawn.

    `models` are modules and their variables, of one vocabulary: an ensemble. `max_length` is the
    static cap of the limits and must not exceed the models' own. `rows` sentences are searched
    side by side; of samples, all are.
    """
    check_request(models, request, search, max_length)
    sentences, config = len(request.source), models[0][0].config
    slots = search.samples or search.beam_size
    rows = sentences if search.samples else min(rows, sentences)
    step = ensemble([search_step(*one) for one in models])
    memory = [memories(*one, request, rows) for one in models]
    start = jnp.full(sentences, config.start_id)
    limits = jnp.where(request.lengths > 0, request.limits, 0)
    rules = make_rules(
        config.end_id,
        suppressed=search.suppressed,
        renormalize=search.renormalize,
        repetition=search.repetition,
        no_repeat_ngram=search.no_repeat_ngram,
        least=request.least,
        prefix=request.prefix,
    )

    state = tuple(
        Reading(
            jax.tree.map(lambda x: x[:rows], whole), request.lengths[:rows],
            empty_caches(model.config, rows, max_length * slots),
        )
        for (model, _), whole in zip(models, memory, strict=True)
    )  # fmt: skip
    if search.samples:
        return sample(
            step, state, start, limits, request.keys, samples=search.samples,
            max_length=max_length, end_id=config.end_id, temperature=search.temperature,
            top_k=search.top_k, top_p=search.top_p, alpha=search.alpha,
            power_penalty=search.power_penalty, rules=rules,
        )  # fmt: skip

    def load(state, row, sentence):
        """Copied once, not gathered in each step. The caches may keep what they hold: it is in
        nobody's ancestry."""
        copy = lambda old, new: old.at[row].set(new[sentence])  # noqa: E731
        return tuple(
            Reading(
                jax.tree.map(copy, one.memory, whole), copy(one.lengths, request.lengths),
                one.caches,
            )
            for one, whole in zip(state, memory, strict=True)
        )  # fmt: skip

    return beam_search(
        step, state, start, limits, beam_size=search.beam_size, max_length=max_length,
        end_id=config.end_id, alpha=search.alpha, power_penalty=search.power_penalty,
        nbest=search.nbest, rules=rules, horizon=search.horizon, queue=Queue(rows, load),
    )  # fmt: skip


def check_request(
    models: Sequence[tuple[Transformer, Any]], request: Request, search: Search, max_length: int
) -> None:
    """Raises TypeError or ValueError in terms of the arguments of `translate`."""
    if not models:
        raise ValueError("models must hold at least one (module, variables); got none")
    longest = min(model.config.max_length for model, _ in models)
    if not 1 <= max_length <= longest:
        raise ValueError(
            f"max_length must be from 1 to the models' max_length, {longest}; got {max_length}"
        )
    check_array("request.source", request.source, "integer", "B S")
    sentences = len(request.source)
    for name in ("lengths", "limits", "least"):
        if (x := getattr(request, name)) is not None:
            check_array(f"request.{name}", x, "integer", "B")
            check_shape(f"request.{name}", x, (sentences,), "one for each source")
    if search.samples and request.keys is None:
        raise ValueError("request.keys must hold a PRNG key for each source; got None")

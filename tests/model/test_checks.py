"""Public functions of model/ name wrong arguments in errors, without jaxtyping's checks.

Axes: B batch · T queries · S keys · H heads · K head width · D model width · V vocabulary.
"""

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from seq2seq.model.attention import (
    KeysValues,
    dot_product_attention,
    multi_head_attention,
    project_keys_values,
    segment_mask,
)
from seq2seq.model.cache import blockwise_attention, empty_caches, extend_cache
from seq2seq.model.config import ModelConfig
from seq2seq.model.gru import GruParams, gru
from seq2seq.model.layers import (
    FeedForwardParams,
    dropout,
    embed,
    feed_forward,
    layer_norm,
    vocabulary_logits,
)
from seq2seq.model.positions import LayerPositions, rotate, sinusoidal_positions
from seq2seq.model.rnn import (
    AdditiveAttentionParams,
    DecoderLayerParams,
    additive_attention,
    decoder_cell,
)
from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import beam_search
from seq2seq.model.search.rules import make_rules
from seq2seq.model.search.sampling import sample
from seq2seq.model.search.scoring import GivenPairs, score_targets
from seq2seq.model.transformer import Layer, Stack, Transformer
from tests.model.test_attention import B, D, H, K, S, T, normal, random_params


@pytest.fixture(autouse=True)
def without_jaxtyping():
    """Annotations are not checked, as for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


QUERIES, KEYS = normal(B, H, T, K), normal(B, H, S, K)
X, INTS = normal(B, T, D), jnp.ones((B, T), int)
ADDITIVE = jnp.where(jnp.ones((B, 1, T, S), bool), 0.0, -jnp.inf)
ATTEND = jnp.ones((B, 1, T, S), bool)


SMALL, ENCODED = ModelConfig(d_model=8, d_ff=8, num_heads=2), normal(2, 3, 8)
SHARED_BIAS = ModelConfig(d_model=8, d_ff=8, num_heads=2, positions="relative")


def attend(queries=QUERIES, keys=KEYS, values=KEYS, mask=None, bias=None):
    return dot_product_attention(queries, keys, values, mask, bias)


def heads(x=X, mask=None):
    return multi_head_attention(random_params(False), x, KeysValues(KEYS, KEYS), mask)


def layer(**options):
    config = ModelConfig(d_model=8, d_ff=8, num_heads=2, **options)
    return Layer(config).init(jax.random.key(0), ENCODED)


ADDITIVE_PARAMS = AdditiveAttentionParams(normal(D, D), normal(D, D), normal(D))


STATES, OF_STATES = normal(B, 5, D), jnp.ones((B, 1, 5), bool)


def additive(keys=STATES, values=STATES, mask=OF_STATES):
    return additive_attention(ADDITIVE_PARAMS, X, keys, values, mask)


def cached(mask, bias=None):
    return blockwise_attention(QUERIES, [KeysValues(KEYS, KEYS)], mask, bias)


def model(source=12, target=12, **changes):
    sizes = dict(d_model=8, d_ff=8, num_heads=2, num_layers=1)
    config = ModelConfig(source_vocab_size=source, target_vocab_size=target, **sizes | changes)
    return Transformer(config).init(jax.random.key(0), INTS, INTS, INTS, INTS)


def feed(x, activation):
    params = normal(D, 7), normal(7), normal(7, D), normal(D)
    return feed_forward(FeedForwardParams(*params), x, activation)


@pytest.mark.parametrize("error, message, call", [
    (TypeError, "mask must be boolean; got float32",
     lambda: attend(mask=ADDITIVE)),
    (TypeError, "mask must be boolean; got int32",
     lambda: attend(mask=ATTEND.astype(int))),
    (ValueError, r"mask must have the axes \[#B, #H, #T, S\]; got",
     lambda: attend(mask=ATTEND[:, 0])),
    (ValueError, ".* with S = 7; got", lambda: attend(mask=ATTEND[..., :1])),
    (ValueError, ".* with T = 5 or 1; got", lambda: attend(mask=ATTEND[:, :, :2])),
    (TypeError, "bias must be floating; got bool", lambda: attend(bias=ATTEND)),
    (ValueError, "bias must .* with S = 7; got", lambda: attend(bias=ADDITIVE[..., :1])),
    (ValueError, "queries must have the axes", lambda: attend(QUERIES[0])),
    (ValueError, r"keys must have the axes \[B, H, S, K\] with K = ",
     lambda: attend(QUERIES[..., :-1])),
    (ValueError, "keys must .* with B = 2", lambda: attend(keys=KEYS[:1])),
    (ValueError, "values must .* with S = 7", lambda: attend(values=KEYS[:, :, :2])),
    (TypeError, "queries must be floating; got int32", lambda: attend(QUERIES.astype(int))),
    (TypeError, "queries must be an array", lambda: attend(QUERIES.tolist())),
    (TypeError, "mask must be boolean; got float32",
     lambda: heads(mask=ADDITIVE)),
    (ValueError, "x must have the axes", lambda: heads(X[0])),
    (ValueError, "x must .* with D = 33", lambda: heads(X[..., 1:])),
    (ValueError, r"params.query_bias must have the axes \[H, K\] with K = 11",
     lambda: multi_head_attention(random_params(False)._replace(query_bias=X[0, :3, :1]), X, None)),
    (TypeError, "positions must be integer", lambda: rotate(QUERIES, normal(B, T))),
    (ValueError, "x must .* with D = 33",
     lambda: project_keys_values(random_params(False), X[..., 1:])),
    (TypeError, "query_segments must be integer; got bool",
     lambda: segment_mask(INTS > 0, INTS)),
    (ValueError, "key_segments must have the axes", lambda: segment_mask(INTS, INTS[0])),
    (ValueError, "key_segments must .* with B = 2", lambda: segment_mask(INTS, INTS[:1])),
    (ValueError, "x must have an even last axis", lambda: rotate(QUERIES, INTS)),
    (ValueError, "positions must .* with T = 5", lambda: rotate(QUERIES, INTS[:, 1:])),
    (ValueError, "layout must be one of interleaved, halves, fairseq; got 'half'",
     lambda: sinusoidal_positions(3, 4, "half")),
    (ValueError, "d_model must be even; got 5", lambda: sinusoidal_positions(3, 5)),
    (ValueError, "d_model must be at least 4 for the layout of fairseq; got 2",
     lambda: sinusoidal_positions(3, 2, "fairseq")),
    (ValueError, "suppress must not contain end_id=2 with renormalize",
     lambda: make_rules(SearchOptions(4, 2, suppress=(5, 2), renormalize=True))),
    (ValueError, "scale must .* with D = 33", lambda: layer_norm(X, X[0, 0, :1], X[0, 0], 1e-6)),
    (ValueError, "activation must be one of relu, gelu, gelu_tanh, silu; got 'tanh'",
     lambda: feed(X, "tanh")),
    (ValueError, "x must have the axes", lambda: feed(X[0], "relu")),
    (TypeError, "ids must be integer; got float32", lambda: embed(X[0], X[..., 0], True)),
    (ValueError, "table must .* with D = 33", lambda: vocabulary_logits(X, normal(4, D + 1))),
    (ValueError, r"rate must be in \[0, 1\); got 1.0",
     lambda: dropout(X, 1.0, jax.random.key(0))),
    (TypeError, "target must be integer",
     lambda: score_targets([], GivenPairs(INTS, INTS[:, 0], X[0], INTS[:, 0]))),
    (ValueError, "target_lengths must have the shape",
     lambda: score_targets([], GivenPairs(INTS, INTS[:, 0], INTS, INTS[0]))),
    (TypeError, r"memory must be layer.memory_of\(memory\), .*; got shape \(2, 3, 8\)",
     lambda: Layer(SMALL).init(jax.random.key(0), ENCODED, memory=ENCODED)),
    (TypeError, r"memory must be stack.memory_of\(memory\), .*; got tuple",
     lambda: Stack(SMALL, 2).init(jax.random.key(0), ENCODED, None, INTS[:2, :3], (ENCODED,))),
    (TypeError, "mask must be boolean", lambda: cached(ADDITIVE)),
    (TypeError, r"mask must be an array \[#B #H #T S\]; got NoneType", lambda: cached(None)),
    (ValueError, "mask must have the shape .*, S of all blocks", lambda: cached(ATTEND[..., :1])),
    (ValueError, "bias must .* with S = 7", lambda: cached(ATTEND, ADDITIVE[..., :1])),
    (ValueError, "index must .* with B = 2",
     lambda: extend_cache(empty_caches(SMALL, 2, 40)[0], KeysValues(*[normal(2, 2, 1, 4)] * 2),
                          INTS[0, :1])),
    (TypeError, "positions must be those of x, .* for rotary positions; got None",
     lambda: layer(positions="rotary")),
    (TypeError, "positions must be LayerPositions with the bias of alibi positions; got None",
     lambda: layer(positions="alibi")),
    (TypeError, "positions must be LayerPositions with the bias of relative positions; got Layer",
     lambda: Layer(SHARED_BIAS).init(jax.random.key(0), ENCODED, None, LayerPositions(INTS))),
    (TypeError, "positions must be those of x with a cache; got None",
     lambda: Layer(SMALL).init(jax.random.key(0), ENCODED, cache=empty_caches(SMALL, 2, 3)[0])),
    (TypeError, "a decoder layer with attention needs keys_values and mask; got None",
     lambda: decoder_cell(DecoderLayerParams(None, ADDITIVE_PARAMS, normal(D, 3, D)), None, X)),
    (ValueError, r"keys must have the axes \[B, S, D\] with B = 2",
     lambda: additive(keys=normal(1, 5, D))),
    (ValueError, "values must .* with S = 5", lambda: additive(values=normal(B, 4, D))),
    (ValueError, r"mask must have the axes \[#B, #N, S\] with S = 5",
     lambda: additive(mask=jnp.ones((B, 1, 1), bool))),
    (TypeError, "starts must be boolean; got int32",
     lambda: gru(GruParams(normal(D, 3, D), normal(D, 3, D), normal(3, D), normal(D)), X, INTS)),
    (ValueError, "model.tied_embeddings=three-way needs one vocabulary", lambda: model(target=8)),
    (ValueError, "d_model must be a multiple of num_heads", lambda: model(num_heads=3)),
    (ValueError, "model.source_vocab_size and target_vocab_size must be set",
     lambda: model(source=0, target=0)),
    (ValueError, r"source must have at most max_length=2 tokens in a row; got shape \(",
     lambda: model(max_length=2)),
])  # fmt: skip
def test_an_error_names_the_wrong_argument(error, message, call):
    with pytest.raises(error, match=f"^{message}"):
        jax.eval_shape(call)


def step(tokens, state, t, parents, ancestry):
    return jnp.zeros((*tokens.shape, 5)), state


SEARCH = dict(
    step=step,
    state=jnp.zeros(3),
    start_tokens=jnp.ones(3, int),
    limits=jnp.full(3, 4),
    max_length=4,
    end_id=2,
)


@pytest.mark.parametrize("error, message, change", [
    (ValueError, "end_id must be from 0 to 4, as step returns logits of 5 tokens; got 5",
     dict(end_id=5)),
    (ValueError, "end_id must be from 0 to 4", dict(end_id=-1)),
    (ValueError, r"limits must have the shape \(3,\), one for each of start_tokens; got \(4,\)",
     dict(limits=jnp.full(4, 4))),
    (TypeError, "limits must be integer; got float32", dict(limits=jnp.full(3, 4.0))),
    (TypeError, "start_tokens must be integer; got float32", dict(start_tokens=jnp.ones(3))),
    (ValueError, r"start_tokens must have the axes \[B\]",
     dict(start_tokens=jnp.ones((3, 1), int))),
    (ValueError, "start_tokens must hold at least one sentence; got none",
     dict(start_tokens=jnp.ones(0, int), limits=jnp.ones(0, int))),
    (ValueError, "max_length must be at least 1|samples and max_length", dict(max_length=0)),
    (TypeError, r"step must return \(logits, state\); got",
     dict(step=lambda *a: step(*a)[0])),
    (TypeError, r"step must return \(logits, state\); got tuple",
     dict(step=lambda *a: (*step(*a), None))),
    (ValueError, r"logits of step must have the axes \[B, N, V\]",
     dict(step=lambda *a: (step(*a)[0][:, 0], a[1]))),
    (ValueError, "logits of step must have the shape",
     dict(step=lambda *a: (step(*a)[0][:1], a[1]))),
    (TypeError, "logits of step must be floating",
     dict(step=lambda *a: (step(*a)[0].astype(int), a[1]))),
    (ValueError, "step must return a state of the same structure and shapes as its argument",
     dict(step=lambda *a: (step(*a)[0], a[1][1:]))),
    (ValueError, "step must return a state of the same structure",
     dict(step=lambda *a: (step(*a)[0], {"x": a[1]}))),
])  # fmt: skip
def test_an_error_of_a_search_names_the_wrong_argument(error, message, change):
    arguments = SEARCH | change
    with pytest.raises(error, match=f"^({message})"):
        jax.eval_shape(lambda: searched(arguments))
    with pytest.raises(error, match=f"^({message})"):
        jax.eval_shape(lambda: drawn(arguments, 3))


def split_arguments(step, state, start_tokens, limits, max_length, end_id):
    """The step, its state, the targets and the options of a search."""
    options = SearchOptions(max_length, end_id, beam_size=2, samples=2)
    return step, state, Targets(start_tokens, limits), options


def searched(arguments):
    return beam_search(*split_arguments(**arguments))


def drawn(arguments, keys):
    """Two samples of each sentence."""
    *others, options = split_arguments(**arguments)
    return sample(*others, jax.random.split(jax.random.key(0), keys), options)


def test_sampling_needs_one_key_per_sentence_and_right_arguments_pass():
    with pytest.raises(ValueError, match="^keys must have the shape"):
        jax.eval_shape(lambda: drawn(SEARCH, 4))
    jax.eval_shape(lambda: (attend(mask=ATTEND), heads(mask=ATTEND), segment_mask(INTS, INTS)))
    jax.eval_shape(lambda: searched(SEARCH))

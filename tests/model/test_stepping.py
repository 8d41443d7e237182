"""Stepping through a cache equals teacher forcing, for any history of the hypotheses.

Axes: B batch · N beams · V vocabulary.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.cache import ancestry_mask, empty_caches
from seq2seq.model.encoder_decoder import DecoderState
from seq2seq.model.transformer import Stack, Transformer
from tests.support.marks import slow_except
from tests.support.models.small_transformer import (
    POSITIONS,
    SMALL,
    V,
    ids,
    variables_of,
    with_positions,
)

# Random histories: each slot continues a random slot with a random token.

STEPS, BEAMS, SENTENCES = 7, 3, 2
# Both kinds of a bias. test_translate.py has other positions, the other norm, and mixed.
FAST = [("pre", "relative", "float32"), ("pre", "alibi", "bfloat16")]
# Each kind of positions with each dtype, and with each norm.
STEPPING = [
    *zip(("post", "pre") * 3, POSITIONS, ("float32",) * 6, strict=True),
    *zip(("pre", "post") * 3, POSITIONS, ("bfloat16",) * 6, strict=True),
    *zip(("post", "pre") * 3, POSITIONS, ("mixed",) * 6, strict=True),
]


def random_histories():
    """tokens, parents [T, B, N] and ancestry [T, B, N, T], as in the steps of `beam_search`."""
    random = np.random.default_rng(5)
    tokens = random.integers(0, V, (STEPS, SENTENCES, BEAMS))
    tokens[0] = SMALL.start_id
    parents = random.integers(0, BEAMS, tokens.shape)
    ancestry = np.full((STEPS, SENTENCES, BEAMS, STEPS), -1)
    for t, b, n in np.ndindex(tokens.shape):
        if t:
            ancestry[t, b, n] = ancestry[t - 1, b, parents[t, b, n]]
        ancestry[t, b, n, t] = n
    return tokens, parents, ancestry


@pytest.mark.parametrize("norm, positions, dtype", slow_except(FAST, STEPPING))
def test_stepping_with_the_cache_equals_teacher_forcing(norm, positions, dtype, monkeypatch):
    """With relative positions there are two layers, and the cache has several blocks."""
    layers = 2 if positions == "relative" else 1
    if positions == "relative":
        monkeypatch.setattr("seq2seq.model.cache.MIN_STEPS", 1)
    config = with_positions(positions, norm=norm, num_decoder_layers=layers, dtype=dtype)
    model, variables = Transformer(config), variables_of(replace(config, dtype="float32"))
    tokens, parents, ancestry = random_histories()
    source = ids(SENTENCES, 5)
    segments = (np.arange(5) < np.array([[5], [3]])).astype(np.int32)

    @jax.jit
    def stepping(variables, histories):
        encoder_segments = jnp.asarray(segments)
        encoded = model.apply(variables, source, encoder_segments, method="encode")
        memory = model.apply(variables, encoded, method="memory")
        caches = model.empty_caches(SENTENCES, STEPS, BEAMS)
        state = DecoderState(memory, encoder_segments.sum(axis=1), caches)
        step = partial(model.apply, variables, method="step")

        def scan_step(state, inputs):
            t, tokens, parents, ancestry = inputs
            slots = jnp.full(SENTENCES, t)
            logits, state = step(tokens, state, slots, parents, ancestry)
            return state, logits

        return jax.lax.scan(scan_step, state, histories)[1]

    # Teacher forcing of the tokens of each slot's ancestors, for every slot of every step.
    target = np.zeros((*tokens.shape, STEPS), np.int32)
    for t, b, n in np.ndindex(tokens.shape):
        for s in range(t + 1):
            target[t, b, n, s] = tokens[s, b, ancestry[t, b, n, s]]
    target = target.reshape(-1, STEPS)
    sentence = np.tile(np.repeat(np.arange(SENTENCES), BEAMS), STEPS)
    forced = jax.jit(model.apply)(
        variables, np.asarray(source)[sentence], target, segments[sentence], np.ones_like(target)
    )
    forced = np.asarray(forced).reshape(*tokens.shape, STEPS, V)

    histories = tuple(map(jnp.asarray, (np.arange(STEPS), tokens, parents, ancestry)))
    stepped = np.asarray(stepping(variables, histories))
    assert stepped.dtype == forced.dtype == jnp.float32
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for t in range(STEPS):
        expected = forced[t, :, :, t]
        assert expected.std() > 0.5
        np.testing.assert_allclose(stepped[t], expected, atol=tolerance, rtol=tolerance)


def test_a_stack_without_memory_gives_the_same_in_steps_as_at_once():
    config = replace(SMALL, norm="pre", positions="rotary")
    stack, random = Stack(config, 1), np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(SENTENCES, STEPS, 30)), jnp.float32)
    positions = jnp.asarray(np.tile(np.arange(STEPS), (SENTENCES, 1)))
    mask = jnp.asarray(np.tril(np.ones((1, 1, STEPS, STEPS), bool)))
    shapes = jax.eval_shape(stack.init, jax.random.key(1), x, mask, positions)
    layer = shapes["params"]["layers_0"]
    assert {name for name in layer if "cross" in name} == set()
    variables = {"params": variables_of(config)["params"]["encoder"]}
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, shapes)

    def scan_step(variables, caches, t):
        ancestry = jnp.where(jnp.arange(STEPS) <= t, 0, -1)
        mask = ancestry_mask(jnp.broadcast_to(ancestry, (SENTENCES, 1, STEPS)))
        now, slots = x[:, t][:, None], jnp.full(SENTENCES, t)
        y, caches = stack.apply(variables, now, mask, slots[:, None], caches=caches)
        return caches, y[:, 0]

    @jax.jit
    def run(variables):
        caches, steps = empty_caches(config, SENTENCES, STEPS), jnp.arange(STEPS)
        _, stepped = jax.lax.scan(partial(scan_step, variables), caches, steps)
        return stepped, stack.apply(variables, x, mask, positions)[0]

    stepped, at_once = run(variables)
    np.testing.assert_allclose(np.swapaxes(stepped, 0, 1), at_once, atol=1e-5)


def test_the_layers_share_one_trace_of_attention_to_the_cache():
    config = replace(SMALL, num_decoder_layers=3)
    model, zeros = Transformer(config), jnp.zeros(SENTENCES, jnp.int32)
    caches = empty_caches(config, SENTENCES, STEPS, BEAMS)
    memory = tuple(layer.blocks[0] for layer in caches)
    tokens, parents, ancestry = map(jnp.asarray, random_histories())

    def step(variables):
        state = DecoderState(memory, jnp.ones_like(zeros), caches)
        inputs = tokens[0], state, zeros, parents[0], ancestry[0]
        return model.apply(variables, *inputs, method="step")[0]

    equations = jax.make_jaxpr(step)(variables_of(config)).eqns
    traces = [e.params["jaxpr"] for e in equations if e.params.get("name") == "attend_to_cache"]
    assert len(traces) == 3 and len(set(map(id, traces))) == 1

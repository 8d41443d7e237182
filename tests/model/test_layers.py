"""The small layers against NumPy, and the modules against the functions.

Axes: B batch · T time · D model width · F feed-forward width · V vocabulary.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.config import CHOICES, ModelConfig
from seq2seq.model.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    FeedForwardParams,
    LayerNorm,
    RmsNorm,
    embed,
    feed_forward,
    layer_norm,
    rms_norm,
    vocabulary_logits,
)

B, T, D, F, V = 2, 5, 13, 17, 23
CONFIG = ModelConfig(d_model=D, d_ff=F, num_heads=1)

NUMPY_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def normal(*shape, seed=0):
    random = np.random.default_rng([seed, *shape])
    return jax.device_put(random.standard_normal(shape).astype(np.float32))


def float64(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def feed_forward_params():
    return FeedForwardParams(normal(D, F), normal(F), normal(F, D), normal(D))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_layer_norm_equals_the_formula(epsilon):
    x, scale, bias = 3.0 * np.asarray(normal(B, T, D)) + 7.0, normal(D, seed=1), normal(D, seed=2)
    a, s, b = float64(x, scale, bias)
    expected = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + epsilon)
    np.testing.assert_allclose(
        jax.jit(layer_norm, static_argnums=3)(x, scale, bias, epsilon), expected * s + b, atol=1e-5
    )


def test_a_norm_of_bfloat16_is_computed_in_float32_and_rounded_once():
    x = (np.asarray(normal(B, T, 257)) + 3.0).astype(jnp.bfloat16)
    scale, bias = normal(257, seed=1), normal(257, seed=2)
    a, s, b = float64(x, scale, bias)
    centred = (a - a.mean(-1, keepdims=True)) / a.std(-1, keepdims=True)
    of_rms = a / np.sqrt((a**2).mean(-1, keepdims=True))
    for norm, arguments, expected in (
        (layer_norm, (scale, bias), centred * s + b),
        (rms_norm, (scale,), of_rms * s),
    ):
        got = jax.jit(norm, static_argnums=1 + len(arguments))(x, *arguments, 1e-6)
        assert got.dtype == jnp.bfloat16
        got = np.asarray(got).astype(np.float32)
        np.testing.assert_allclose(got, expected, rtol=2**-8, atol=1e-5)


def test_every_choice_of_activation_is_implemented():
    assert set(ACTIVATIONS) == set(CHOICES["activation"]) == set(NUMPY_ACTIVATIONS)


@pytest.mark.parametrize("activation", CHOICES["activation"])
def test_feed_forward_equals_equation_2_with_each_activation(activation):
    params, x = feed_forward_params(), normal(B, T, D, seed=5)
    inner, inner_bias, outer, outer_bias, a = float64(*params[:4], x)
    expected = NUMPY_ACTIVATIONS[activation](a @ inner + inner_bias) @ outer + outer_bias
    got = jax.jit(feed_forward, static_argnums=2)(params, x, activation)
    np.testing.assert_allclose(got, expected, atol=2e-5)
    if activation == "relu":  # the default, as in the paper
        np.testing.assert_allclose(jax.jit(feed_forward)(params, x), expected, atol=2e-5)


@pytest.mark.parametrize("scale", [True, False])
def test_embeddings_are_rows_times_the_root_of_d_model(scale):
    table, ids = normal(V, D), np.array([[3, 0, 22, 3, 1], [7, 7, 2, 19, 4]])
    got = jax.jit(embed, static_argnums=2)(table, ids, scale)
    expected = np.asarray(table)[ids] * (math.sqrt(13) if scale else 1.0)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    narrow = jax.eval_shape(partial(embed, scale=scale, dtype="bfloat16"), table, ids)
    assert narrow.dtype == jnp.bfloat16


def test_logits_are_products_with_the_embeddings_in_the_dtype_of_x():
    x, table, bias = normal(B, T, D), normal(V, D), normal(V)
    a, e, b = float64(x, table, bias)
    narrow = [np.asarray(array).astype(jnp.bfloat16) for array in (x, table)]

    @jax.jit
    def run(x, table, bias, narrow, rounded):
        inputs = (x, table), (x, table, bias), (rounded, narrow[1]), narrow
        return [vocabulary_logits(*arrays) for arrays in inputs]

    rounded = narrow[0].astype(np.float32)
    plain, biased, wide, got = jax.device_get(run(x, table, bias, narrow, rounded))
    np.testing.assert_allclose(plain, a @ e.T, atol=1e-5)
    np.testing.assert_allclose(biased, a @ e.T + b, atol=1e-5)
    a, e = float64(*narrow)
    np.testing.assert_allclose(wide, a @ e.T, atol=1e-5)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), a @ e.T, rtol=2**-8)


def test_modules_equal_their_functions_bit_for_bit():
    x, ids = normal(B, T, D), jnp.asarray([[3, 0, 22, 3, 1], [7, 7, 2, 19, 4]])
    scale, shift, table, bias = normal(D, seed=1), normal(D, seed=2), normal(V, D), normal(V)
    params = feed_forward_params()
    embedding = Embedding(CONFIG, V)
    cases = [
        (
            LayerNorm(CONFIG),
            {"scale": scale, "bias": shift},
            (x,),
            "__call__",
            lambda x: layer_norm(x, scale, shift, CONFIG.layer_norm_epsilon),
        ),
        (
            FeedForward(CONFIG),
            {name: x for name, x in params._asdict().items() if x is not None},
            (x,),
            "__call__",
            lambda x: feed_forward(params, x, "relu"),
        ),
        (embedding, {"table": table}, (ids,), "__call__", lambda ids: embed(table, ids, True)),
        (
            embedding,
            {"table": table},
            (x, bias),
            "to_logits",
            lambda x, bias: vocabulary_logits(x, table, bias),
        ),
    ]
    for module, params_of, inputs, method, function in cases:
        variables = {"params": params_of}
        got = jax.jit(partial(module.apply, variables, method=method))(*inputs)
        assert np.array_equal(got, jax.jit(function)(*inputs))
        init = partial(module.init, jax.random.key(0), method=method)
        assert jax.tree.map(jnp.shape, variables) == jax.tree.map(
            jnp.shape, jax.eval_shape(init, *inputs)
        )


def test_layers_are_initialised_as_in_the_paper_and_its_libraries():
    config = ModelConfig(d_model=101, d_ff=211, num_heads=1, gated_feed_forward=True)
    modules = LayerNorm(config), RmsNorm(config), FeedForward(config), Embedding(config, 997)

    @jax.jit
    def initialised(key):
        x, ids = jnp.zeros((1, 1, 101)), jnp.zeros((1, 1), jnp.int32)
        inputs = zip(modules, (x, x, x, ids), strict=True)
        return [module.init(key, *arguments)["params"] for module, *arguments in inputs]

    norm, rms, feed, embedding = jax.device_get(initialised(jax.random.key(0)))
    assert (
        np.all(norm["scale"] == 1.0) and np.all(norm["bias"] == 0.0) and np.all(rms["scale"] == 1)
    )
    table = embedding["table"]
    assert abs(table.std() * 101**0.5 - 1.0) < 0.02 and abs(table.mean()) < 0.002
    limit = (6 / (101 + 211)) ** 0.5  # Xavier uniform
    for name in ("inner", "outer", "gate"):
        assert 0.99 * limit < np.abs(feed[name]).max() <= limit
        assert abs(feed[name].std() - limit / 3**0.5) < 0.02 * limit
    assert not feed["inner_bias"].any() and not feed["outer_bias"].any()

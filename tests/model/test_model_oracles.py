"""Oracles for the epsilon of layer norm, the attention for alignments, and sample scores.

Axes: B sentences · N samples · V vocabulary · D model width.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.config import ModelConfig
from seq2seq.model.layers import LayerNorm
from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.sampling import sample
from seq2seq.model.search.scoring import GivenPairs, score_targets
from seq2seq.model.transformer import Transformer
from tests.support.marks import slow_except
from tests.support.models.small_transformer import SMALL, ids, variables_of


@pytest.mark.parametrize("epsilon", [1e-6, 1e-1])
def test_the_layer_norm_module_uses_the_configured_epsilon(epsilon):
    x = np.random.default_rng(0).normal(0, 0.3, (2, 5, 13)).astype(np.float32)
    module = LayerNorm(ModelConfig(d_model=13, num_heads=1, layer_norm_epsilon=epsilon))
    scale, bias = np.linspace(0.5, 2, 13), np.linspace(-1, 1, 13)
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + bias
    output = jax.jit(module.apply)({"params": params}, x)
    np.testing.assert_allclose(output, expected, atol=1e-5)


# Alignment: the attention of the second to last layer.


@partial(jax.jit, static_argnums=0)
def attention(config, *params, weights=None):
    """The attention of an ensemble, without and with weights, if there are some."""
    models = [(Transformer(config), {"params": model}) for model in params]
    pairs = GivenPairs(ids(2, 7), jnp.array([7, 5]), ids(2, 6), jnp.array([6, 4]))
    usual = SearchOptions(LIMIT, END)
    of_each = (usual,) if weights is None else (usual, usual._replace(weights=weights))
    return [score_targets(models, pairs, options).attention for options in of_each]


def reversed_params(params):
    return jax.tree.map(lambda x: np.asarray(x)[::-1] + np.float32(0.1), params)


def changed(params, layer, name):
    """The parameters with changed ones in a part of a decoder layer."""
    changed_part = reversed_params(params["decoder"][layer][name])
    decoder = params["decoder"] | {layer: params["decoder"][layer] | {name: changed_part}}
    return params | {"decoder": decoder}


def test_the_attention_of_an_ensemble_is_the_mean_of_its_models():
    params = variables_of(SMALL)["params"]
    models = params, reversed_params(params)
    first, second = (np.asarray(attention(SMALL, model)[0]) for model in models)
    assert not np.allclose(first, second, atol=1e-2)
    equal, weighted = attention(SMALL, *models, weights=np.float32([0.8, 0.2]))
    np.testing.assert_allclose(equal, (first + second) / 2, atol=1e-6)
    np.testing.assert_allclose(weighted, 0.8 * first + 0.2 * second, atol=1e-6)


@pytest.mark.parametrize("layers, chosen", slow_except([(1, 0), (3, 1)], [(1, 0), (2, 0), (3, 1)]))
def test_alignments_use_the_attention_of_the_second_to_last_layer(layers, chosen):
    """It depends on the cross-attention of that layer and on no part of a later layer."""
    config = replace(SMALL, num_decoder_layers=layers if layers > 1 else 0)
    params = variables_of(config)["params"]
    usual = np.asarray(attention(config, params)[0])
    expected = np.ones((2, 6))
    expected[1, 4:] = 0.0  # beyond the target
    np.testing.assert_allclose(usual.sum(-1), expected, atol=1e-5)
    assert (usual[1, :, 5:] == 0).all()  # beyond the source
    (weights,) = attention(config, changed(params, f"layers_{chosen}", "cross_attention"))
    assert np.abs(weights - usual).max() > 1e-3
    for later in range(chosen + 1, layers):
        for name in params["decoder"][f"layers_{later}"]:
            (weights,) = attention(config, changed(params, f"layers_{later}", name))
            np.testing.assert_array_equal(weights, usual)


# Scores of samples.

START, END, LIMIT = 1, 2, 6


@partial(jax.jit, static_argnames="power")
def drawn(table, alpha, power):
    def step(tokens, state, t, parents, ancestry):
        return table[tokens], state

    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(2))
    options = SearchOptions(LIMIT, END, samples=40, alpha=alpha, power_penalty=power)
    return sample(step, None, Targets(jnp.full(2, START), jnp.array([LIMIT, 4])), keys, options)


@pytest.mark.parametrize("alpha, power", [(0.6, False), (1.0, True), (0.0, False)])
def test_the_score_of_a_sample_is_its_log_probability_divided_by_the_penalty_of_its_length(
    alpha, power
):
    """The length counts the end token."""
    table = np.random.default_rng(0).normal(0, 1, (5, 5)).astype(np.float32)
    samples = jax.device_get(drawn(table, np.float32(alpha), power))
    log_table = table - np.log(np.exp(table).sum(-1, keepdims=True))
    lengths = set()
    for tokens, score, log_prob in zip(
        *(x.reshape(80, -1) for x in (samples.tokens, samples.scores, samples.log_probs)),
        strict=True,
    ):
        length = tokens.tolist().index(END) + 1
        path = [START, *tokens[:length].tolist()]
        expected = sum(
            log_table[token, following] for token, following in zip(path, path[1:], strict=False)
        )
        penalty = length**alpha if power else ((5 + length) / 6) ** alpha
        assert log_prob == pytest.approx(expected, abs=1e-4)
        assert score == pytest.approx(expected / penalty, abs=1e-4)
        lengths.add(length)
    assert lengths == set(range(1, LIMIT + 1))

"""torch.nn.Transformer with the same weights gives the same logits, and the same loss.

Axes: B batch · S source · T target · D model width · V vocabulary.
"""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.config import ModelConfig
from seq2seq.model.positions import sinusoidal_positions
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import cross_entropy
from tests.support.models.random_parameters import random_params

torch = pytest.importorskip("torch")

B, S, T, V = 3, 7, 11, 37
CONFIG = ModelConfig(
    source_vocab_size=V,
    target_vocab_size=V,
    d_model=30,
    d_ff=43,
    num_heads=3,
    num_layers=2,
    num_decoder_layers=3,
    max_length=13,
    attention_bias=True,
    layer_norm_epsilon=1e-5,
)
LENGTHS = np.array([7, 4, 2]), np.array([11, 5, 1])


def random_ids(length):
    return np.random.default_rng(length).integers(4, V, (B, length))


def tensor(x):
    return torch.from_numpy(np.array(x))


def copy_attention(params, module):
    """[D, H, K] → rows of in_proj_weight, which torch multiplies from the right."""
    flat = {name: np.asarray(p) for name, p in params.items()}
    size = module.embed_dim
    names = ("query", "key", "value")
    weights = [flat[name].reshape(size, -1).T for name in names]
    biases = [flat[f"{name}_bias"].ravel() for name in names]
    module.in_proj_weight.copy_(tensor(np.concatenate(weights)))
    module.in_proj_bias.copy_(tensor(np.concatenate(biases)))
    module.out_proj.weight.copy_(tensor(flat["output"].reshape(-1, size).T))
    module.out_proj.bias.copy_(tensor(flat["output_bias"]))


def copy_norm(params, module):
    module.weight.copy_(tensor(params["scale"]))
    module.bias.copy_(tensor(params["bias"]))


def copy_layer(params, module):
    copy_attention(params["self_attention"], module.self_attn)
    around = ["around_self", "around_feed_forward"]
    if "cross_attention" in params:
        copy_attention(params["cross_attention"], module.multihead_attn)
        around.insert(1, "around_cross")
    for i, name in enumerate(around, 1):
        copy_norm(params[name]["norm"], getattr(module, f"norm{i}"))
    feed = params["feed_forward"]
    module.linear1.weight.copy_(tensor(feed["inner"]).T)
    module.linear1.bias.copy_(tensor(feed["inner_bias"]))
    module.linear2.weight.copy_(tensor(feed["outer"]).T)
    module.linear2.bias.copy_(tensor(feed["outer_bias"]))


def torch_transformer(config, params):
    torch_model = torch.nn.Transformer(
        config.d_model,
        config.num_heads,
        config.num_layers,
        config.decoder_layers,
        config.d_ff,
        dropout=0.0,
        activation=config.activation,
        layer_norm_eps=config.layer_norm_epsilon,
        batch_first=True,
        norm_first=config.norm == "pre",
    )
    with torch.no_grad():
        for side, stack in (("encoder", torch_model.encoder), ("decoder", torch_model.decoder)):
            for i, layer in enumerate(stack.layers):
                copy_layer(params[side][f"layers_{i}"], layer)
            if config.norm == "pre":
                copy_norm(params[side]["norm"], stack.norm)
            else:
                stack.norm = None  # torch adds a norm after the last layer; the paper does not
    return torch_model


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm, activation", [("post", "relu"), ("pre", "gelu")])
def test_logits_equal_those_of_torch_with_the_same_weights(norm, activation):
    config = replace(CONFIG, norm=norm, activation=activation)
    params = random_params(config, deviation=0.3, mean_scale=1.0)
    source, target = random_ids(S), random_ids(T)
    real = [np.arange(n) < lengths[:, None] for n, lengths in zip((S, T), LENGTHS, strict=True)]
    logits = jax.jit(Transformer(config).apply)(
        {"params": params}, *map(jnp.asarray, (source, target, *(r.astype(np.int32) for r in real)))
    )

    table = np.asarray(params["target_embedding"]["table"])
    positions = sinusoidal_positions(config.max_length, config.d_model)

    def enter(ids):
        scale = np.float32(math.sqrt(config.d_model))
        return tensor(table[ids] * scale + positions[: ids.shape[1]])

    torch_model = torch_transformer(config, params)
    with torch.no_grad():
        hidden = torch_model(
            enter(source),
            enter(target),
            tgt_mask=torch.ones(T, T, dtype=bool).triu(1),  # True: may not be attended to
            src_key_padding_mask=tensor(~real[0]),
            memory_key_padding_mask=tensor(~real[0]),
        )
        expected = (hidden @ tensor(table).T).numpy()
    assert expected[real[1]].std() > 0.5
    np.testing.assert_allclose(logits[real[1]], expected[real[1]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_loss_and_its_gradient_equal_label_smoothed_cross_entropy_of_torch(smoothing):
    random = np.random.default_rng(1)
    scores, labels = random.standard_normal((B, T, V)).astype(np.float32) * 3, random_ids(T)
    weights = (np.arange(T) < LENGTHS[1][:, None]).astype(np.float32)
    loss = lambda x: cross_entropy(x, jnp.asarray(labels), jnp.asarray(weights), smoothing)  # noqa: E731
    sums = jax.jit(loss)(jnp.asarray(scores))
    gradient = jax.jit(jax.grad(lambda x: loss(x).loss))(jnp.asarray(scores))

    torch_scores = tensor(scores).requires_grad_()
    ignored = tensor(np.where(weights > 0, labels, -100)).flatten()
    both = partial(
        torch.nn.functional.cross_entropy, torch_scores.flatten(0, 1), ignored, reduction="sum"
    )
    expected = both(label_smoothing=smoothing)
    expected.backward()
    np.testing.assert_allclose(sums.loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(sums.nll, both().item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, torch_scores.grad, atol=1e-5)
    assert sums.tokens == weights.sum()

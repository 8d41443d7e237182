"""Parameters prepared for inference give the same bits, and no program casts a weight."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_transformer import variables_of

from model.config import ModelConfig
from model.inference import inference_variables
from model.kinds import make_model

# Sizes that tell weights from activations: [B, T] = [2, 3], widths of at least 6.
SIZES = dict(d_model=8, d_ff=24, num_heads=2, num_layers=2, max_length=16)
MODELS = {
    "tied": {},
    "learned": {"positions": "learned", "norm": "pre", "output_bias": True},
    "two-way": {"tied_embeddings": "two-way", "source_vocab_size": 9},
    "untied": {"tied_embeddings": "none", "source_vocab_size": 9},
    "rnn": {"kind": "rnn"},
    "rnn_attention": {"kind": "rnn_attention", "tied_embeddings": "none"},
}


def prepared(options, dtype):
    """(model, its inputs, float32 variables, prepared variables)."""
    sizes = {"source_vocab_size": 11, "target_vocab_size": 11} | SIZES
    if "kind" in options:
        del sizes["d_ff"], sizes["num_heads"]
    config = ModelConfig(**sizes | options, dtype=dtype)
    model, tokens = make_model(config), jnp.array([[5, 6, 7], [8, 4, 2]])
    inputs = tokens, tokens, jnp.ones_like(tokens), jnp.ones_like(tokens)
    variables = variables_of(config)
    params = jax.device_get(variables["params"])
    return model, inputs, variables, inference_variables(config, params)


@pytest.mark.parametrize("dtype", ["float32", "mixed", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_bits_of_the_original_parameters(name, dtype):
    model, inputs, variables, found = prepared(MODELS[name], dtype)
    run = jax.jit(model.apply)
    np.testing.assert_array_equal(run(found, *inputs), run(variables, *inputs))


@pytest.mark.parametrize("name", MODELS)
def test_no_weight_is_cast_or_transposed_in_a_program(name):
    model, inputs, variables, found = prepared(MODELS[name], "mixed")
    weights = {
        "x".join(map(str, x.shape)) for x in jax.tree.leaves(found) if x.dtype == jnp.bfloat16
    }

    def cast(variables):
        text = jax.jit(model.apply).lower(variables, *inputs).as_text()
        shapes = re.findall(r"convert .*tensor<([0-9x]+)xf32>\) -> tensor<[0-9x]+xbf16>", text)
        return set(shapes) & weights

    assert cast(variables) and not cast(found)


def test_lookups_and_norms_keep_float32():
    found = prepared(MODELS["learned"], "bfloat16")[-1]
    kept = {
        path[-1].key
        for path, x in jax.tree.leaves_with_path(found["params"])
        if x.dtype == np.float32
    }
    assert kept - {"table", "scale"} and all(
        name in ("table", "scale") or name.endswith("bias") for name in kept
    )
    tables = found["params"]["target_embedding"]["table"], found["params"]["decoder"]
    assert tables[0].dtype == np.float32 and "layers_0" in tables[1]


def test_arrays_that_do_not_change_are_not_copied():
    model, _, variables, _ = prepared({}, "float32")
    params = jax.device_get(variables["params"])
    found = inference_variables(model.config, params)
    same = jax.tree.map(np.shares_memory, found["params"], params)
    assert all(jax.tree.leaves(same))
    (transposed,) = jax.tree.leaves(found["inference"])
    assert np.shares_memory(transposed, params["target_embedding"]["table"])


def test_narrow_weights_are_refused_by_a_model_of_float32():
    config = prepared({}, "float32")[0].config
    narrow = prepared({}, "mixed")[-1]["params"]
    with pytest.raises(ValueError, match="dtype=float32 is not supported by weights .* bfloat16"):
        inference_variables(config, narrow)

"""Directories of the BART and T5 families: logits and searches equal those of transformers."""

import jax
import numpy as np
import pytest
from marks import slow_except
from tiny_pretrained import POSITIONS, loaded, write_pretrained

from seq2seq.interop.models import load_params, open_model
from seq2seq.model.config import num_parameters
from seq2seq.model.transformer import Transformer

GATED = {"feed_forward_proj": "gated-gelu"}
FAMILIES = {
    "m2m_100": {}, "mbart": {"activation_function": "relu", "decoder_start_token_id": 2},
    "bart": {}, "pegasus": {"scale_embedding": True}, "t5": {}, "t5_gated": GATED, "mt5": {},
    "madlad": GATED,
}  # fmt: skip


def check_logits(path, reference):
    """Those of a directory as we read it, for padded sources and targets."""
    import torch

    config, _ = open_model(path, "best")
    model, params = config.model, load_params(path, "best")
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    if model.tied_embeddings == "three-way":
        assert sum(x.size for x in jax.tree.leaves(params)) == num_parameters(model)
    longest = 150 if model.positions == "relative" else POSITIONS
    random = np.random.default_rng(0)
    source = random.integers(3, model.source_vocab_size, (2, longest)).astype(np.int32)
    target = random.integers(3, model.target_vocab_size, (2, 35)).astype(np.int32)
    mask = (np.arange(longest) < np.array([[longest], [4]])).astype(np.int32)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source).long(), attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(target).long(),
        ).logits.numpy()  # fmt: skip
    apply = jax.jit(Transformer(model).apply)
    logits = apply({"params": params}, source, target, mask, np.ones_like(target))
    assert expected.std() > 0.05
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("family", slow_except(["m2m_100", "t5_gated"], FAMILIES))
def test_logits_equal_those_of_transformers(tmp_path, family):
    check_logits(tmp_path, write_pretrained(tmp_path, family, **FAMILIES[family]))


@pytest.mark.slow
def test_a_gated_model_that_transformers_has_saved_again_has_the_same_logits(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    reference = write_pretrained(first, "t5_gated", **GATED)
    write_pretrained(second, "t5_gated", **GATED)
    reference.save_pretrained(second)
    assert open_model(second, "best")[0].model == open_model(first, "best")[0].model
    check_logits(second, loaded(second))

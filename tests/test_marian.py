"""MarianMT directories: our model of one gives the logits that transformers gives."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import CHECKPOINT, UserError
from model.transformer import Transformer
from training.marian import is_marian, load_marian, marian_config

CONFIG = dict(
    vocab_size=43, d_model=26, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=37, decoder_ffn_dim=37, max_position_embeddings=31,
    pad_token_id=42, eos_token_id=0, bos_token_id=0, decoder_start_token_id=42,
    forced_eos_token_id=0, activation_function="swish", scale_embedding=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def random_marian(tmp_path_factory):
    """A random MarianMT model and the directory where it is saved."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:  # biases and norms as well
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.final_logits_bias.normal_()
    path = tmp_path_factory.mktemp("marian")
    model.save_pretrained(path)
    return torch, model, path


def test_logits_are_those_of_transformers_with_padding_too(random_marian):
    torch, theirs, path = random_marian
    config, _ = marian_config(path)
    params, random = load_marian(path, config), np.random.default_rng(0)
    source, target = random.integers(1, 42, (5, 11)), random.integers(1, 42, (5, 7))
    lengths = np.array([11, 1, 4, 9, 6])
    there = np.arange(11) < lengths[:, None]
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(source), attention_mask=torch.tensor(there).long(),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()
    found = jax.jit(Transformer(config).apply)(
        {"params": params}, jnp.asarray(source), jnp.asarray(target),
        jnp.asarray(there).astype(int), jnp.ones((5, 7), int),
    )
    assert np.std(expected) > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("field, value", [
    ("normalize_before", True), ("static_position_embeddings", False),
    ("activation_function", "tanh"),
])
def test_what_cannot_be_represented_is_refused_by_name(tmp_path: Path, field, value):
    config = {"model_type": "marian", **CONFIG, field: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert is_marian(tmp_path)
    with pytest.raises(UserError, match=field) as caught:
        marian_config(tmp_path)
    assert caught.value.code == CHECKPOINT

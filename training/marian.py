"""MarianMT directories (OPUS-MT) and our model: the same numbers under other names.

`tensors` is the one table of names, read in both directions. What our model cannot represent is
refused by name. Only safetensors are read; a pickle is never opened.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.errors import CHECKPOINT, UserError
from model.config import ModelConfig
from model.positions import sinusoidal_positions

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
# Fields of config.json that must have one value (their defaults in transformers, mostly).
REQUIRED = {
    "model_type": ("marian", "marian"), "normalize_before": (False, False),
    "normalize_embedding": (False, False), "add_final_layer_norm": (False, False),
    "static_position_embeddings": (True, True), "is_encoder_decoder": (True, True),
}  # fmt: skip


class Tensor(NamedTuple):
    """One tensor: its name there, its path in our parameters, and its shape there."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]


def is_marian(directory: Path) -> bool:
    """Whether a directory looks like one of a MarianMT model."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "marian"


def marian_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Our configuration of its model, and its config.json (with generation_config.json's fields).

    UserError(CHECKPOINT) that names the field for what cannot be represented.
    """
    there = {}
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        if path.exists() or name == "config.json":
            try:
                there |= json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(CHECKPOINT, f"{path} cannot be read: {error}") from None

    def refuse(field: str, expected: str) -> None:
        raise UserError(CHECKPOINT, f"{directory}/config.json: {field}={there.get(field)!r} cannot "
                        f"be represented; expected {expected}")

    for field, (default, value) in REQUIRED.items():
        if there.get(field, default) != value:
            refuse(field, repr(value))
    if there.get("activation_function", "gelu") not in ACTIVATIONS:
        refuse("activation_function", ", ".join(ACTIVATIONS))
    for field in ("ffn_dim", "attention_heads"):
        if there[f"encoder_{field}"] != there[f"decoder_{field}"]:
            refuse(f"decoder_{field}", f"the encoder's, {there[f'encoder_{field}']}")
    shared = there.get("share_encoder_decoder_embeddings", True)
    tied = there.get("tie_word_embeddings", True)
    if shared and not tied:
        refuse("tie_word_embeddings", "True where the embeddings are shared")
    target_size = there.get("decoder_vocab_size") or there["vocab_size"]
    config = ModelConfig(
        source_vocab_size=there["vocab_size"], target_vocab_size=target_size,
        d_model=there["d_model"], d_ff=there["encoder_ffn_dim"],
        num_heads=there["encoder_attention_heads"], num_layers=there["encoder_layers"],
        num_decoder_layers=there["decoder_layers"], dropout=there.get("dropout", 0.1),
        sinusoid_layout="halves", max_length=there["max_position_embeddings"],
        activation=ACTIVATIONS[there.get("activation_function", "gelu")], attention_bias=True,
        layer_norm_epsilon=1e-5,
        tied_embeddings="three-way" if shared else "two-way" if tied else "none",
        scale_embeddings=there.get("scale_embedding", False), output_bias=True,
        pad_id=there["pad_token_id"], start_id=there["decoder_start_token_id"],
        end_id=there["eos_token_id"], unknown_id=1,
    )  # fmt: skip
    return config, there


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Every tensor of a model; ours is theirs transposed and reshaped, embeddings as they are."""
    c, d = config, config.d_model
    if c.tied_embeddings == "three-way":
        yield Tensor("model.shared.weight", ("target_embedding", "table"),
                     (c.target_vocab_size, d))
    else:
        yield Tensor("model.encoder.embed_tokens.weight", ("source_embedding", "table"),
                     (c.source_vocab_size, d))
        yield Tensor("model.decoder.embed_tokens.weight", ("target_embedding", "table"),
                     (c.target_vocab_size, d))
    if c.tied_embeddings == "none":
        yield Tensor("lm_head.weight", ("output_embedding", "table"), (c.target_vocab_size, d))
    yield Tensor("final_logits_bias", ("output_bias",), (1, c.target_vocab_size))
    for side, layers in (("encoder", c.num_layers), ("decoder", c.decoder_layers)):
        attentions = [("self_attn", "self_attention", "around_self")]
        if side == "decoder":
            attentions.append(("encoder_attn", "cross_attention", "around_cross"))
        for i in range(layers):
            there, here = f"model.{side}.layers.{i}.", (side, f"layers_{i}")
            for name, ours, around in attentions:
                for one, whole in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    yield Tensor(f"{there}{name}.{one}_proj.weight", (*here, ours, whole), (d, d))
                    yield Tensor(f"{there}{name}.{one}_proj.bias", (*here, ours, f"{whole}_bias"),
                                 (d,))
                yield from _norm(f"{there}{name}_layer_norm", (*here, around, "norm"), d)
            for name, ours, shape in (("fc1", "inner", (c.d_ff, d)), ("fc2", "outer", (d, c.d_ff))):
                yield Tensor(f"{there}{name}.weight", (*here, "feed_forward", ours), shape)
                yield Tensor(f"{there}{name}.bias", (*here, "feed_forward", f"{ours}_bias"),
                             shape[:1])
            yield from _norm(f"{there}final_layer_norm", (*here, "around_feed_forward", "norm"), d)


def _norm(name, path, d):
    yield Tensor(f"{name}.weight", (*path, "scale"), (d,))
    yield Tensor(f"{name}.bias", (*path, "bias"), (d,))


def from_marian(there: dict[str, np.ndarray], config: ModelConfig, where: str) -> dict[str, Any]:
    """Our parameters, float32, of tensors by name. UserError(CHECKPOINT) that names the tensor.

    Copies and tables of positions that transformers may store too must equal what they copy.
    """
    there, params = dict(there), {}
    heads = config.num_heads, config.head_size
    for name, path, shape in tensors(config):
        if name not in there:
            raise UserError(CHECKPOINT, f"{where}: the tensor {name} is missing")
        array = there.pop(name)
        if array.shape != shape:
            raise UserError(CHECKPOINT, f"{where}: {name} has shape {array.shape}, expected "
                            f"{shape}")
        array = np.asarray(array, np.float32)
        if path[-1] != "table":
            array = array.T
            ours = path[-1].removesuffix("_bias")
            if ours in ("query", "key", "value"):
                array = array.reshape(*array.shape[:-1], *heads)
            elif path[-1] == "output":
                array = array.reshape(*heads, -1)
            elif name == "final_logits_bias":
                array = array.reshape(-1)
        inside = params
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = np.ascontiguousarray(array)
    _check_copies(there, params, config, where)
    return params


def _check_copies(rest, params, config, where):
    table = params["target_embedding"]["table"]
    source = params.get("source_embedding", params["target_embedding"])["table"]
    output = params.get("output_embedding", params["target_embedding"])["table"]
    positions = sinusoidal_positions(config.max_length, config.d_model, "halves")
    expected = {
        "model.shared.weight": source, "lm_head.weight": output,
        "model.encoder.embed_tokens.weight": source, "model.decoder.embed_tokens.weight": table,
        "model.encoder.embed_positions.weight": positions,
        "model.decoder.embed_positions.weight": positions,
    }  # fmt: skip
    for name, array in rest.items():
        if name not in expected:
            raise UserError(CHECKPOINT, f"{where}: the tensor {name} belongs to no MarianMT model "
                            "that can be represented")
        if array.shape != expected[name].shape or not np.allclose(array, expected[name], atol=2e-3):
            raise UserError(CHECKPOINT, f"{where}: {name} is not what it should be a copy of")


def load_marian(directory: Path, config: ModelConfig) -> dict[str, Any]:
    """The parameters of model.safetensors. UserError(CHECKPOINT) where it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = directory / "model.safetensors"
    if not path.exists():
        found = " (pytorch_model.bin is a pickle and never opened; convert it with transformers: " \
            "MarianMTModel.from_pretrained(DIR).save_pretrained(DIR))"
        raise UserError(CHECKPOINT, f"{path} is missing"
                        + (found if (directory / "pytorch_model.bin").exists() else ""))
    try:
        there = load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {error}") from None
    return from_marian(there, config, str(path))

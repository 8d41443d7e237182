"""Larger MarianMT models made from a small one without training, for benchmarks at other sizes.

"wide" has twice the width and layers and nearly the same function, for outputs of realistic
lengths. Every feature is duplicated (2j and 2j + 1, for which the sinusoids differ little) and only
the first copy has input weights. Copies of heads and hidden units follow the originals and have no
output weights. The new layers add 0 to a nearly normalised input.
"opus" has the sizes of most OPUS-MT models (6 + 6 layers, 512/2048) with random weights written by
transformers, and a vocabulary padded to OPUS_PIECES with <pad> last, for outputs of forced length.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

SHAPES = ("wide", "opus")
OPUS_PIECES = 58_101
# For a weight [out, in]: whether each side is model features (True) or heads / hidden units.
INNER = {
    "q_proj": (False, True),
    "k_proj": (False, True),
    "v_proj": (False, True),
    "out_proj": (True, False),
    "fc1": (False, True),
    "fc2": (True, False),
}


def wide(x: np.ndarray, axis: int, features: bool) -> np.ndarray:
    """Duplicate each feature, or append a copy of all inner units."""
    return np.repeat(x, 2, axis) if features else np.concatenate([x, x], axis)


def first_only(x: np.ndarray, features: bool) -> np.ndarray:
    """Widen the input side: the original weights for the first copy, zeros for the second."""
    zeros = np.zeros_like(x)
    if features:
        return np.stack([x, zeros], axis=-1).reshape(len(x), -1)
    return np.concatenate([x, zeros], axis=-1)


def widened(name: str, x: np.ndarray) -> np.ndarray:
    """The tensor `name` of the wide model."""
    if name == "final_logits_bias":
        return x
    if name == "model.shared.weight":  # embeddings are scaled by √(2 d_model)
        return wide(x, 1, True) / np.sqrt(2)
    module, kind = name.split(".")[-2:]
    if module not in INNER:
        return wide(x, 0, True)
    features_out, features_in = INNER[module]
    if kind == "bias":
        return wide(x, 0, features_out)
    return first_only(wide(x, 0, features_out), features_in)


def idle_layer(layer: dict[str, np.ndarray], last: str) -> dict[str, np.ndarray]:
    """A layer whose sub-layers add 0 to the output of the norm `last` of the previous layer."""
    scale, shift = layer[f"{last}.weight"], layer[f"{last}.bias"]
    deviation = np.sqrt((scale**2).mean() + shift.var())
    idle = dict(layer)
    for name, x in layer.items():
        if "layer_norm" in name:
            idle[name] = np.full_like(x, deviation if name.endswith("weight") else shift.mean())
        elif name.split(".")[-2] in ("out_proj", "fc2"):
            idle[name] = np.zeros_like(x)
    return idle


def write_opus(source: Path, target: Path, vocab_size: int = OPUS_PIECES) -> None:
    """Write a model of random weights with a padded vocabulary to a copy of `source`."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig.from_pretrained(source)
    sizes = {"d_model": 512, "vocab_size": vocab_size, "decoder_vocab_size": vocab_size}
    sizes |= {"pad_token_id": vocab_size - 1, "decoder_start_token_id": vocab_size - 1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 6, f"{side}_ffn_dim": 2048, f"{side}_attention_heads": 8}
    config.update(sizes)
    torch.manual_seed(0)
    MarianMTModel(config).save_pretrained(target)
    path = target / "vocab.json"
    vocab = json.loads(path.read_text(encoding="utf-8"))
    del vocab["<pad>"]
    for number in range(len(vocab), vocab_size - 1):
        vocab[f"<unused {number}>"] = number
    vocab["<pad>"] = vocab_size - 1
    path.write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")


def write_larger(shape: str, source: Path, target: Path) -> None:
    """Write the model of a shape of SHAPES made from the directory `source`."""
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)
    (write_opus if shape == "opus" else write_widened)(source, target)


def write_widened(source: Path, target: Path) -> None:
    """Write the widened model to a copy of `source`."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    tensors = {name: widened(name, x) for name, x in tensors.items()}
    for side in ("encoder", "decoder"):
        layers, last = config[f"{side}_layers"], "final_layer_norm"
        prefix = f"model.{side}.layers.{layers - 1}."
        layer = {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
        idle = idle_layer(layer, last)
        for number in range(layers, 2 * layers):
            tensors |= {f"model.{side}.layers.{number}.{name}": x for name, x in idle.items()}
    for kind in ("weight", "bias"):  # the logits sum both copies
        tensors[f"model.decoder.layers.{2 * layers - 1}.{last}.{kind}"] = idle[
            f"{last}.{kind}"
        ] / np.float32(np.sqrt(2))
    for name in (
        "d_model",
        "encoder_layers",
        "decoder_layers",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ):
        config[name] *= 2
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tensors = {name: np.ascontiguousarray(x, np.float32) for name, x in tensors.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})

"""A MarianMT model of twice the width and layers that says nearly the same: base from small.

    python benchmarks/widened_marian.py --input=DIR --output=DIR
For speed at lengths that are real, without training a large model. Every feature stands twice
(2j and 2j + 1, which sinusoids tell apart by little), only the first is read, so the function
stays but for positions; heads and hidden units are followed by copies that nobody reads; the new
layers add nothing and normalise what is nearly normal.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from absl import app, flags
from safetensors.numpy import load_file, save_file

# Of a weight [out, in] whether a side is features of the model (else heads or hidden units).
INNER = {
    "q_proj": (False, True),
    "k_proj": (False, True),
    "v_proj": (False, True),
    "out_proj": (True, False),
    "fc1": (False, True),
    "fc2": (True, False),
}


def wide(x: np.ndarray, axis: int, features: bool) -> np.ndarray:
    """Each feature twice, or all inner units once more behind the first."""
    return np.repeat(x, 2, axis) if features else np.concatenate([x, x], axis)


def first_only(x: np.ndarray, features: bool) -> np.ndarray:
    """The input side: weights for the first of each two, none for its copy."""
    nothing = np.zeros_like(x)
    if features:
        return np.stack([x, nothing], axis=-1).reshape(len(x), -1)
    return np.concatenate([x, nothing], axis=-1)


def widened(name: str, x: np.ndarray) -> np.ndarray:
    """One tensor of the wide model."""
    if name == "final_logits_bias":
        return x
    if name == "model.shared.weight":  # × √(2 d_model) when it is read
        return wide(x, 1, True) / np.sqrt(2)
    module, kind = name.split(".")[-2:]
    if module not in INNER:
        return wide(x, 0, True)
    features_out, features_in = INNER[module]
    if kind == "bias":
        return wide(x, 0, features_out)
    return first_only(wide(x, 0, features_out), features_in)


def idle_layer(layer: dict[str, np.ndarray], last: str) -> dict[str, np.ndarray]:
    """A layer that adds nothing to what the norm `last` of the layer before has made."""
    scale, shift = layer[f"{last}.weight"], layer[f"{last}.bias"]
    deviation = np.sqrt((scale**2).mean() + shift.var())
    idle = dict(layer)
    for name, x in layer.items():
        if "layer_norm" in name:
            idle[name] = np.full_like(x, deviation if name.endswith("weight") else shift.mean())
        elif name.split(".")[-2] in ("out_proj", "fc2"):
            idle[name] = np.zeros_like(x)
    return idle


def main(_) -> None:
    f = flags.FLAGS
    source, target = Path(f.input), Path(f.output)
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)
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
    for kind in ("weight", "bias"):  # logits add up both copies
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


if __name__ == "__main__":
    flags.DEFINE_string("input", "", "A MarianMT directory.")
    flags.DEFINE_string("output", "", "Where the wide model goes.")
    app.run(main)

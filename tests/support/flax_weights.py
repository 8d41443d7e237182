"""Weights as transformers' Flax classes stored them, written by Flax."""

from pathlib import Path

import numpy as np
from flax.serialization import to_bytes
from flax.traverse_util import unflatten_dict

TABLES = "shared", "embed_tokens", "embed_positions", "relative_attention_bias"


def flax_keys(name: str) -> tuple[str, ...]:
    """The keys of a tensor of PyTorch. T5's norms have a `weight` in Flax too."""
    *keys, last = name.split(".")
    if last != "weight" or ("norm" in keys[-1] and keys[0] != "model"):
        return (*keys, last)
    if "norm" in keys[-1]:
        return (*keys, "scale")
    return (*keys, "embedding" if keys[-1] in TABLES else "kernel")


def write_flax(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a file of the tensors with these names of PyTorch."""
    keys = {name: flax_keys(name) for name in tensors}
    tree = {
        keys[name]: array.T if keys[name][-1] == "kernel" else array
        for name, array in tensors.items()
    }
    path.write_bytes(to_bytes(unflatten_dict(tree)))

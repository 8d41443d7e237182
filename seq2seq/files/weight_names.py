"""The names of the files of weights in a directory of transformers, or of an adapter of peft."""

from collections.abc import Iterable
from pathlib import PurePath

# The first of them that a directory has is read.
WEIGHT_FILES = "model.safetensors", "pytorch_model.bin", "flax_model.msgpack"
ADAPTER_FILES = "adapter_model.safetensors", "adapter_model.bin"
INDEX = ".index.json"  # after the name of a file of weights: that of its shards


def weight_names(names: Iterable[str], files: tuple[str, ...] = WEIGHT_FILES) -> list[str]:
    """Those of the `names` of a directory that have the weights: one of `files`, or the index of
    its shards and then the shards. Empty if there are none."""
    existing = set(names)
    for file in files:
        if file in existing:
            return [file]
        if file + INDEX in existing:
            start, suffix = f"{PurePath(file).stem}-", PurePath(file).suffix
            shards = (n for n in existing if n.startswith(start) and n.endswith(suffix))
            return [file + INDEX, *sorted(shards)]
    return []

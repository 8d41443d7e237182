"""The names of the files of weights in a directory of transformers, or of an adapter of peft."""

from collections.abc import Iterable
from pathlib import PurePath

# The first of them that a directory has is read.
WEIGHT_FILES = "model.safetensors", "pytorch_model.bin", "flax_model.msgpack"
ADAPTER_FILES = "adapter_model.safetensors", "adapter_model.bin"
# The beginnings of names of files that a training of transformers leaves beside the weights.
OF_TRAINING = "training_args", "optimizer", "scheduler", "rng_state", "scaler"
INDEX = ".index.json"  # after the name of a file of weights: that of its shards


def weight_names(names: Iterable[str], files: tuple[str, ...] = WEIGHT_FILES) -> list[str]:
    """Those of the `names` of a directory that have the weights: one of `files`, or the index of
    its shards and then the files that may be shards: the index can give them any name. Empty if
    there are none."""
    existing = set(names)
    for file in files:
        if file in existing:
            return [file]
        if file + INDEX in existing:
            others = {*WEIGHT_FILES, *ADAPTER_FILES}
            suffix = PurePath(file).suffix
            names = (n for n in existing - others if n.endswith(suffix) and "/" not in n)
            shards = (n for n in names if not n.startswith(OF_TRAINING))
            return [file + INDEX, *sorted(shards)]
    return []

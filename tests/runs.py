"""Training runs inside the process of a test, and their contents for comparison."""

import json

import jax
import numpy as np
from tiny import StopAfter
from traced import shared_steps

import train
from data.corpora import read_split
from storage.checkpoint import steps
from storage.run import Run
from training.inputs import prepare_data


def run_training(path, config, stop_after=None, overwrite=False):
    """What train.py does after its flags; stops as if by SIGTERM after `stop_after` more steps."""

    run = Run(path)
    try:
        if not overwrite:
            run.adopt(config)
        corpora = {split: read_split(config.data, split) for split in ("train", "valid", "test")}
        data = prepare_data(config, run, corpora, overwrite)
        run.describe(config, corpora["train"].fingerprints)
        with shared_steps(config):
            train.train(config, run, data, StopAfter(stop_after))
    finally:
        run.close()


def state_bytes(path):
    """Every array of the last checkpoint and the average, and the data position."""
    import orbax.checkpoint as ocp

    last = path / "checkpoints" / str(steps(path)[-1])
    arrays = []
    for directory in (last / "params", last / "rest", path / "average" / "params"):
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(directory).item_metadata.tree
            args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            arrays += jax.tree.leaves(checkpointer.restore(directory, restore_args=args))
    data = json.loads((last / "data" / "metadata").read_text())
    return [(a.dtype, a.shape, a.tobytes()) for a in map(np.asarray, arrays)], data

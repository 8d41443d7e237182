"""Training runs in the process of a test, and their contents for comparison."""

import json

import jax
import numpy as np
from tiny import StopAfter
from traced import shared_steps

import train
from storage.checkpoint import steps
from storage.run import Run


def run_training(path, config, stop_after=None, overwrite=False, cache=None):
    """Do what train.py does after parsing flags; stop as by SIGTERM after `stop_after` steps."""
    run = Run(path)
    try:
        if not overwrite:
            run.resume_config(config)
        data = train.prepare_data(config, run, cache, overwrite)
        run.describe(config, data.files["train"])
        with shared_steps(config):
            train.train(config, run, data, StopAfter(stop_after))
    finally:
        run.close()


def state_bytes(path):
    """All arrays of the last checkpoint and the average, and its data without the time."""
    import orbax.checkpoint as ocp

    last = path / "checkpoints" / str(steps(path)[-1])
    arrays = []
    for directory in (last / "params", last / "rest", path / "average" / "params"):
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(directory).item_metadata.tree
            args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            arrays += jax.tree.leaves(checkpointer.restore(directory, restore_args=args))
    data = json.loads((last / "data" / "metadata").read_text())
    del data["seconds"]  # of training
    return [(a.dtype, a.shape, a.tobytes()) for a in map(np.asarray, arrays)], data

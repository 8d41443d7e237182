"""Training runs in the process of a test: shared ones, and their contents for comparison."""

import json
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from seq2seq import train
from seq2seq.model import kinds
from seq2seq.runtime.signals import Stopped
from seq2seq.storage.manifest import write_manifest
from seq2seq.storage.run import Run
from seq2seq.storage.run_files import steps
from tests.support.models.bag_of_words import BagOfWords, RandomTranslator
from tests.support.tiny import StopAfter, tiny_config, write_corpus
from tests.support.traced import shared_steps


def run_training(path, config, stop_after=None, overwrite=False, cache=None):
    """Do what train.py does after parsing flags and configuring JAX; stop as by SIGTERM after
    `stop_after` steps. Returns the trainer."""
    run, stop = Run(path), StopAfter(stop_after)
    try:
        with shared_steps():
            config, data = train.prepare_data(config, run, cache, overwrite)
            return train.train(config, run, data, stop)
    finally:
        run.close()


@contextmanager
def cheap_model():
    """A context in which trainings have the model and the translator of bag_of_words.py."""
    with (
        mock.patch.dict(kinds.MODEL_KINDS, transformer=BagOfWords),
        mock.patch("seq2seq.train.Translator", RandomTranslator),
    ):
        yield


def cheap_config(corpus, valid="", **changes):
    """`tiny_config` for the `cheap_model`: another config than that of a Transformer, because the
    shapes of parameters are known by config."""
    return tiny_config(corpus, valid, **{"model__scale_embeddings": False, **changes})


def train_cheaply(path, config, **options):
    """`run_training` with the `cheap_model`."""
    with cheap_model():
        return run_training(path, config, **options)


@cache
def scratch():
    """A directory for the shared runs of this process."""
    scratch.directory = tempfile.TemporaryDirectory(prefix="runs_")  # deleted with the process
    return Path(scratch.directory.name)


@cache
def shared_corpus():
    """Four batches of eight packed rows, and two rows left out: twelve steps are three epochs."""
    return write_corpus(scratch() / "pairs.tsv", 132)


def run_config(**changes):
    """The config of the shared runs, validated on the training data, with other values."""
    corpus = shared_corpus()
    return cheap_config(corpus, corpus, **{"training__best_metric": "loss", **changes})


@cache
def whole_run():
    """An uninterrupted run of twelve steps. Tests must not change it."""
    train_cheaply(scratch() / "whole", run_config())
    return scratch() / "whole"


@cache
def stopped_run():
    """The same run, stopped after step 4. Tests must not change it."""
    with suppress(Stopped):
        train_cheaply(scratch() / "stopped", run_config(), stop_after=4)
    return scratch() / "stopped"


def change_metadata(run, change):
    """Apply a function to the data of each checkpoint of a run, a dict, and renew the manifests."""
    for directory in run.glob("checkpoints/*"):
        file = directory / "data" / "metadata"
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))
        (directory / "MANIFEST.sha256").unlink()
        write_manifest(directory)


def state_bytes(path):
    """All arrays of the last checkpoint and the average, if there is one, and the data of the
    checkpoint without the time."""
    import orbax.checkpoint as ocp

    last = path / "checkpoints" / str(steps(path)[-1])
    arrays = []
    parts = [last / name for name in ("params", "ema", "rest")]
    for directory in filter(Path.is_dir, [*parts, path / "average" / "params"]):
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(directory).item_metadata.tree
            args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            arrays += jax.tree.leaves(checkpointer.restore(directory, restore_args=args))
    data = json.loads((last / "data" / "metadata").read_text())
    del data["seconds"]  # of training
    return [(a.dtype, a.shape, a.tobytes()) for a in map(np.asarray, arrays)], data

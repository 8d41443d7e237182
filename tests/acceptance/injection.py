"""Injection points: the functions of the program that the tests replace, each under a name.

If one of them is renamed, test_frame.py fails, not only the slow row that uses it.
"""

import importlib

POINTS = {
    "data": "seq2seq.train:prepare_data",  # the training data is read and encoded
    "fresh state": "seq2seq.training.parts:init_state",
    "announce": "seq2seq.training.trainer:announce",  # the state is restored, no step is done
    "loss": "seq2seq.training.step:loss_sums",  # called while the training step is traced
    "step": "seq2seq.training.trainer:Trainer._do_step",  # before each training step
    "evaluation": "seq2seq.training.evaluate:Evaluator.evaluate",
    "decoding": "seq2seq.decoding.engine.engine:Engine._submit",  # a call goes to the devices
    "save": "seq2seq.storage.checkpoints:Checkpoints.start_save",
    "manifest": "seq2seq.storage.checkpoints:write_manifest",  # its files are written
    "sync": "seq2seq.storage.manifest:sync_to_disk",  # once for each path of a checkpoint
}


def find(point):
    """(owner, attribute) of a name in POINTS; LookupError if it does not exist."""
    module, _, path = POINTS[point].partition(":")
    owner = importlib.import_module(module)
    *outer, last = path.split(".")
    for name in outer:
        owner = getattr(owner, name, None)
    if not callable(getattr(owner, last, None)):
        raise LookupError(
            f"injection point {point!r}: {POINTS[point]} does not exist; correct it "
            "in tests/acceptance/injection.py"
        )
    return owner, last


def replace(point, around):
    """Replace the function at `point` by around(function)."""
    owner, name = find(point)
    setattr(owner, name, around(getattr(owner, name)))

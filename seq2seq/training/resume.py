"""Restores the content of a checkpoint: the state of a training and the position in the data.

train.py calls these functions in order.
"""

from typing import Any

import jax
import optax

from seq2seq.config.tree import Config, flat_values
from seq2seq.data.batching.batches import DataPosition
from seq2seq.model.mesh import Placer, local_mesh
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import load_params
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, DATA, UserError
from seq2seq.storage.resume_policy import data_change_message
from seq2seq.storage.run import Run
from seq2seq.storage.run_json import intact_facts
from seq2seq.training.inputs import Data
from seq2seq.training.parts import TrainingParts
from seq2seq.training.step import TrainState


def check_same_start(config: Config, data: Data) -> None:
    """UserError(CONFIGURATION) if the processes differ in a field of the config or a data file."""
    processes.check_agreement(flat_values(config) | data.file_hashes)


def restore_state(
    parts: TrainingParts,
) -> tuple[TrainState, dict[str, Any] | None]:
    """(state, stored data) of the newest intact checkpoint; in a new run (a state with
    `initial_params`, None)."""
    config = parts.config
    with processes.first_process_first("the checkpoint"):
        restored = parts.checkpoints.restore(parts.state_shapes, config.training.model_parallel)
    state, stored = restored or (parts.fresh_state(initial_params(config, parts.run)), None)
    check_processes_agree(state)
    return state, stored


def initial_params(config: Config, run: Run) -> Any:
    """The parameters of training.init_from, see `load_params`; None without it, for random ones."""
    if not (init_from := config.training.init_from):
        return None
    # The commit with which the run began, also if it is resumed before its first checkpoint.
    recorded = intact_facts(run.path / "run.json").get("init_from")
    start = str(run.init_from or recorded or init_from)
    params = load_params(model_directory(start), "best", placer_of(config))
    run.log(f"started from the parameters of {start}")
    return params


def placer_of(config: Config) -> Placer | None:
    """What puts parameters on the devices of each copy of the model while they are read; None: they
    are read as NumPy arrays, because each device has all of them."""
    model_parallel = config.training.model_parallel
    return Placer(local_mesh(model_parallel)) if model_parallel > 1 else None


def restored_position(
    stored: dict[str, Any] | None, config: Config, run: Run, data: Data
) -> tuple[DataPosition, float]:
    """The position of the next batch in the training data, which is the start in a new run and if
    its order has changed, and the seconds of training so far. Another order is an error without
    training.allow_data_change.
    """
    if stored is None:
        return DataPosition(), 0.0
    position, seconds = DataPosition(), stored.get("seconds", 0.0)  # absent in older checkpoints
    if "window" not in stored:
        check_order_change(config, run)
    elif stored["files"]["train"] == data.files["train"]:
        position = DataPosition(stored["epoch"], stored["window"], stored["index"])
    elif config.training.allow_data_change:
        run.log("warning: the training data has changed: reading restarts at epoch 0")
    else:  # Run.check_and_record did not notice: run.json is missing or damaged
        raise UserError(DATA, data_change_message(changed_files(stored["files"], data.files)))
    return position, seconds


def check_order_change(config: Config, run: Run) -> None:
    """UserError(CHECKPOINT) for a checkpoint of a version with another order of the training data,
    unless training.allow_data_change is set."""
    if not config.training.allow_data_change:
        raise UserError(
            CHECKPOINT,
            f"the checkpoints of {run.path} are from an earlier version, which read the training "
            "data in another order, so the run cannot be resumed exactly; resume with that "
            "version, or continue in the new order from epoch 0: "
            "--config.training.allow_data_change",
        )
    run.log("warning: the order of the training data has changed: reading restarts at epoch 0")


def changed_files(
    stored: dict[str, dict[str, str]], current: dict[str, dict[str, str]]
) -> list[str]:
    """The files of the training data that were added, removed or changed."""
    before, now = stored["train"], current["train"]
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def check_processes_agree(state: TrainState) -> None:
    """Raise UserError(CONFIGURATION) if devices, step or parameters differ between processes."""
    if processes.count() > 1:
        norm = float(jax.jit(optax.global_norm)(state.params))
        devices = jax.local_device_count()
        processes.check_agreement({"devices": devices, "step": int(state.step), "parameters": norm})

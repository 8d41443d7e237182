"""Where training starts: at the newest checkpoint, at other parameters, or at fresh ones."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import optax

from data.batches import DataPosition
from interop.models import load_params
from runtime import processes
from runtime.errors import CHECKPOINT, DATA, UserError
from storage.config import Config
from storage.run import Run, data_change_message
from storage.saving import Checkpoints
from training.best import BestCheckpoint
from training.inputs import Data
from training.step import TrainState, start_from


class Start(NamedTuple):
    """Where training starts."""

    state: TrainState
    position: DataPosition  # of the next batch
    seconds: float  # of training in earlier sessions


def resume_or_start(
    fresh_state: Callable[[], TrainState],
    checkpoints: Checkpoints,
    best: BestCheckpoint,
    config: Config,
    run: Run,
    data: Data,
) -> Start:
    """The state, data position and training time; restores `best` if the run is resumed.

    Changed validation data resets `best`, changed training data the position. Raises
    UserError(DATA) for changed training data without training.allow_data_change, and UserError if
    the checkpoints cannot be used or the processes start differently.
    """
    with processes.first_process_first("the checkpoint"):
        restored = checkpoints.restore(jax.eval_shape(fresh_state))
    position, seconds = DataPosition(), 0.0
    if restored is None:
        state = fresh_state()
        if init_from := config.training.init_from:
            state = start_from(state, load_params(Path(init_from).expanduser(), "best"))
            run.log(f"started from the parameters of {init_from}")
    else:
        state, stored = restored
        best.restore(stored)
        seconds = stored.get("seconds", 0.0)  # older checkpoints do not have it
        if stored["files"].get("valid") != data.files.get("valid"):
            run.log("warning: the validation data has changed: the best score is reset")
            best.reset()
        if "window" not in stored:
            check_order_change(config, run)
        elif stored["files"]["train"] == data.files["train"]:
            position = DataPosition(stored["epoch"], stored["window"], stored["index"])
        elif config.training.allow_data_change:
            run.log("warning: the training data has changed: reading restarts at epoch 0")
        else:  # Run.describe has not noticed, because run.json is missing or damaged
            raise UserError(DATA, data_change_message(changed_files(stored["files"], data.files)))
        run.log(f"resumed at step {int(state.step)}")
    check_processes_agree(state)
    return Start(state, position, seconds)


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


def changed_files(stored: dict[str, dict[str, str]], current: dict[str, dict[str, str]]) -> list:
    """The files of the training data that were added, removed or changed."""
    before, now = stored["train"], current["train"]
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def check_processes_agree(state: TrainState) -> None:
    """Raise UserError(CONFIGURATION) if devices, step or parameters differ between processes."""
    if processes.count() > 1:
        norm = float(jax.jit(optax.global_norm)(state.params))
        devices = jax.local_device_count()
        processes.check_agreement({"devices": devices, "step": int(state.step), "parameters": norm})

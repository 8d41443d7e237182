"""Trained models by directory: a run, or a model of another project that is read like one."""

from pathlib import Path
from typing import Any

from data.tokenizer import Tokenizer
from interop.marian import WEIGHTS, check_marian, is_marian, load_marian, marian_config
from runtime.errors import CHECKPOINT, UserError
from storage.checkpoint import params_directory, read_run, restore_params
from storage.config import Config


def find_params(directory: Path, checkpoint: str) -> Path:
    """The directory of `checkpoint` (best, latest, average or a step) in a run, the file of weights
    in a MarianMT directory. Raises UserError(CHECKPOINT)."""
    if not is_marian(directory):
        return params_directory(directory, checkpoint)
    if checkpoint not in ("best", "latest"):
        raise UserError(
            CHECKPOINT, f"no checkpoint {checkpoint!r} in {directory}, a MarianMT model"
        )
    return directory / WEIGHTS


def open_model(directory: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and the tokenizers of a model that has the checkpoint; touches no device.

    Raises UserError(CHECKPOINT)."""
    if not is_marian(directory):
        return read_run(directory, checkpoint)
    find_params(directory, checkpoint)
    return check_marian(directory)


def load_params(directory: Path, checkpoint: str) -> Any:
    """The parameters of `checkpoint` (see `find_params`) as NumPy arrays, in this process.

    Raises UserError(CHECKPOINT)."""
    if not is_marian(directory):
        return restore_params(directory, checkpoint)
    find_params(directory, checkpoint)
    return load_marian(directory, marian_config(directory)[0])

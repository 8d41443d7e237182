"""Trained models by directory: a run, or a directory of another project's model family.

FAMILIES registers the families; family.py defines their interface. Any other directory is a run.
"""

from pathlib import Path
from typing import Any

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.interop.bart import BART, M2M_100, MBART, PEGASUS
from seq2seq.interop.family import ModelFamily
from seq2seq.interop.marian import MARIAN
from seq2seq.interop.t5 import MT5, T5, UMT5
from seq2seq.interop.unsupported import OTHERS
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.config import Config
from seq2seq.storage.run_files import params_directory, read_run, restore_params

PRETRAINED = (M2M_100, MBART, BART, PEGASUS, T5, MT5, UMT5)
# The first that recognises a directory reads it.
FAMILIES: tuple[ModelFamily, ...] = (MARIAN, *(row.family() for row in PRETRAINED), OTHERS)


def find_params(directory: Path, checkpoint: str) -> Path:
    """The directory or file of the parameters of `checkpoint`, see `params_directory`.

    A directory of a model family has one checkpoint, which is both best and latest. Raises
    UserError(CHECKPOINT).
    """
    family = _family(directory, checkpoint)
    return family.params_path(directory) if family else params_directory(directory, checkpoint)


def open_model(directory: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and the tokenizers of a model that has the checkpoint; touches no device.

    Raises UserError(CHECKPOINT).
    """
    family = _family(directory, checkpoint)
    return family.open(directory) if family else read_run(directory, checkpoint)


def load_params(directory: Path, checkpoint: str) -> Any:
    """The parameters of `checkpoint` (see `find_params`) as NumPy arrays, in this process.

    Raises UserError(CHECKPOINT).
    """
    family = _family(directory, checkpoint)
    return family.load_params(directory) if family else restore_params(directory, checkpoint)


def family_of(directory: Path) -> ModelFamily | None:
    """The family of a directory, None for a run."""
    return next((family for family in FAMILIES if family.matches(directory)), None)


def _family(directory: Path, checkpoint: str) -> ModelFamily | None:
    """The family of a directory, None for a run. UserError if the family lacks the checkpoint."""
    family = family_of(directory)
    if family and checkpoint not in ("best", "latest"):
        raise UserError(
            CHECKPOINT,
            f"{directory}, a {family.name} model, has no checkpoint {checkpoint!r}: expected best "
            "or latest",
        )
    return family

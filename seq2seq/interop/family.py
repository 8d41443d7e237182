"""The interface of a model family: directories of another project that are read like runs.

To add a family, write a module that defines a ModelFamily and add it to FAMILIES in models.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.storage.config import Config


class ModelFamily(NamedTuple):
    """The functions that read a directory of the family. They raise UserError(CHECKPOINT)."""

    name: str  # for error messages
    matches: Callable[[Path], bool]  # whether a directory belongs to the family; never raises
    params_path: Callable[[Path], Path]  # the file or directory of the parameters
    # The config and the tokenizers (source, target) of the directory, as those of a run. Checks all
    # files as far as possible without reading the parameters or touching a device.
    open: Callable[[Path], tuple[Config, tuple[Tokenizer, Tokenizer]]]
    load_params: Callable[[Path], Any]  # the parameters as NumPy arrays

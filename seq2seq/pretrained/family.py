"""A model family: directories of another project that are read like runs, and written from runs.

models.py lists the families. A ModelFamily is made of the row of each family of transformers
(transformers_family.py); only a family with other files, as MarianMT, has one of its own.
CONTRIBUTING.md says how to add either.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig


class Export(NamedTuple):
    """The functions that write a directory of a family."""

    # The fields of the model that such a directory cannot express, each with (expected, got).
    differences: Callable[[ModelConfig], Mapping[str, tuple[str, str]]]
    # Writes a model without differences and its tokenizers into an empty directory. The parameters
    # come from a function, which is called when everything else has been checked. Returns one line
    # for each setting that the directory cannot express. UserError(CHECKPOINT) for what else it
    # cannot, such as a tokenizer.
    write: Callable[[Config, tuple[Tokenizer, Tokenizer], Callable[[], Any], Path], list[str]]


class ModelFamily(NamedTuple):
    """The functions that read a directory of the family."""

    name: str  # for error messages
    matches: Callable[[Path], bool]  # whether a directory belongs to the family; never raises
    params_path: Callable[[Path], Path]  # the file or directory of the parameters
    # The config and the tokenizers (source, target) of the directory, as those of a run. Checks all
    # files as far as possible without reading the parameters or touching a device. The last
    # argument of this function and of `load_params`, which may be absent, is an OpenWeights.
    open: Callable[..., tuple[Config, tuple[Tokenizer, Tokenizer]]]
    # The parameters as NumPy arrays, or on the devices of a placer, the second argument if any.
    load_params: Callable[..., Any]
    # The names of files that a directory may have and that are read, besides config.json and the
    # weights. Only these are downloaded. Empty: such directories are refused.
    files: tuple[str, ...] = ()
    model_type: str = ""  # what --model_type of convert.py calls it
    export: Export | None = None  # None: such directories are not written
    # The directory of the whole model, with its config: of an adapter, that of the base model.
    whole_model: Callable[[Path], Path] = lambda directory: directory

"""Trained models by directory: a run, or a directory of another project's model family.

FAMILIES lists the families. Any other directory is a run.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.adapters import adapter_family
from seq2seq.pretrained.bart import BART, M2M_100, MBART, PEGASUS
from seq2seq.pretrained.family import Export, ModelFamily
from seq2seq.pretrained.json_fields import read_json
from seq2seq.pretrained.marian import load_marian, marian_config, open_marian
from seq2seq.pretrained.marian_export import export_marian, marian_differences
from seq2seq.pretrained.marian_files import FILES as MARIAN_FILES
from seq2seq.pretrained.t5 import MT5, T5, UMT5
from seq2seq.pretrained.tokenizer_files import FILES as TOKENIZER_FILES
from seq2seq.pretrained.transformers_export import differences, export_pretrained
from seq2seq.pretrained.transformers_family import (
    TransformersFamily,
    load_pretrained,
    model_type,
    open_pretrained,
)
from seq2seq.pretrained.unsupported import refused
from seq2seq.pretrained.weight_files import OpenWeights, WeightFiles, weights_path
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.storage.run_files import current_name, params_directory, read_run, restore_params

GENERATION = "generation_config.json"
Chosen = TypeVar("Chosen")
Result = TypeVar("Result")


def _of_type(name: str) -> Callable[[Path], bool]:
    return lambda directory: model_type(directory) == name


def _model_family(row: TransformersFamily) -> ModelFamily:
    return ModelFamily(
        name=row.name,
        matches=_of_type(row.model_type),
        params_path=weights_path,
        open=partial(open_pretrained, row),
        load_params=partial(load_pretrained, row),
        files=(GENERATION, *TOKENIZER_FILES, *row.vocabulary),
        model_type=row.model_type,
        export=Export(partial(differences, row), partial(export_pretrained, row)),
    )


def _load_marian(
    directory: Path, placer: Placer | None = None, open_weights: OpenWeights = WeightFiles
) -> dict[str, Any]:
    return load_marian(directory, marian_config(directory)[0], placer, open_weights)


MARIAN = ModelFamily(
    name="MarianMT",
    matches=_of_type("marian"),
    params_path=weights_path,
    open=open_marian,
    load_params=_load_marian,
    files=(GENERATION, *MARIAN_FILES),
    model_type="marian",
    export=Export(marian_differences, export_marian),
)
TRANSFORMERS_FAMILIES = (M2M_100, MBART, BART, PEGASUS, T5, MT5, UMT5)
_SUPPORTED = (MARIAN, *map(_model_family, TRANSFORMERS_FAMILIES))
_WHOLE = (*_SUPPORTED, refused([family.model_type for family in _SUPPORTED]))
# The first that matches a directory reads it. A run is written as the first that can express it.
FAMILIES = (adapter_family(_WHOLE), *_WHOLE)


def find_params(directory: Path, checkpoint: str) -> Path:
    """The directory or file of the parameters of `checkpoint`, see `params_directory`.

    A directory of a model family has one checkpoint, which is both best and latest.
    """
    family = _family(directory, checkpoint)
    return family.params_path(directory) if family else params_directory(directory, checkpoint)


def current_checkpoint(directory: Path, checkpoint: str) -> str:
    """What `checkpoint` of a run means now (`current_name`); unchanged for another directory."""
    is_run = (directory / "checkpoints").is_dir() and family_of(directory) is None
    return current_name(directory, checkpoint) if is_run else checkpoint


def read_current(choose: Callable[[], Chosen], read: Callable[[Chosen], Result]) -> Result:
    """read(choose()), where `choose` finds out what best or latest means now. Both again if a
    training that still runs has deleted that checkpoint meanwhile, because it has a newer one."""
    chosen = choose()
    while True:
        try:
            return read(chosen)
        except UserError as error:
            failed, chosen = chosen, choose()
            if error.code != CHECKPOINT or chosen == failed:
                raise


def open_model(directory: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and the tokenizers of a model that has the checkpoint; touches no device."""
    family = _family(directory, checkpoint)
    return family.open(directory) if family else read_run(directory, checkpoint)


def load_params(directory: Path, checkpoint: str, placer: Placer | None = None) -> Any:
    """The parameters of `checkpoint` (see `find_params`), in this process: NumPy arrays, or arrays
    that a `placer` puts on its devices while they are read."""
    family = _family(directory, checkpoint)
    if family:
        return family.load_params(directory, placer)
    return restore_params(directory, checkpoint, placer)


def family_of(directory: Path) -> ModelFamily | None:
    """The family of a directory, None for a run."""
    return next((family for family in FAMILIES if family.matches(directory)), None)


def whole_model(directory: Path) -> Path:
    """The base model of an adapter; any other directory itself."""
    family = family_of(directory)
    return family.whole_model(directory) if family else directory


def check_family(directory: Path, advice: str = "") -> None:
    """UserError(CHECKPOINT), with the `advice`, if this is no directory of a model family."""
    if family_of(directory) is None:
        if (directory / "config.json").exists():
            read_json(directory / "config.json")  # UserError if it is damaged
        raise UserError(
            CHECKPOINT,
            f"{directory} is not a directory of transformers: expected a config.json with a "
            f"model_type{advice}",
        )


def export_of(model: ModelConfig, run: Path, kind: str = "") -> Export:
    """The functions that write a model as a directory of `kind`, a model_type. Without it, of the
    family that `run` is a directory of, or of the first that can express the model.

    UserError that names what the family, or the nearest one, cannot express.
    """
    exports = {family.model_type: family for family in FAMILIES if family.export}
    if not kind and (original := family_of(run)):
        kind = original.model_type
    if kind and kind not in exports:
        raise UserError(
            CONFIGURATION,
            f"--model_type is unknown: expected one of {', '.join(exports)}, got {kind!r}",
        )
    candidates = [
        (family, family.export, family.export.differences(model))
        for family in ([exports[kind]] if kind else exports.values())
        if family.export
    ]
    family, export, different = min(candidates, key=lambda candidate: len(candidate[2]))
    if different:
        expected, got = (
            ", ".join(f"model.{name}={pair[i]}" for name, pair in different.items()) for i in (0, 1)
        )
        raise UserError(
            CHECKPOINT,
            f"{run} is not supported by {family.name}"
            f"{'' if kind else ', the nearest family of transformers'}: expected {expected}, got "
            f"{got}",
        )
    return export


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

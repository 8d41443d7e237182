"""Model families that are refused by name: all other directories of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from seq2seq.pretrained.family import ModelFamily
from seq2seq.pretrained.transformers_family import model_type
from seq2seq.pretrained.weight_files import weights_path
from seq2seq.runtime.errors import CHECKPOINT, UserError

# What distinguishes architectures whose names suggest a supported one.
REASONS = {
    "t5gemma": "it has Gemma's layers: grouped queries, rotary positions, two norms around each "
    "sub-layer, and capped scores",
    "t5gemma2": "it joins self-attention and cross-attention, and has an encoder of images",
    "longt5": "it has local or transient-global attention",
    "switch_transformers": "it has mixtures of experts",
    "nllb-moe": "it has mixtures of experts",
    "led": "it has windowed attention",
    "bigbird_pegasus": "it has block-sparse attention",
    "pegasus_x": "it has block-local attention",
}


def refused(supported: Sequence[str]) -> ModelFamily:
    """All directories of transformers; their error lists the `supported` model types."""

    def refuse(directory: Path, *_: Any) -> NoReturn:
        name = model_type(directory)
        reason = f" ({REASONS[name]})" if name in REASONS else ""
        raise UserError(
            CHECKPOINT,
            f"{directory / 'config.json'}: model_type={name!r} is not supported{reason}: expected "
            f"{', '.join(supported[:-1])} or {supported[-1]}",
        )

    return ModelFamily(
        name="transformers",
        matches=lambda directory: model_type(directory) is not None,
        params_path=weights_path,
        open=refuse,
        load_params=refuse,
    )

"""The last model family: other directories of transformers, which are refused by name."""

from pathlib import Path
from typing import NoReturn

from seq2seq.interop.family import ModelFamily
from seq2seq.interop.pretrained import model_type
from seq2seq.interop.weight_files import weights_path
from seq2seq.runtime.errors import CHECKPOINT, UserError

SUPPORTED = "marian, m2m_100, mbart, bart, pegasus, t5, mt5 or umt5"
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


def _refuse(directory: Path) -> NoReturn:
    name = model_type(directory)
    reason = f" ({REASONS[name]})" if name in REASONS else ""
    raise UserError(
        CHECKPOINT,
        f"{directory / 'config.json'}: model_type={name!r} is not supported{reason}: expected "
        f"{SUPPORTED}",
    )


OTHERS = ModelFamily(
    name="transformers",
    matches=lambda directory: model_type(directory) is not None,
    params_path=weights_path,
    open=_refuse,
    load_params=_refuse,
)

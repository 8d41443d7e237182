"""Model families that are refused by name: adapters, and other directories of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from seq2seq.pretrained.family import ModelFamily
from seq2seq.pretrained.json_fields import read_json
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

ADAPTER_FILES = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"


def _has_adapter(directory: Path) -> bool:
    return any((directory / name).exists() for name in ADAPTER_FILES)


def _refuse_adapter(directory: Path) -> NoReturn:
    names = [name for name in ADAPTER_FILES if (directory / name).exists()]
    fields = read_json(directory / names[0]) if names[0] == ADAPTER_FILES[0] else {}
    base = fields.get("base_model_name_or_path") or "BASE"
    raise UserError(
        CHECKPOINT,
        f"{directory} has an adapter of peft ({', '.join(names)}): expected a whole model, got "
        f"{fields.get('peft_type', 'an adapter')} for the base model {base}; merge them: "
        f"PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained({base!r}), DIR)"
        ".merge_and_unload().save_pretrained(NEW), and save the tokenizer of the base model there",
    )


# With or without the base model beside it, which alone would translate otherwise.
ADAPTERS = ModelFamily(
    name="adapter",
    matches=_has_adapter,
    params_path=weights_path,
    open=_refuse_adapter,
    load_params=lambda directory, _: _refuse_adapter(directory),
)


def refused(supported: Sequence[str]) -> ModelFamily:
    """All directories of transformers; their error lists the `supported` model types."""

    def refuse(directory: Path) -> NoReturn:
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
        load_params=lambda directory, _: refuse(directory),
    )

"""LoRA adapters of peft: their matrices are added to the weights of the base model.

    W + scale · B A, scale = lora_alpha / r, with use_rslora lora_alpha / √r

Each tensor is merged when it is read, so that memory holds one besides the parameters. The config
and the tokenizer are those of the base model. What cannot be merged so is refused by name.
"""

import math
import re
from collections.abc import Sequence
from functools import partial
from os.path import isdir
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.files.hub import NAME, SCHEME, cached_snapshot, name_of_snapshot
from seq2seq.files.weight_names import ADAPTER_FILES
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.family import ModelFamily
from seq2seq.pretrained.json_fields import JsonFields, read_json
from seq2seq.pretrained.weight_files import OpenWeights, WeightFiles, weights_path
from seq2seq.runtime.errors import CHECKPOINT, UserError

SETTINGS, BASE = "adapter_config.json", "base_model_name_or_path"
TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# Modules of which a file may have copies under other names.
TABLES = "shared", "embed_tokens", "embed_positions", "relative_attention_bias", "lm_head"
# Fields that describe the training of the adapter, or that its tensors state again.
WITHOUT_EFFECT = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "eva_config",
    "exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "target_modules",
    "task_type", "use_rslora",
}  # fmt: skip
# Of init_lora_weights: others, such as pissa, change the weights of the base model too.
INITIAL = True, False, None, "gaussian", "orthogonal", "eva"
MOST = 10**6  # a bound of ranks and factors
MERGE = (
    "merge them with peft: PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(BASE), "
    "DIR).merge_and_unload().save_pretrained(NEW), and save the tokenizer of the base model there"
)


class Update(NamedTuple):
    """What is added to a tensor: scale · B A, by the names of A and B."""

    a: str
    b: str
    scale: float


class AdaptedWeights(WeightFiles):
    """The weights of a base model with those of an adapter added."""

    def __init__(self, adapter: Path, base: Path, model_class: str):
        super().__init__(base, model_class)
        self._adapter = WeightFiles(adapter, "AutoPeftModelForSeq2SeqLM", ADAPTER_FILES)
        fields = _fields(adapter)
        modules = dict.fromkeys(map(self._module, self._adapter.shapes))
        self._updates = dict(self._update(module, fields) for module in modules)
        if not modules or len(self._updates) < len(modules):
            self._refuse("expected tensors, at most one pair for each of the base model")

    def read(self, name: str) -> np.ndarray:
        """A tensor in float32, with what the adapter adds to it."""
        array = super().read(name)
        if name not in self._updates:
            return array
        a, b, scale = self._updates[name]
        return array + np.float32(scale) * (self._adapter.read(b) @ self._adapter.read(a))

    def _module(self, name: str) -> str:
        match = TENSOR.fullmatch(name)
        if match is None:
            self._refuse(f"the tensor {name} is not supported: expected lora_A and lora_B")
        return match[1]

    def _update(self, module: str, fields: JsonFields) -> tuple[str, Update]:
        """The tensor of the base model that a module has, and what is added to it."""
        bare = module.removeprefix("model.")
        names = [f"{name}.weight" for name in (module, bare, f"model.{bare}")]
        name = next((name for name in names if name in self.shapes), "")
        if module.rpartition(".")[2] in TABLES or len(self.shapes.get(name, ())) != 2:
            self._refuse(
                f"the module {module} is not supported: expected one of attention or feed-forward "
                "of the base model"
            )
        a, b = (f"base_model.model.{module}.lora_{part}.weight" for part in "AB")
        rank = _of_module(fields, "rank_pattern", module, "r")
        outputs, inputs = self.shapes[name]
        for part, shape in ((a, (rank, inputs)), (b, (outputs, rank))):
            if self._adapter.shapes.get(part) != shape:
                got = self._adapter.shapes.get(part, "no such tensor")
                self._refuse(f"{part} does not fit the base model: expected {shape}, got {got}")
        alpha = _of_module(fields, "alpha_pattern", module, "lora_alpha")
        rooted = fields.boolean("use_rslora", False)
        return name, Update(a, b, alpha / (math.sqrt(rank) if rooted else rank))

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(CHECKPOINT, f"{self._adapter.path}: {reason}; {MERGE}")


def _fields(adapter: Path) -> JsonFields:
    """The fields of an adapter's config. UserError(CHECKPOINT) for one that cannot be applied."""
    path = adapter / SETTINGS
    content = read_json(path)
    fields = JsonFields(path, content)
    if fields.get("peft_type") != "LORA":
        fields.refuse("peft_type", f"'LORA'; {MERGE}")
    if fields.get("bias", "none") != "none":
        fields.refuse("bias", f"'none'; {MERGE}")
    if fields.get("init_lora_weights", True) not in INITIAL:
        fields.refuse("init_lora_weights", f"{', '.join(map(repr, INITIAL))}; {MERGE}")
    for field, value in content.items():
        if value and field not in WITHOUT_EFFECT:
            fields.refuse(field, f"no value; {MERGE}")
    for field, pattern, types in (
        ("r", "rank_pattern", (int,)),
        ("lora_alpha", "alpha_pattern", (int, float)),
    ):
        _check_number(fields, field, fields.get(field), types)
        values = fields.get(pattern) or {}
        if not isinstance(values, dict):
            fields.refuse(pattern, "an object")
        for module, value in values.items():
            if not re.fullmatch(r"[\w.]+", module):
                fields.refuse(pattern, f"names of modules without wildcards; {MERGE}")
            _check_number(fields, pattern, value, types)
    return fields


def _check_number(fields: JsonFields, field: str, value: Any, types: tuple[type, ...]) -> None:
    if type(value) not in types or not 0 < value < MOST:
        kind = "numbers" if float in types else "integers"
        fields.refuse(field, f"positive {kind} below {MOST}")


def _of_module(fields: JsonFields, pattern: str, module: str, default: str) -> Any:
    """The value of the first name in a pattern that ends the name of the module, as in peft."""
    for name, value in (fields.get(pattern) or {}).items():
        if f".{module}".endswith(f".{name}"):
            return value
    return fields[default]


def base_on_hub(adapter: Path) -> str:
    """hf://OWNER/NAME[@REVISION] of the base model, if the adapter was fetched from the Hub and
    names a repository; otherwise empty. UserError(CHECKPOINT) if it cannot be merged."""
    fields = _fields(adapter)
    revision = fields.get("revision")
    name = f"{SCHEME}{fields.get(BASE)}" + (f"@{revision}" if revision else "")
    return name if name_of_snapshot(adapter) and NAME.fullmatch(name) else ""


def base_directory(adapter: Path) -> Path:
    """The directory of an adapter's base model: a path, absolute or relative to the adapter, or of
    an adapter from the Hub a repository in the cache (`base_on_hub`).

    UserError(CHECKPOINT) if there is no such directory, or if the adapter cannot be merged.
    """
    fields, field = _fields(adapter), BASE
    name = fields.get(field)
    if directory := cached_snapshot(base_on_hub(adapter)):
        return directory
    if not isinstance(name, str) or not name or not isdir(adapter / name):
        fields.refuse(
            field,
            f"the directory of the base model, absolute or relative to {adapter}, or for an "
            "adapter from the Hub OWNER/NAME; download both models and write the path of the base "
            "model there",
        )
    return adapter / name


def adapter_family(families: Sequence[ModelFamily]) -> ModelFamily:
    """Directories with an adapter of peft, whose base model is of one of the `families`.

    A base model in the same directory is not used: the adapter names its own.
    """

    def base_of(adapter: Path) -> tuple[ModelFamily, Path, OpenWeights]:
        base = base_directory(adapter)
        family = next((family for family in families if family.matches(base)), None)
        if family is None or _has_adapter(base):
            raise UserError(
                CHECKPOINT,
                f"{adapter / SETTINGS}: the base model {base} is not supported: expected a "
                "directory of transformers with a whole model",
            )
        return family, base, partial(AdaptedWeights, adapter)

    def open_adapted(adapter: Path) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
        family, base, open_weights = base_of(adapter)
        return family.open(base, open_weights)

    def load_adapted(adapter: Path, placer: Placer | None = None) -> Any:
        family, base, open_weights = base_of(adapter)
        return family.load_params(base, placer, open_weights)

    return ModelFamily(
        name="LoRA adapter",
        matches=_has_adapter,
        params_path=lambda directory: weights_path(directory, ADAPTER_FILES),
        open=open_adapted,
        load_params=load_adapted,
        whole_model=base_directory,
    )


def _has_adapter(directory: Path) -> bool:
    return any((directory / name).exists() for name in (SETTINGS, *ADAPTER_FILES))

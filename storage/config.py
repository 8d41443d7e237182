"""The config tree of model, data, training and decoding: validation, config.json, comparison."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from data.config import DataConfig
from data.tokenizer import Special
from model.config import DROPOUT_RATES, ModelConfig
from runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from runtime.files import write_atomic
from runtime.paths import check_local_path
from storage.decoding_config import DecodingConfig
from storage.migration import FORMAT_VERSION, migrate
from storage.training_config import TrainingConfig


@dataclass(unsafe_hash=True)
class Config:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def validate(self) -> None:
        """Raise UserError(CONFIGURATION) with the rule that is broken: expected, got."""
        check_local_path("config.training.init_from", self.training.init_from)
        for file in self.data.vocab_files:
            check_local_path("config.data.vocab", file)
        try:
            for part in (self.model, self.data, self.training, self.decoding):
                part.validate()
            self._check_sizes()
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None

    def _check_sizes(self) -> None:
        """The rules that concern several parts. Raises ValueError."""
        longest = max(self.data.source_length, self.data.target_length)
        if longest > self.model.max_length:
            raise ValueError(
                "data.source_length and data.target_length must be at most model.max_length, "
                f"got {longest} > {self.model.max_length}"
            )
        if self.training.tokens_per_batch < self.data.target_length:
            raise ValueError(
                "training.tokens_per_batch must be at least data.target_length (one row), got "
                f"{self.training.tokens_per_batch} < {self.data.target_length}"
            )
        if self.data.vocab and self.training.init_from:
            raise ValueError(
                "data.vocab is not supported with training.init_from, whose vocabulary is used; "
                f"give one of them, got {self.data.vocab!r} and {self.training.init_from!r}"
            )
        if self.model.tied_embeddings == "three-way" and not self.data.joint_vocab:
            raise ValueError(
                "three-way tied embeddings need data.joint_vocab=true, got false; or set "
                "model.tied_embeddings=two-way"
            )

    @property
    def special(self) -> Special:
        """The ids of the special tokens."""
        m = self.model
        return Special(m.pad_id, m.start_id, m.end_id, m.unknown_id)

    @property
    def rows_per_batch(self) -> int:
        """Packed rows of one global batch."""
        return self.training.tokens_per_batch // self.data.target_length

    @property
    def rows_at_a_time(self) -> int:
        """Packed rows of one micro-batch over all devices, which are in memory at once."""
        return -(-self.rows_per_batch // self.training.accumulate)


def save_config(config: Config, path: Path) -> None:
    """Write the config and its format_version as JSON."""
    content = {"format_version": FORMAT_VERSION, **asdict(config)}
    write_atomic(path, json.dumps(content, indent=2) + "\n")


def load_config(path: Path) -> Config:
    """Read what `save_config` wrote, in this or an older format.

    Raises UserError(CHECKPOINT) for a missing, damaged or newer file and UserError(CONFIGURATION)
    for invalid fields.
    """
    config = Config()
    for part, given in _read_sections(path).items():
        section = getattr(config, part, None)
        if section is not None:
            _set_fields(section, part, given, path)
    config.validate()
    return config


def _read_sections(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a config.json, migrated to the current format."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError(f"expected a JSON object, got {type(tree).__name__}")
    except OSError:
        raise UserError(
            CHECKPOINT,
            f"{path.parent} is not a run directory: it has no {path.name}; "
            "set --workdir or training.init_from to a directory that train.py wrote",
        ) from None
    except ValueError as error:
        raise UserError(CHECKPOINT, f"{path} is damaged: {error}") from None
    sections = migrate(tree, path)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(
                CHECKPOINT, f"{path} is damaged: {name} must be a JSON object, got {section!r}"
            )
    return sections


def _set_fields(section: Any, part: str, given: dict[str, Any], path: Path) -> None:
    """Set the fields of one section. Raises UserError(CONFIGURATION) for a bad name or type."""
    types = {one.name: one.type for one in fields(section)}
    for name, value in given.items():
        if name not in types:
            raise UserError(
                CONFIGURATION,
                f"{path}: unknown field {part}.{name}; the run was written by another version of "
                "this program",
            )
        if type(value) is not types[name] and not (types[name] is float and type(value) is int):
            raise UserError(
                CONFIGURATION,
                f"{path}: {part}.{name} must be {types[name].__name__}, got {value!r}",
            )
        setattr(section, name, value)


def is_foreign(path: Path) -> bool:
    """Whether `path` is valid JSON but not the config.json of a run."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not isinstance(tree, dict) or not {part.name for part in fields(Config)} <= set(tree)


def take_model(config: Config, other: Config) -> list[str]:
    """Set the fields of `config` that have default values and that parameters and vocabulary of
    another run determine to their values in `other`.

    Returns the model fields that still differ.
    """
    default, independent = Config(), {*DROPOUT_RATES, "dtype", "remat"}  # fit any parameters
    different = []
    for part, names in (
        ("model", [one.name for one in fields(config.model) if one.name not in independent]),
        ("data", ["joint_vocab"]),
        ("decoding", ["suppress", "renormalize"]),
    ):
        target, source = getattr(config, part), getattr(other, part)
        for name in names:
            given, loaded = getattr(target, name), getattr(source, name)
            if given == getattr(getattr(default, part), name):
                setattr(target, name, loaded)
            elif given != loaded and part == "model":
                different.append(f"{part}.{name} {loaded!r} → {given!r}")
    return different

"""The config tree of model, data, training and decoding: validation, config.json, comparison."""

import json
from dataclasses import asdict, dataclass, fields, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import TEMPLATES, DataConfig
from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.config.migration import FORMAT_VERSION, migrate
from seq2seq.config.special_tokens import Special
from seq2seq.config.training_config import TrainingConfig
from seq2seq.files.output_files import write_atomic
from seq2seq.model.config import DROPOUT_RATES, ModelConfig
from seq2seq.model.options import Options
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.runtime.json_objects import json_object
from seq2seq.runtime.paths import check_local_path


@dataclass(unsafe_hash=True)
class Config(Options):
    """All settings of a run; it is open until `validate` (model/options.py describes this)."""

    model: ModelConfig = dataclass_field(default_factory=ModelConfig)
    data: DataConfig = dataclass_field(default_factory=DataConfig)
    training: TrainingConfig = dataclass_field(default_factory=TrainingConfig)
    decoding: DecodingConfig = dataclass_field(default_factory=DecodingConfig)

    def validate(self) -> None:
        """Check all rules and close this config and its sections: assignment raises from then on.

        Raises UserError(CONFIGURATION) with the first rule that is broken: expected, got.
        """
        for file in self.data.vocab_files:
            check_local_path("config.data.vocab", file)
        try:
            super().validate()
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None

    def check_rules(self) -> None:
        """The rules that concern several sections. Raises ValueError."""
        longest = max(self.data.source_length, self.data.target_length)
        # Until the vocabulary is known, the positions and sizes of training.init_from are not.
        unknown = self.training.init_from and not self.model.source_vocab_size
        if longest > self.model.longest and not unknown:
            raise ValueError(
                "data.source_length and data.target_length must be at most model.max_length with "
                f"model.positions={self.model.positions}, got {longest} > {self.model.longest}"
            )
        if self.training.model_parallel > 1 and not unknown:
            self._check_model_parallel()
        if self.training.tokens_per_batch < self.data.target_length:
            raise ValueError(
                "training.tokens_per_batch must be at least data.target_length (one row), got "
                f"{self.training.tokens_per_batch} < {self.data.target_length}"
            )
        if self.training.r_drop and not any(getattr(self.model, name) for name in DROPOUT_RATES):
            raise ValueError(
                f"training.r_drop={self.training.r_drop} has no effect without dropout; set "
                "model.dropout above 0 or remove it"
            )
        if self.data.vocab and self.training.init_from:
            raise ValueError(
                "data.vocab is not supported with training.init_from, whose vocabulary is used; "
                f"give one of them, got {self.data.vocab!r} and {self.training.init_from!r}"
            )
        if self.model.shares_inputs and not self.data.joint_vocab:
            raise ValueError(
                f"model.tied_embeddings={self.model.tied_embeddings} needs data.joint_vocab=true, "
                "got false; or set model.tied_embeddings=two-way or none"
            )

    def _check_model_parallel(self) -> None:
        from seq2seq.model.placement import divisors  # which imports jax

        model, devices = self.model, self.training.model_parallel
        if devices not in divisors(model, devices):
            possible = divisors(model, model.num_heads)
            raise ValueError(
                f"training.model_parallel must be {' or '.join(map(str, possible))} with "
                f"model.kind={model.kind}, model.num_heads={model.num_heads} and "
                f"model.d_ff={model.d_ff}, got {devices}"
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


def flat_values(config: Config) -> dict[str, Any]:
    """The values of all fields by name, such as {"model.d_model": 512, …}."""
    return {
        f"{section}.{name}": value
        for section, values in asdict(config).items()
        for name, value in values.items()
    }


def load_config(path: Path) -> Config:
    """Read what `save_config` wrote, in this or an older format.

    Raises UserError(CHECKPOINT) for a missing, damaged or newer file and for invalid fields.
    """
    config = Config()
    names = [field.name for field in fields(Config)]
    for name, section in _read_sections(path).items():
        if name not in names:
            raise _damaged(path, f"unknown section {name!r}: expected {', '.join(names)}")
        _set_fields(getattr(config, name), section, path)
    try:
        config.validate()
    except UserError as error:
        raise _damaged(path, str(error)) from None
    return config


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(CHECKPOINT, f"{path} is damaged: {reason}")


def _read_sections(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a config.json, migrated to the current format."""
    try:
        tree = json_object(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            CHECKPOINT,
            f"{path.parent} is not a run directory: it has no {path.name}; "
            "set --workdir or training.init_from to a directory that train.py wrote",
        ) from None
    except OSError as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    sections = migrate(tree, path)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise _damaged(path, f"{name} must be a JSON object, got {section!r}")
    return sections


def _set_fields(section: Options, content: dict[str, Any], path: Path) -> None:
    """Set the fields of one section. Raises UserError(CHECKPOINT) for a bad name or type."""
    for name, value in content.items():
        try:
            setattr(section, name, value)
        except AttributeError:
            raise UserError(
                CHECKPOINT,
                f"{path}: unknown field {section.section}.{name}; the run was written by another "
                "version of this program",
            ) from None
        except TypeError as error:
            raise _damaged(path, str(error)) from None


def is_foreign(path: Path) -> bool:
    """Whether `path` is valid JSON but not the config.json of a run."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return not isinstance(tree, dict) or not {section.name for section in fields(Config)} <= set(
        tree
    )


def has_config(run: Path) -> bool:
    """Whether the directory `run` has the config.json of a run, intact or damaged."""
    path = run / "config.json"
    return path.exists() and not is_foreign(path)


def take_model(config: Config, trained: Config) -> tuple[Config, list[str]]:
    """Copy from `trained`, the config of a trained model, the fields that its parameters and
    vocabulary fix and that still have their defaults in `config`.

    Returns the new config, not yet validated, and the fields of the model that still differ.
    """
    # These fit any parameters.
    default, independent = Config(), {*DROPOUT_RATES, "dtype", "remat", "attention_kernels"}
    model_fields = [field.name for field in fields(ModelConfig) if field.name not in independent]
    changed = {}
    for section, names in (
        ("model", model_fields),
        ("data", ["joint_vocab", *TEMPLATES]),
        ("decoding", ["suppress", "renormalize"]),
    ):
        target, source, initial = (getattr(part, section) for part in (config, trained, default))
        values = {
            name: getattr(source, name)
            for name in names
            if getattr(target, name) == getattr(initial, name)
        }
        changed[section] = replace(target, **values)
    return replace(config, **changed), [
        f"model.{name} {getattr(trained.model, name)!r} → {getattr(changed['model'], name)!r}"
        for name in model_fields
        if getattr(changed["model"], name) != getattr(trained.model, name)
    ]

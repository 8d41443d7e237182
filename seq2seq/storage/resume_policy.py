"""What may change when a run is resumed: its config, and its data."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from seq2seq.config.migration import BEFORE_5
from seq2seq.config.tree import (
    Config,
    DecodingConfig,
    flat_values,
    is_foreign,
    load_config,
    take_model,
)
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, OUTPUT, UserError
from seq2seq.runtime.logs import Log
from seq2seq.storage.run_files import steps

# Fields that may change when a run is resumed: neither parameter shapes nor data depend on them.
# (A change of the learning rate takes effect from the resumed step on.)
CHANGEABLE = {
    "training.max_epochs", "training.max_hours",
    "training.num_steps", "training.log_every", "training.eval_every", "training.checkpoint_every",
    "training.keep", "training.patience", "training.eval_sentences", "training.loss_block",
    "training.accumulate", "training.model_parallel", "training.profile", "model.remat",
    "model.attention_kernels",
    "data.data_dir",
    "training.skip_nonfinite", "training.allow_data_change", "training.deterministic",
    "training.learning_rate", "training.warmup_steps", "training.clip_norm",
    *(f"decoding.{field.name}" for field in fields(DecodingConfig)),
}  # fmt: skip


def stored_config(run: Path) -> Config | None:
    """The config of the run in a directory, None if there is no run."""
    path = run / "config.json"
    if is_foreign(path):
        raise UserError(
            OUTPUT,
            f"{path} is not the config of a run: choose another --workdir, or set "
            "training.init_from to a model to start from",
        )
    if path.exists():
        return load_config(path)
    if steps(run):
        raise UserError(
            CHECKPOINT,
            f"{run} has checkpoints but no config.json; restore config.json, "
            "or choose another --workdir",
        )
    return None


def resumed_config(config: Config, previous: Config, run: Path, log: Log) -> Config:
    """The config with which a run that had the config `previous` continues; changes are logged.

    The vocabulary fields are those of the run, and with an unchanged training.init_from the fields
    that were taken from that model. Raises UserError(CONFIGURATION) with all fields that differ but
    are not CHANGEABLE.
    """
    config = keep_before_5(config, previous)
    init_from = previous.training.init_from
    if init_from and config.training.init_from == init_from:
        config, _ = take_model(config, previous)
    config = replace(
        config,
        model=replace(
            config.model,
            source_vocab_size=previous.model.source_vocab_size,
            target_vocab_size=previous.model.target_vocab_size,
            start_id=(previous if config.data.target_start else config).model.start_id,
        ),
        data=replace(config.data, vocab_sha256=previous.data.vocab_sha256),
    )
    check_changes(flat_values(previous), flat_values(config), run, log)
    config.validate()
    return config


def keep_before_5(config: Config, previous: Config) -> Config:
    """The config with the fields of BEFORE_5 as the run has them, where they were not set: a run
    that began with the earlier values continues with them."""
    default, sections = Config(), {}
    for name, values in BEFORE_5.items():
        old, new, usual = (getattr(part, name) for part in (previous, config, default))
        kept = {
            field: value
            for field, value in values.items()
            if getattr(old, field) == value and getattr(new, field) == getattr(usual, field)
        }
        sections[name] = replace(new, **kept)
    return replace(config, **sections)


def check_changes(old: dict[str, Any], new: dict[str, Any], run: Path, log: Log) -> None:
    """Log the fields that have changed. UserError(CONFIGURATION) if one is not CHANGEABLE."""
    changes = {key: f"{key} {old[key]!r} → {new[key]!r}" for key in new if new[key] != old[key]}
    changeable, clip = CHANGEABLE, "training.clip_norm"
    if (old[clip] == 0) != (new[clip] == 0):  # the optimizer has another state without clipping
        changeable = CHANGEABLE - {clip}
    if refused := [text for key, text in changes.items() if key not in changeable]:
        raise UserError(
            CONFIGURATION,
            f"{run} was trained with another configuration: {', '.join(refused)}; "
            "keep the earlier value, choose another --workdir, or start over with --overwrite",
        )
    for text in changes.values():
        log(f"changed: {text}")
    schedule = new["training.schedule"]
    if "training.num_steps" in changes and schedule in ("cosine", "linear"):
        log(
            f"warning: the learning rate changes from the resumed step on, because "
            f"training.schedule={schedule} decays to 0 at training.num_steps: the result "
            "differs from that of a run with this num_steps from the start"
        )


def check_same_data(facts: dict[str, Any], data: dict[str, str], config: Config) -> None:
    """UserError(DATA) if a run with these facts (of run.json) had other data, unless
    training.allow_data_change is set."""
    changed = [name for name in data if facts.get("data", data).get(name) != data[name]]
    if changed and not config.training.allow_data_change:
        raise UserError(DATA, data_change_message(changed))


def data_change_message(files: list[str]) -> str:
    """The error message for training data that differs from that of the resumed run."""
    return (
        f"{', '.join(files)} changed since this run began, so the run cannot be resumed exactly; "
        "restore the data, choose another --workdir, start over with --overwrite, or continue "
        "with the new data: --config.training.allow_data_change"
    )

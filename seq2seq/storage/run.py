"""The directory of a training run: lock, configuration, vocabulary, log, metrics and samples."""

import errno
import json
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from seq2seq.config.migration import BEFORE_5
from seq2seq.config.tree import (
    Config,
    DecodingConfig,
    is_foreign,
    load_config,
    save_config,
    take_model,
)
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import save_tokenizers
from seq2seq.files.locks import lock_file
from seq2seq.files.output_files import write_atomic
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, OUTPUT, UserError
from seq2seq.runtime.streams import write_stderr
from seq2seq.storage.event_file import EventFile
from seq2seq.storage.records import append, metrics_until, read_facts, start_facts
from seq2seq.storage.replicas.replica import Replica
from seq2seq.storage.run_files import LEFT_BY_FAILED_START, RUN_FILES, steps

# Fields that may change when a run is resumed: neither parameter shapes nor data depend on them.
# (A change of the learning rate takes effect from the resumed step on.)
CHANGEABLE = {
    "training.max_epochs", "training.max_hours",
    "training.num_steps", "training.log_every", "training.eval_every", "training.checkpoint_every",
    "training.keep", "training.patience", "training.eval_sentences", "training.loss_block",
    "training.accumulate", "training.profile", "model.remat", "model.attention_kernels",
    "data.data_dir",
    "training.skip_nonfinite", "training.allow_data_change", "training.deterministic",
    "training.learning_rate", "training.warmup_steps", "training.clip_norm",
    *(f"decoding.{field.name}" for field in fields(DecodingConfig)),
}  # fmt: skip


class Run:
    """The directory of one training run, locked by one process at a time."""

    resumed = False  # whether the directory holds a run that is resumed; set by `resume_config`

    def __init__(self, path: Path, url: str = ""):
        """Create or reopen and lock the directory, the working copy of a run in object storage if
        there is a `url`.

        Raises UserError(OUTPUT) if it cannot be written or is in use.
        """
        self.path = path.expanduser().absolute()
        self.name = url or str(self.path)  # for messages
        self.replica = Replica(url, self.path, self.log) if url else None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(
                self.path / "LOCK",
                f"{self.path} is in use by another training",
                "stop it or choose another --workdir",
            )
        except OSError as error:
            raise UserError(
                OUTPUT,
                f"cannot write the run directory {self.path}: {error.strerror}; "
                "choose another --workdir",
            ) from None
        self._terminal = sys.stderr.isatty()

    def open_replica(self, overwrite: bool) -> None:
        """Lock the replica in object storage, if there is one, and download what is newer there.

        Raises UserError as `Replica.start` and `send_files`.
        """
        if self.replica is not None:
            self.replica.start(overwrite)
            if not overwrite:
                self.send_files()

    def send_files(self) -> None:
        """In process 0 of several, make the files of a run in object storage those of all
        processes. Raises UserError(OUTPUT) if the upload fails."""
        if self.replica is not None and processes.count() > 1:
            self.replica.upload()

    def receive_files(self) -> None:
        """In the other processes, download the files that process 0 has sent. Raises
        UserError(CHECKPOINT) if that fails."""

    def check_replica(self) -> None:
        """Raise UserError(OUTPUT) if another training has taken over the replica."""
        if self.replica is not None:
            self.replica.check_lock()

    def finish_upload(self) -> None:
        """Upload the run, if it has a replica, and wait. Raises UserError(OUTPUT) if it fails."""
        if self.replica is not None:
            self.replica.upload()

    def try_upload(self) -> None:
        """Upload a run that ends with an error, above all its log, if it has a replica and that is
        possible (`Replica.try_upload`)."""
        if self.replica is not None:
            self.replica.try_upload()

    def clear(self) -> None:
        """Delete the run in this directory and its replica; other files stay.

        Raises UserError(OUTPUT) as `check_clearable`, and if the replica cannot be deleted.
        """
        self.check_clearable()
        if self.replica is not None:
            self.replica.clear()
        self.delete_files()

    def delete_files(self) -> None:
        """Delete the files of the run in this directory."""
        more = self.path.glob("run.json.corrupt-*")  # quarantined after run.json.corrupt
        for path in (*more, *(self.path / name for name in RUN_FILES)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def check_clearable(self) -> None:
        """Raise UserError(OUTPUT) if the directory holds files of RUN_FILES but no run."""
        if not self._is_clearable():
            raise UserError(
                OUTPUT,
                f"{self.path} holds files but no run: expected the config.json of a run; "
                "--overwrite deletes nothing here, choose another --workdir",
            )

    def _is_clearable(self) -> bool:
        """Whether the directory holds a run, or only what a failed first start has left."""
        config = self.path / "config.json"
        if is_foreign(config):
            return False
        if config.exists():
            return True
        left_by_failed_start = set(LEFT_BY_FAILED_START)
        if not (self.path / "vocab" / "tokenizers.json").exists():
            left_by_failed_start.remove("vocab")
        names = set(RUN_FILES) - left_by_failed_start
        return not any((self.path / name).exists() for name in names)

    def resume_config(self, config: Config) -> Config:
        """The config with which the run in the directory continues; `config` itself if it has none.

        The vocabulary fields are those of the run, and with an unchanged training.init_from the
        fields that were taken from that model. Raises UserError(CONFIGURATION) with all fields that
        differ but are not CHANGEABLE, UserError(CHECKPOINT) for checkpoints without config.json,
        and UserError(OUTPUT) for the config.json of another program.
        """
        path = self.path / "config.json"
        if is_foreign(path):
            raise UserError(
                OUTPUT,
                f"{path} is not the config of a run: choose another --workdir, or set "
                "training.init_from to a model to start from",
            )
        self.resumed = path.exists()
        if not self.resumed:
            if steps(self.path):
                raise UserError(
                    CHECKPOINT,
                    f"{self.path} has checkpoints but no config.json; restore config.json, "
                    "or choose another --workdir",
                )
            return config
        previous = load_config(path)
        config = keep_before_5(config, previous)
        if config.training.init_from == previous.training.init_from != "":
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
        self._check_changes(flatten(asdict(previous)), flatten(asdict(config)))
        config.validate()
        return config

    def _check_changes(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Log the changed fields. UserError(CONFIGURATION) if one is not CHANGEABLE."""
        changes = {key: f"{key} {old[key]!r} → {new[key]!r}" for key in new if new[key] != old[key]}
        changeable, clip = CHANGEABLE, "training.clip_norm"
        if bool(old[clip]) != bool(new[clip]):  # the optimizer has another state without clipping
            changeable = CHANGEABLE - {clip}
        if refused := [text for key, text in changes.items() if key not in changeable]:
            raise UserError(
                CONFIGURATION,
                f"{self.path} was trained with another configuration: {', '.join(refused)}; "
                "keep the earlier value, choose another --workdir, or start over with --overwrite",
            )
        for text in changes.values():
            self.log(f"changed: {text}")
        schedule = new["training.schedule"]
        if "training.num_steps" in changes and schedule in ("cosine", "linear"):
            self.log(
                f"warning: the learning rate changes from the resumed step on, because "
                f"training.schedule={schedule} decays to 0 at training.num_steps: the result "
                "differs from that of a run with this num_steps from the start"
            )

    def save_vocabulary(self, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
        """Write vocab/ of a new run. UserError(OUTPUT) if it is a link to another directory."""
        if self.resumed:
            return
        refuse_link(self.path / "vocab", "choose another --workdir")
        save_tokenizers(str(self.path / "vocab"), *tokenizers)

    def check_and_record(self, config: Config, data: dict[str, str]) -> None:
        """Compare the data with that of a resumed run, then write config.json, and run.json with
        command, versions, host and data files.

        `data` maps files to their sha256. Raises UserError(DATA) if a resumed run had other data,
        unless training.allow_data_change is set.
        """
        path = self.path / "run.json"
        previous, damage = read_facts(path)
        if damage:
            self.log(
                f"warning: {damage}; the data is compared with the checkpoint's record instead"
            )
        check_same_data(previous, data, config)
        save_config(config, self.path / "config.json")
        facts = start_facts(config.training.seed, data)
        if previous:
            resumed = [*previous.get("resumed", []), facts]
            facts = {**previous, "data": data, "resumed": resumed}
        write_atomic(path, json.dumps(facts, indent=2) + "\n")

    def log(self, line: str) -> None:
        """Write a line to stderr and train.log."""
        write_stderr(f"{line}\n")
        self.note(line)

    def note(self, line: str) -> None:
        """Write a line to train.log only."""
        self._append("train.log", line)

    @contextmanager
    def log_traceback(self) -> Iterator[None]:
        """Write the traceback of an error other than a UserError to train.log."""
        try:
            yield
        except UserError:
            raise
        except Exception:
            self.note(traceback.format_exc())
            raise

    def _append(self, name: str, line: str) -> None:
        with warn_on_write_error(name):
            append(self.path / name, f"{line}\n".encode("utf-8", "backslashreplace"))

    def progress(self, line: str) -> None:
        """Replace the progress line if stderr is a terminal."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            write_stderr(line[:width])

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """Append a line to metrics.jsonl and points to TensorBoard."""
        entry = {"step": step, "time": round(time.time(), 3), **metrics}
        self._append("metrics.jsonl", json.dumps(entry))
        with warn_on_write_error("tensorboard"):
            self._events.write(step, metrics)

    def open_metrics(self, step: int, last: Mapping[str, int]) -> None:
        """Open metrics.jsonl and TensorBoard at `step`. Entries after the `last` step of their kind
        (`metrics_until`) and points after `step` are dropped."""
        path = self.path / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        kept, damaged = metrics_until(content, last)
        if damaged:
            self.log(f"warning: {path.name}: {damaged:,} damaged lines are dropped")
        if kept != content:
            write_atomic(path, kept)
        self._events = EventFile(self.path / "tensorboard", step)

    def write_samples(self, name: int | str, lines: list[str]) -> None:
        """Write samples/NAME.txt."""
        text = "".join(line + "\n" for line in lines)
        with warn_on_write_error("samples"):
            directory = self.path / "samples"
            if directory.is_symlink():
                raise OSError(errno.ELOOP, f"{directory} is a symbolic link")
            directory.mkdir(exist_ok=True)
            write_atomic(directory / f"{name}.txt", text)

    def write_scores(self, scores: dict[str, Any]) -> None:
        """Write scores.json: the checkpoint and, by name of the held-out data, its scores."""
        with warn_on_write_error("scores.json"):
            write_atomic(self.path / "scores.json", json.dumps(scores, indent=2) + "\n")

    def close(self) -> None:
        """Unlock the directory."""
        self.progress("")
        if self.replica is not None:
            self.replica.close()
        self._lock.close()


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


@contextmanager
def warn_on_write_error(name: str) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a warning: training continues."""
    try:
        yield
    except OSError as error:
        write_stderr(f"warning: part of {name} is lost: {error.strerror or error}\n")


def refuse_link(directory: Path, alternative: str) -> None:
    """UserError(OUTPUT) if a directory that a run writes is a link to another directory."""
    if directory.is_symlink():
        raise UserError(
            OUTPUT,
            f"{directory} is a symbolic link: expected a directory of this run; delete the link, "
            f"or {alternative}",
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


def flatten(tree: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    out = {}
    for key, value in tree.items():
        inner = isinstance(value, dict)
        out.update(flatten(value, f"{prefix}{key}.") if inner else {prefix + key: value})
    return out

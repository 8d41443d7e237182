"""A run directory: who holds it, what was asked for, and what happened (log, metrics, samples)."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from runtime.errors import CHECKPOINT, CONFIGURATION, DATA, OUTPUT, UserError
from runtime.files import lock_file, write_atomic
from storage.checkpoint import steps
from storage.config import (
    Config,
    DecodingConfig,
    is_foreign,
    load_config,
    save_config,
    take_model,
)
from storage.records import metrics_until, read_facts

# Fields that may change when a run goes on: the parameters' shapes and the data do not depend on
# them. (Those that decide the learning rate bend its schedule from there on.)
MAY_CHANGE = {
    "training.num_steps", "training.log_every", "training.eval_every", "training.checkpoint_every",
    "training.keep", "training.patience", "training.eval_sentences", "training.loss_block",
    "training.accumulate", "training.profile", "model.remat", "data.data_dir",
    "training.skip_nonfinite", "training.allow_data_change", "training.deterministic",
    "training.learning_rate", "training.warmup_steps", "training.clip_norm",
    *(f"decoding.{one.name}" for one in fields(DecodingConfig)),
}  # fmt: skip
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")
OURS = (
    "run.json",
    "run.json.corrupt",
    "metrics.jsonl",
    "train.log",
    "best.json",
    "vocab",
    "checkpoints",
    "average",
    "samples",
    "tensorboard",
    "profile",
    "config.json",
)  # deleted last: it marks a run


class Run:
    """The directory runs/NAME of one training run; one process holds it at a time."""

    goes_on = False  # `adopt` finds an earlier start of the run

    def __init__(self, path: Path):
        """Create or reopen it. Raises UserError(OUTPUT) where it cannot be written or is in use."""
        self.path = path.expanduser().absolute()
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
        self._tensorboard = None
        self._live = sys.stderr.isatty()

    def clear(self) -> None:
        """Delete the run that is here; raises UserError(OUTPUT) for what does not look like one."""
        if (
            is_foreign(config := self.path / "config.json")
            or not config.exists()
            and any(
                (self.path / name).exists()
                for name in OURS
                if name != "train.log"
                and not (name == "vocab" and (self.path / "vocab" / "tokenizers.json").exists())
            )
        ):
            raise UserError(
                OUTPUT,
                f"{self.path} holds files but no run (no config.json, or not a run's), so "
                "--overwrite deletes nothing; choose another --workdir",
            )
        for name in OURS:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def adopt(self, config: Config) -> None:
        """A run that goes on must agree with what it was.

        What its vocabulary decided comes from the run. Raises UserError(CONFIGURATION) that names
        each field that differs, UserError(CHECKPOINT) for checkpoints of which nothing is known.
        """
        path = self.path / "config.json"
        self.goes_on = path.exists()
        if not self.goes_on and steps(self.path):
            raise UserError(
                CHECKPOINT,
                f"{self.path} has checkpoints but no config.json; bring it "
                "back, or choose another --workdir",
            )
        if self.goes_on:
            before = load_config(path)
            if config.training.init_from == before.training.init_from != "":
                take_model(config, before)
            config.model.source_vocab_size = before.model.source_vocab_size
            config.model.target_vocab_size = before.model.target_vocab_size
            config.data.vocab_sha256 = before.data.vocab_sha256
            old, new = flat(asdict(before)), flat(asdict(config))
            changed = [k for k in new if new[k] != old[k]]
            if refused := [k for k in changed if k not in MAY_CHANGE]:
                what = ", ".join(f"{k} {old[k]!r} → {new[k]!r}" for k in refused)
                raise UserError(
                    CONFIGURATION,
                    f"{self.path} was trained with another configuration: {what}; "
                    "choose another --workdir, or --overwrite to begin anew",
                )
            for key in changed:
                self.log(f"changed: {key} {old[key]!r} → {new[key]!r}")

    def describe(self, config: Config, data: dict[str, str]) -> None:
        """Write the resolved config.json, and in run.json what made it: command, versions, data, ….

        `data` is file → sha256; a run that goes on must find the same. Raises UserError(DATA).
        """
        here, path = Path(__file__).parent, self.path / "run.json"
        before, damaged = read_facts(path)
        if damaged:
            self.log(
                f"warning: {damaged}; whether the data is still that of this run is compared "
                "with the checkpoint"
            )
        changed = [name for name in data if before.get("data", data).get(name) != data[name]]
        if changed and not config.training.allow_data_change:
            raise UserError(DATA, data_changed(changed))
        save_config(config, self.path / "config.json")
        commit = (
            subprocess.run(
                ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
            )
            if shutil.which("git")
            else None
        )
        facts = {
            "command": sys.argv,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": platform.node(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in LIBRARIES},
            "commit": commit.stdout.strip() if commit else "",
            "seed": config.training.seed,
            "data": data,
        }
        if before:
            facts = {**before, "data": data, "resumed": [*before.get("resumed", []), facts]}
        write_atomic(path, json.dumps(facts, indent=2) + "\n")

    def log(self, line: str) -> None:
        """A line on stderr and in train.log."""
        self.progress("")
        say(f"{line}\n")
        self.note(line)

    def note(self, line: str) -> None:
        """A line in train.log only."""
        self._append("train.log", line)

    def _append(self, name: str, line: str) -> None:
        with self._unless_full(name), open(self.path / name, "a", encoding="utf-8") as file:
            print(line, file=file)

    @contextmanager
    def _unless_full(self, name: str) -> Iterator[None]:
        """A full disk costs a line, not the training."""
        try:
            yield
        except OSError as error:
            say(f"warning: some of {name} is lost: {error.strerror or error}\n")

    def progress(self, line: str) -> None:
        """Replace the live line of a terminal; nothing elsewhere."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            say(f"\r\033[K{line[:width]}")

    def record(self, step: int, metrics: dict[str, float]) -> None:
        """A line of metrics.jsonl and points in TensorBoard."""
        entry = {"step": step, "time": round(time.time(), 3), **metrics}
        self._append("metrics.jsonl", json.dumps(entry))
        with self._unless_full("tensorboard"):
            for name, value in metrics.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()

    def go_on_from(self, step: int) -> None:
        """Open the metrics at `step`: entries beyond it will be written again."""
        from tensorboardX import SummaryWriter

        path = self.path / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        kept, damaged = metrics_until(content, step)
        if damaged:
            self.log(f"warning: {path.name}: {damaged:,} damaged lines are dropped")
        if kept != content:
            write_atomic(path, kept)
        # purge_step has TensorBoard forget the points that will come again.
        self._tensorboard = SummaryWriter(str(self.path / "tensorboard"), purge_step=step + 1)

    def write_samples(self, step: int | str, lines: list[str]) -> None:
        """samples/STEP.txt"""
        text = "".join(line + "\n" for line in lines)
        with self._unless_full("samples"):
            (self.path / "samples").mkdir(exist_ok=True)
            (self.path / "samples" / f"{step}.txt").write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Close the event file and let the directory go."""
        self.progress("")
        with self._unless_full("tensorboard"):
            if self._tensorboard is not None:
                self._tensorboard.close()
        self._lock.close()


def say(text: str) -> None:
    """Text on stderr, for as long as somebody reads it: training does not end with its reader."""
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except OSError:
        pass  # a full disk


def data_changed(files: list[str]) -> str:
    """The message for training data that is not that of the run."""
    return (
        f"{', '.join(files)} changed since this run began, so it cannot be resumed as it was; "
        "restore the data, choose another --workdir, start anew with --overwrite, or continue "
        "with the new data: --config.training.allow_data_change"
    )


def flat(tree: dict, prefix: str = "") -> dict:
    """{"a": {"b": 1}} → {"a.b": 1}"""
    out = {}
    for key, value in tree.items():
        inner = isinstance(value, dict)
        out.update(flat(value, f"{prefix}{key}.") if inner else {prefix + key: value})
    return out

"""The config tree: model, data, training and decoding; read from flags, kept as JSON in the run."""

import difflib
import json
import re
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from data.config import DataConfig
from data.tokenizer import Special
from model.config import ModelConfig
from runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from runtime.files import write_whole
from runtime.paths import check_local
from storage.decoding_config import DecodingConfig


@dataclass(unsafe_hash=True)
class TrainingConfig:
    """How a model is trained; every field is a flag `--config.training.NAME=VALUE`."""

    num_steps: int = 100_000
    # Target tokens of one global batch, padding included: tokens_per_batch // data.target_length
    # packed rows. It never depends on the number of devices.
    tokens_per_batch: int = 25_000
    # Micro-batches whose gradients are summed before one update: less memory, same result.
    accumulate: int = 1
    # paper: equation 3, learning_rate is a factor on it | cosine, linear: warm up to learning_rate,
    # then fall to 0 at num_steps | constant: warm up to learning_rate and stay.
    schedule: str = "paper"
    learning_rate: float = 1.0
    warmup_steps: int = 4000
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_epsilon: float = 1e-9
    # Decoupled weight decay (AdamW), × the learning rate; biases and layer norms have none.
    weight_decay: float = 0.0
    # Largest global norm of the gradient; 0 does not clip.
    clip_norm: float = 1.0
    label_smoothing: float = 0.1
    # Target positions whose logits exist at one time in the loss; 0 means all.
    loss_block: int = 0
    # Moving average of the parameters, to be evaluated and used in their place; 0 keeps none.
    ema_decay: float = 0.0
    # A run (or MarianMT directory) whose best parameters and vocabulary training starts from.
    # What config.model leaves at its defaults is that model's; dropout, dtype and remat are free.
    # What config.data says of tokenizers and sizes of vocabularies then counts for nothing.
    init_from: str = ""
    seed: int = 0
    log_every: int = 100
    # A multiple of checkpoint_every, so that the best evaluation has its checkpoint.
    eval_every: int = 5000
    checkpoint_every: int = 1000
    # Checkpoints kept, besides the best one; as many are averaged at the end.
    keep: int = 5
    # What "best" is judged by: bleu (higher) or loss (lower), on validation data.
    best_metric: str = "bleu"
    # Evaluations in a row without a better one after which training stops; 0 never stops.
    patience: int = 0
    # Steps in a row that may have a loss or gradient that is not finite; none of them changes the
    # parameters, and one more than that stops training.
    skip_nonfinite: int = 0
    # Go on where the data's files have changed: from the first epoch of the new ones.
    allow_data_change: bool = False
    # The same bytes from the same command on a GPU too, slower (XLA's deterministic operations);
    # on a CPU they always are.
    deterministic: bool = False
    # Validation sentences translated for BLEU in each evaluation; 0 means all.
    eval_sentences: int = 500
    # FIRST:LAST, as in 10:12: write a profiler trace of these steps to RUN/profile; empty: none.
    profile: str = ""

    def validate(self) -> None:
        """Raises ValueError: rule, expected, got."""
        one_of = {
            "schedule": ("paper", "cosine", "linear", "constant"),
            "best_metric": ("bleu", "loss"),
        }
        for name, allowed in one_of.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"training.{name} must be one of {', '.join(allowed)}, "
                    f"got {getattr(self, name)!r}"
                )
        for name in (
            "num_steps",
            "tokens_per_batch",
            "accumulate",
            "warmup_steps",
            "log_every",
            "eval_every",
            "checkpoint_every",
            "keep",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "learning_rate",
            "weight_decay",
            "clip_norm",
            "loss_block",
            "seed",
            "patience",
            "eval_sentences",
            "skip_nonfinite",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"training.{name} must not be negative, got {getattr(self, name)}")
        if not self.adam_epsilon > 0:
            raise ValueError(f"training.adam_epsilon must be above 0, got {self.adam_epsilon}")
        for name in ("label_smoothing", "adam_b1", "adam_b2", "ema_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"training.{name} must be in [0, 1), got {getattr(self, name)}")
        if profile_steps(self.profile)[1] > self.num_steps:
            raise ValueError(
                f"training.profile={self.profile} ends after training.num_steps="
                f"{self.num_steps}; a trace is written at its end"
            )
        if self.eval_every % self.checkpoint_every:
            raise ValueError(
                "training.eval_every must be a multiple of training.checkpoint_every, got "
                f"{self.eval_every} and {self.checkpoint_every}"
            )


def profile_steps(spec: str) -> tuple[int, int]:
    """ "10:12" → (10, 12), "" → (0, 0). Raises ValueError if it is nothing of the kind."""
    found = re.fullmatch(r"(\d+):(\d+)", spec or "0:0", re.ASCII)
    first, last = map(int, found.groups()) if found else (0, 0)
    if spec and not 1 <= first <= last:
        raise ValueError(
            f"training.profile must be FIRST:LAST, steps from 1 on as in 10:12, got {spec!r}"
        )
    return first, last


@dataclass(unsafe_hash=True)
class Config:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)

    def validate(self) -> None:
        """Checked once, where a user's values enter. Raises UserError(CONFIGURATION)."""
        check_local("config.training.init_from", self.training.init_from)
        try:
            for part in (self.model, self.data, self.training, self.decoding):
                part.validate()
            longest = max(self.data.source_length, self.data.target_length)
            if longest > self.model.max_length:
                raise ValueError(
                    f"data.source_length and data.target_length must be at most model.max_length, "
                    f"got {longest} > {self.model.max_length}"
                )
            if self.training.tokens_per_batch < self.data.target_length:
                raise ValueError(
                    "training.tokens_per_batch must hold one row of data.target_length, got "
                    f"{self.training.tokens_per_batch} < {self.data.target_length}"
                )
            if self.model.tied_embeddings == "three-way" and not self.data.joint_vocab:
                raise ValueError(
                    "three-way tied embeddings need data.joint_vocab=true, got false; or set "
                    "model.tied_embeddings=two-way"
                )
        except ValueError as error:
            raise UserError(CONFIGURATION, str(error)) from None

    @property
    def special(self) -> Special:
        """The ids that are no text."""
        m = self.model
        return Special(m.pad_id, m.start_id, m.end_id, m.unknown_id)

    @property
    def rows_per_batch(self) -> int:
        """Packed rows of one global batch."""
        return self.training.tokens_per_batch // self.data.target_length

    @property
    def rows_at_a_time(self) -> int:
        """Packed rows of one micro-batch, over all devices: what is in memory at one time."""
        return -(-self.rows_per_batch // self.training.accumulate)


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config as JSON."""
    write_whole(path, json.dumps(asdict(config), indent=2) + "\n")


def load_config(path: Path) -> Config:
    """Read what `save_config` wrote; raises UserError(CHECKPOINT or CONFIGURATION)."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(part, dict) for part in (tree, *tree.values())):
            raise ValueError("it holds no config of a run")
    except OSError:
        raise UserError(
            CHECKPOINT,
            f"{path.parent} is not a run directory: it has no {path.name}; "
            "give --workdir the directory that train.py wrote",
        ) from None
    except (ValueError, AttributeError) as error:
        raise UserError(CHECKPOINT, f"{path} is damaged: {error}") from None
    config = Config()
    for part in fields(Config):
        given, section = tree.get(part.name, {}), getattr(config, part.name)
        types = {f.name: f.type for f in fields(section)}
        for name, value in given.items():
            if name not in types:
                raise UserError(
                    CONFIGURATION,
                    f"{path}: unknown field {part.name}.{name}; this run was "
                    "written by another version",
                )
            if type(value) is not types[name] and not (types[name] is float and type(value) is int):
                raise UserError(
                    CONFIGURATION,
                    f"{path}: {part.name}.{name} must be {types[name].__name__}, got {value!r}",
                )
            setattr(section, name, value)
    config.validate()
    return config


def is_foreign(path: Path) -> bool:
    """Whether a config.json is there that is whole but not a run's: another program's."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not isinstance(tree, dict) or not {part.name for part in fields(Config)} <= set(tree)


def take_model(config: Config, theirs: Config) -> list[str]:
    """Where `config` has defaults, take what parameters and vocabulary of another run decide.

    Returns what differs still: fields that were given another value.
    """
    default, free = Config(), {"dropout", "dtype", "remat"}  # these are not in the parameters
    differ = []
    for part, names in (
        ("model", [one.name for one in fields(config.model) if one.name not in free]),
        ("data", ["joint_vocab"]),
        ("decoding", ["suppress", "renormalize"]),
    ):
        ours, other = getattr(config, part), getattr(theirs, part)
        for name in names:
            given, there = getattr(ours, name), getattr(other, name)
            if given == getattr(getattr(default, part), name):
                setattr(ours, name, there)
            elif given != there and part == "model":
                differ.append(f"{part}.{name} {there!r} → {given!r}")
    return differ


def unknown_field(error: Exception) -> str | None:
    """The message for an unknown --config field, with the nearest name; None for other errors."""
    found = re.search(r"(?:Field |\.)(\w+) (?:not found on|does not exist)", str(error))
    if not found:
        return None
    tree = Config()
    names = [f.name for f in fields(tree)]
    names += [f"{p.name}.{f.name}" for p in fields(tree) for f in fields(getattr(tree, p.name))]
    typed = next((a for a in sys.argv if found[1] in a and "config." in a), f"config.{found[1]}")
    typed = typed.lstrip("-").split("=")[0].removeprefix("no").removeprefix("config.")
    close = difflib.get_close_matches(typed, names, n=1, cutoff=0.5)
    hint = f"; did you mean config.{close[0]}?" if close else f"; there are {', '.join(names[:4])}"
    return f"unknown config field config.{typed}{hint}"

"""Ensembles: the checkpoints of one or several runs that are searched together, and weights."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.data_config import TEMPLATES
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.mesh import Placer
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import current_checkpoint, load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from seq2seq.storage.run_files import require_finite


class Member(NamedTuple):
    """One model of an ensemble."""

    directory: Path
    checkpoint: str  # a step, average or another name; best or latest of another project's model

    def load(self, placer: Placer | None = None) -> Any:
        """The parameters, see `load_params`. UserError(CHECKPOINT) if they cannot be read or are
        not finite."""
        return require_finite(load_params(*self, placer), self.directory)


def members_of(
    run: str | Path | Sequence[str | Path],
    checkpoint: str | int | Sequence[str | int],
    local_dir: str = "",
) -> list[Member]:
    """The members of an ensemble: one checkpoint of each run, or several checkpoints of one run.

    As many checkpoints as runs are taken in pairs. Commas separate the checkpoints of a string. A
    model whose name is a URL is downloaded to `local_dir` (`model_directory`). A run may be still
    trained: its checkpoint is that of this call.
    UserError(CONFIGURATION) for another number of checkpoints, and for empty names of runs.
    """
    directories = [run] if isinstance(run, str | Path) else list(run)
    if not directories or "" in directories:
        raise UserError(
            CONFIGURATION,
            f"--workdir: expected the names of one or several run directories, got "
            f"{directories}; give each name, with one comma between two",
        )
    runs = list(map(str, directories))
    if isinstance(checkpoint, str | int):
        checkpoint = str(checkpoint).split(",")
    names = list(map(str, checkpoint))
    if len(names) == 1:
        names *= len(runs)
    elif names and len(runs) == 1:
        runs *= len(names)
    if len(names) != len(runs):
        raise UserError(
            CONFIGURATION,
            f"--checkpoint: expected one checkpoint, or one for each of {len(runs)} runs, got "
            f"{len(names)} ({', '.join(names)}); list a run once for each of its checkpoints",
        )
    members = []
    for run, name in zip(runs, names, strict=True):
        directory = model_directory(run, name, local_dir)
        members.append(Member(directory, current_checkpoint(directory, name)))
    return members


def normalized_weights(weights: str | Sequence[float], count: int) -> tuple[float, ...]:
    """The weights of `count` members, divided by their sum. Commas separate those of a string.

    UserError(CONFIGURATION) unless there are `count` positive finite numbers.
    """
    values = weights.split(",") if isinstance(weights, str) else weights
    try:
        numbers = list(map(float, values))
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(0 < number < math.inf for number in numbers):
        raise UserError(
            CONFIGURATION, f"--weights: expected positive numbers such as 0.7,0.3; got {weights!r}"
        )
    if len(numbers) != count:
        raise UserError(
            CONFIGURATION,
            f"--weights: expected as many weights as models, {count}, got {len(numbers)}; give one "
            "for each run or checkpoint",
        )
    shares = [number / max(numbers) for number in numbers]  # their sum is finite
    return tuple(share / sum(shares) for share in shares)


def open_ensemble(
    members: Sequence[Member],
) -> tuple[list[Config], tuple[Tokenizer, Tokenizer]]:
    """The config of each member, and the tokenizers; touches no device.

    Raises UserError(CHECKPOINT) if a checkpoint is missing, or vocabularies, special tokens or the
    pieces around texts differ.
    """
    opened = [open_model(*member) for member in members]
    first, tokenizers = opened[0]
    for member, (config, _) in zip(members, opened, strict=True):
        if config.data.vocab_sha256 != first.data.vocab_sha256:
            raise UserError(
                CHECKPOINT,
                f"{member.directory}: the vocabulary differs from that of {members[0].directory}: "
                "an ensemble needs the same one; train the models on the same data, or with "
                "init_from",
            )
        special, expected = config.special, first.special
        if config.data.target_start:  # the language of the translation is the start token
            special = special._replace(start=expected.start)
        if special != expected:
            raise UserError(
                CHECKPOINT,
                f"{member.directory}: the ids of its special tokens, {special}, differ from "
                f"those of {members[0].directory}, {expected}: an ensemble needs the same "
                "ones; use one of the models alone",
            )
        if different := [
            name for name in TEMPLATES if getattr(config.data, name) != getattr(first.data, name)
        ]:
            raise UserError(
                CHECKPOINT,
                f"{member.directory}: data.{different[0]} differs from that of "
                f"{members[0].directory}: an ensemble needs the same pieces around texts; use one "
                "of the models alone",
            )
    return [config for config, _ in opened], tokenizers

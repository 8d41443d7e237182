"""The files of a run: which checkpoints it has, which is the best, and its parameters.

checkpoints/STEP/params, ema   parameters, and their moving average if training.ema_decay is set
checkpoints/STEP/rest, data    optimizer, key and step; position in the data and best score
checkpoints/NAME/params        the mean of chosen steps, written by scripts/checkpoints.py average
average/params                 the mean of the last k checkpoints, written when training ends
*/MANIFEST.sha256              in each of these directories: the hashes of its files
best.json                      the checkpoint with the best validation score (best_checkpoint.py)
"""

import re
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

import jax
import numpy as np

from seq2seq.config.tree import Config, load_config, save_config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import load_tokenizers, save_tokenizers, vocabulary_sha256
from seq2seq.model.mesh import Placer
from seq2seq.runtime.errors import CHECKPOINT, OUTPUT, UserError
from seq2seq.storage.best_checkpoint import read_best, write_best
from seq2seq.storage.manifest import damage, has_part, write_manifest
from seq2seq.storage.saved_state import finite_leaves

AVERAGE_NAME = "[A-Za-z][A-Za-z0-9_-]*"  # as a regular expression
RESERVED_NAMES = ("best", "latest", "average")  # other meanings of --checkpoint
LEFT_BY_FAILED_START = {"train.log", "vocab"}  # written before config.json
# All files that a run writes. config.json is deleted last, because it marks the directory as a run.
RUN_FILES = (
    "run.json",
    "run.json.corrupt",
    "metrics.jsonl",
    "train.log",
    "best.json",
    "scores.json",
    "vocab",
    "checkpoints",
    "average",
    "samples",
    "tensorboard",
    "profile",
    "config.json",
)


def steps(run: Path) -> list[int]:
    """The steps of all checkpoints, intact or damaged, in ascending order.

    Other directories (temporary ones, STEP.corrupt, …) and empty ones are ignored.
    """
    return sorted(map(int, _directories(run, "0|[1-9][0-9]*")))


def named_averages(run: Path) -> list[str]:
    """The names of all averages that scripts/checkpoints.py wrote, intact or damaged, sorted."""
    return sorted(_directories(run, AVERAGE_NAME))


def _directories(run: Path, pattern: str) -> list[str]:
    """The names of the directories in RUN/checkpoints that match and are not empty."""
    directory = run / "checkpoints"
    paths = directory.iterdir() if directory.is_dir() else ()
    return [
        path.name
        for path in paths
        if re.fullmatch(pattern, path.name) and path.is_dir() and any(path.iterdir())
    ]


def current_name(run: Path, checkpoint: str) -> str:
    """What `checkpoint` means now: best and latest are other steps later in a training.

    "best" means the latest if nothing was evaluated.
    """
    if checkpoint == "best":
        checkpoint = str(read_best(run).get("checkpoint", "latest"))
    if checkpoint == "latest" and (existing := steps(run)):
        return str(existing[-1])
    return checkpoint


def params_directory(run: Path, checkpoint: str) -> Path:
    """The directory of the parameters of `checkpoint`: best, latest, average, a step or the name of
    an average.

    Raises UserError(CHECKPOINT) if the checkpoint does not exist.
    """
    existing, named = steps(run), named_averages(run)
    average = run / "average" / "params"
    checkpoint = current_name(run, checkpoint)
    if checkpoint == "average" and average.is_dir():
        return average
    if checkpoint in named:
        return run / "checkpoints" / checkpoint / "params"
    if not existing:
        averages = ["average", *named] if average.is_dir() else named
        if averages:
            raise UserError(
                CHECKPOINT,
                f"no checkpoint {checkpoint!r} in {run}, which has no steps: expected "
                f"{' or '.join(averages)}; set --checkpoint={averages[0]}",
            )
        raise UserError(
            CHECKPOINT,
            f"no checkpoint in {run}/checkpoints; train first: train.py "
            f"--workdir={quote(str(run))}",
        )
    names = list(map(str, existing))
    if checkpoint in names:
        directory = run / "checkpoints" / checkpoint
        return directory / ("ema" if has_part(directory, "ema") else "params")
    raise UserError(
        CHECKPOINT,
        f"no checkpoint {checkpoint!r} in {run}: expected one of the steps {', '.join(names)}"
        + (" and the average" if average.is_dir() else "")
        + (f", or {', '.join(named)}" if named else ""),
    )


def check_undamaged(params: Path) -> None:
    """Raise UserError(CHECKPOINT) if a directory of parameters does not match its manifest.

    There is no fallback to another checkpoint, because it would give other translations.
    """
    if reason := damage(params.parent, params.name):
        run = params.parent.parent if params.parent.name == "average" else params.parents[2]
        intact = [str(step) for step in steps(run) if not damage(run / "checkpoints" / str(step))]
        raise UserError(
            CHECKPOINT,
            f"{params.parent} is damaged: {reason}; intact checkpoints: "
            + (f"{', '.join(intact)} (use --checkpoint={intact[-1]})" if intact else "none"),
        )


def read_run(run: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and tokenizers of a run; checks that it has `checkpoint`. Uses no device."""
    config = load_config(run / "config.json")
    check_undamaged(params_directory(run, checkpoint))
    tokenizers = load_tokenizers(str(run / "vocab"))
    expected = config.model.source_vocab_size, config.model.target_vocab_size
    sizes = tuple(tokenizer.size for tokenizer in tokenizers)
    same_hash = vocabulary_sha256(tokenizers) == config.data.vocab_sha256
    # The model may have more rows than there are ids.
    fits = all(size <= rows for size, rows in zip(sizes, expected, strict=True))
    if not fits or not same_hash:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {run}/vocab does not fit the checkpoint: expected at most "
            f"{expected[0]} source and {expected[1]} target tokens, got {sizes[0]} and {sizes[1]}"
            + (" with another sha256" if fits else "")
            + "; restore it from a copy of the run",
        )
    return config, tokenizers


def write_run(
    run: Path, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], params: Any
) -> None:
    """Write a run directory with `params` as its average and best checkpoint.

    Raises UserError(OUTPUT) if the directory holds a run already.
    """
    from seq2seq.storage.orbax_files import write_arrays  # importing Orbax takes 0.1 s

    if (run / "config.json").exists():
        raise UserError(
            OUTPUT, f"{run} holds a run already: expected a new directory; choose another one"
        )
    run.mkdir(parents=True, exist_ok=True)
    save_config(config, run / "config.json")
    save_tokenizers(str(run / "vocab"), *tokenizers)
    write_best(run, {"checkpoint": "average"})
    write_arrays(run.absolute() / "average" / "params", params)
    write_manifest(run / "average")


def require_finite(params: Any, run: Path) -> Any:
    """Return `params`. Raises UserError(CHECKPOINT) if one contains NaN or infinity."""
    for path, leaf in jax.tree.leaves_with_path(params):
        # NumPy would copy an array on devices to the host, and JAX would keep the copy.
        finite = finite_leaves(leaf) if isinstance(leaf, jax.Array) else np.isfinite(leaf).all()
        if not finite:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                CHECKPOINT,
                f"{run}: the parameter {name} is not finite: expected "
                "numbers, got NaN or infinity; use another --checkpoint",
            )
    return params


def restore_params(run: Path, checkpoint: str, placer: Placer | None = None) -> Any:
    """The parameters of `checkpoint` (see `params_directory`), see `read_arrays`.

    Raises UserError(CHECKPOINT) if they do not exist, are damaged or cannot be read.
    """
    from seq2seq.storage.orbax_files import read_arrays  # importing Orbax takes 0.1 s

    path = params_directory(run.absolute(), checkpoint)
    check_undamaged(path)
    return read_arrays(path, placer)


def mean_params(trees: Iterable[Any]) -> Any:
    """The mean of trees of parameters as float32. It is computed in float64, one tree at a time."""
    total, count = None, 0
    for tree in trees:
        tree = jax.tree.map(lambda x: x.astype(np.float64), tree)
        total = tree if total is None else jax.tree.map(np.add, total, tree)
        count += 1
    return jax.tree.map(lambda x: (x / count).astype(np.float32), total)

"""The checkpoints of a run, to be read: which there are, which is best, parameters, the run itself.

checkpoints/STEP/params, ema   parameters, and their moving average where it was asked for
checkpoints/STEP/rest, data    optimizer, key and step; position in the data and best score
average/params                 the mean of the last k, written once at the end
*/MANIFEST.sha256              of each of these: its files and their hashes
best.json                      what scored best on validation data
"""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from data.tokenizer import Tokenizer
from data.vocabulary import load_tokenizers, save_tokenizers, tokenizer_sha256
from runtime import processes
from runtime.errors import CHECKPOINT, UserError
from runtime.files import write_whole
from storage.config import Config, load_config, save_config
from storage.manifest import damage, holds, write_manifest


def alone() -> ocp.options.MultiprocessingOptions:
    """Orbax in one process: it waits for no other, each reads for itself and the first one writes.

    Together its processes would need arrays that are spread over all of them.
    """
    me = processes.index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )


def steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, whole or damaged, in order; other names are ignored."""
    directory = run / "checkpoints"
    there = directory.iterdir() if directory.is_dir() else ()
    return sorted(
        int(path.name)
        for path in there
        if re.fullmatch("0|[1-9][0-9]*", path.name) and path.is_dir() and any(path.iterdir())
    )


def read_best(run: Path) -> dict[str, Any]:
    """best.json: {"checkpoint": STEP or "average", metric: value}; {} where nothing is best yet."""
    try:
        best = json.loads((run / "best.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        best = None
    if not isinstance(best, dict) or not isinstance(best.get("checkpoint", ""), int | str):
        raise UserError(
            CHECKPOINT,
            f"{run}/best.json is damaged; delete it, and the latest "
            "counts as the best (decode.py --checkpoint=latest takes that)",
        )
    return best


def write_best(run: Path, best: dict[str, Any]) -> None:
    """Replace best.json at once."""
    write_whole(run / "best.json", json.dumps(best) + "\n")


def params_directory(run: Path, checkpoint: str) -> Path:
    """The directory of `checkpoint`: best, latest, average or a step. Raises UserError(CHECKPOINT).

    "best" is the latest where nothing was evaluated.
    """
    there = steps(run)
    known = ", ".join(map(str, there)) or "none"
    average = run / "average" / "params"
    if checkpoint == "best":
        checkpoint = str(read_best(run).get("checkpoint", "latest"))
    if checkpoint == "average" and average.is_dir():
        return average
    if not there:
        raise UserError(
            CHECKPOINT, f"no checkpoint in {run}/checkpoints; train first: train.py --workdir={run}"
        )
    if checkpoint == "latest":
        checkpoint = str(there[-1])
    if checkpoint in map(str, there):
        found = run / "checkpoints" / checkpoint
        return found / ("ema" if holds(found, "ema") else "params")
    raise UserError(
        CHECKPOINT,
        f"no checkpoint {checkpoint!r} in {run}; there are the steps {known}"
        + (" and the average" if average.is_dir() else ""),
    )


def undamaged(params: Path) -> Path:
    """What `params_directory` gave. UserError(CHECKPOINT) if it is not as it was saved.

    Nothing else is taken in its place: another checkpoint gives other translations.
    """
    if why := damage(params.parent, params.name):
        run = params.parent.parent if params.parent.name == "average" else params.parents[2]
        good = [str(step) for step in steps(run) if not damage(run / "checkpoints" / str(step))]
        raise UserError(
            CHECKPOINT,
            f"{params.parent} is damaged: {why}; whole ones are "
            + (f"{', '.join(good)} (--checkpoint={good[-1]})" if good else "none"),
        )
    return params


def read_run(run: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and tokenizers of a run that has the checkpoint; touches no device."""
    config = load_config(run / "config.json")
    undamaged(params_directory(run, checkpoint))
    tokenizers = load_tokenizers(str(run / "vocab"))
    expected = config.model.source_vocab_size, config.model.target_vocab_size
    got = tuple(tokenizer.size for tokenizer in tokenizers)
    same = "+".join(map(tokenizer_sha256, tokenizers)) == config.data.vocab_sha256
    if got != expected or not same:
        raise UserError(
            CHECKPOINT,
            f"the vocabulary in {run}/vocab does not fit the checkpoint: expected "
            f"{expected[0]} source and {expected[1]} target tokens, got {got[0]} and {got[1]}"
            + ("" if got != expected else ", but other ones"),
        )
    return config, tokenizers


def write_run(
    run: Path, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], params: Any
) -> None:
    """A run directory of given parameters, as if training had ended with their average."""
    save_config(config, run / "config.json")
    save_tokenizers(str(run / "vocab"), *tokenizers)
    write_best(run, {"checkpoint": "average"})
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(run.absolute() / "average" / "params", params)
    write_manifest(run / "average")


def finite(params: Any, run: Path) -> Any:
    """The parameters. UserError(CHECKPOINT) unless all of them are finite."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if not np.isfinite(leaf).all():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(
                CHECKPOINT,
                f"{run}: the parameter {name} is not finite: expected "
                "numbers, got NaN or infinity; give another --checkpoint",
            )
    return params


def restore_params(run: Path, checkpoint: str) -> Any:
    """The parameters of `checkpoint` (see `params_directory`) as NumPy arrays, in this process."""
    path = undamaged(params_directory(run.absolute(), checkpoint))
    try:
        with ocp.StandardCheckpointer(multiprocessing_options=alone()) as checkpointer:
            shapes = checkpointer.metadata(path).item_metadata.tree
            like = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), shapes)
            return checkpointer.restore(path, like)
    except (ValueError, KeyError, OSError, AttributeError) as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {str(error)[:200]}") from None

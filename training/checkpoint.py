"""Checkpoints of a run: Orbax arrays and JSON, the last k and the best kept, an average at the end.

    checkpoints/STEP/params, ema   parameters, and their moving average where it was asked for
    checkpoints/STEP/rest, data    optimizer, key and step; position in the data and best score
    average/params                 the mean of the last k, written once at the end
    best.json                      what scored best on validation data
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from data.errors import CHECKPOINT, UserError
from data.files import write_whole
from data.tokenizer import Tokenizer, fingerprint, load_tokenizers
from training import hosts
from training.config import Config, load_config


def everywhere() -> NamedSharding:
    """The sharding of a value that every local device holds whole."""
    mesh = Mesh(np.array(jax.local_devices()), ("devices",))
    return NamedSharding(mesh, PartitionSpec())


def alone() -> ocp.options.MultiprocessingOptions:
    """Orbax in one process: it waits for no other, each reads for itself and the first one writes.

    Together its processes would need arrays that are spread over all of them.
    """
    me = hosts.index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )


class Checkpoints:
    """The checkpoints of one run directory. Saving returns when all is on disk."""

    def __init__(self, run: Path, keep: int, every: int):
        self.run, self.keep, self.every = run.absolute(), keep, every
        (self.run / "checkpoints").mkdir(exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            create=False, cleanup_tmp_directories=hosts.first(), enable_async_checkpointing=False,
            multiprocessing_options=alone(),
        )
        self._manager = ocp.CheckpointManager(self.run / "checkpoints", options=options)

    def save(self, state: Any, data: dict[str, Any]) -> None:
        """Write step `state.step`, then best.json, then drop what is neither last k nor best.

        data["best"] says which checkpoint did best: {"checkpoint": STEP, metric: value} or {}.
        """
        step, state = int(state.step), jax.device_get(state)
        items = {name: ocp.args.StandardSave(tree) for name, tree in as_items(state).items()}
        composite = ocp.args.Composite(**items, data=ocp.args.JsonSave(data))
        if not self._manager.save(step, args=composite, force=True):
            raise UserError(CHECKPOINT, f"{self.run}/checkpoints did not take step {step}")
        self._manager.wait_until_finished()
        write_best(self.run, data["best"])
        for old in set(steps(self.run)) - {*self._last(), data["best"].get("checkpoint")}:
            self._manager.delete(old)

    def _last(self) -> list[int]:
        """The last k regular steps. One saved at an interruption counts while it is the latest,
        so that interruptions change neither what is kept nor what is averaged."""
        there = steps(self.run)
        return [s for s in there if s % self.every == 0 or s == there[-1]][-self.keep :]

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The latest state, shaped and placed as the TrainState `like`, and its data.

        None in a new run. Raises UserError(CHECKPOINT).
        """
        if not steps(self.run):
            return None
        step = steps(self.run)[-1]
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere()), like
        )
        items = {name: ocp.args.StandardRestore(tree) for name, tree in as_items(like).items()}
        try:
            composite = ocp.args.Composite(**items, data=ocp.args.JsonRestore())
            found = self._manager.restore(step, args=composite)
        except (ValueError, KeyError, OSError) as error:
            raise UserError(
                CHECKPOINT, f"{self.run}/checkpoints/{step} cannot be restored: "
                f"{str(error)[:200]}; train with --overwrite to begin anew"
            ) from None
        ema = found["ema"] if like.ema is not None else None
        return type(like)(params=found["params"], ema=ema, **found["rest"]), found["data"]

    def save_average(self) -> None:
        """Average the parameters of the last k checkpoints into average/."""
        last = self._last()
        total = None
        for step in last:
            params = jax.tree.map(lambda x: x.astype(np.float64), load_params(self.run, str(step)))
            total = params if total is None else jax.tree.map(np.add, total, params)
        mean = jax.tree.map(lambda x: (x / len(last)).astype(np.float32), total)
        self.drop_average()
        with ocp.StandardCheckpointer(multiprocessing_options=alone()) as checkpointer:
            checkpointer.save(self.run / "average" / "params", mean)

    def drop_average(self) -> None:
        """Forget the average: training goes beyond it."""
        shutil.rmtree(self.run / "average", ignore_errors=True)

    def close(self) -> None:
        self._manager.close()


def as_items(state: Any) -> dict[str, Any]:
    """What a checkpoint keeps apart: parameters, their moving average if there is one, the rest."""
    rest = state._asdict()
    items = {name: rest.pop(name) for name in ("params", "ema")}
    return {name: tree for name, tree in items.items() if tree is not None} | {"rest": rest}


def steps(run: Path) -> list[int]:
    """The steps that have a finished checkpoint, in order; other names are ignored."""
    directory = run / "checkpoints"
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(
        int(name)
        for name in names
        if name.isdigit() and (directory / name / "params" / "_METADATA").is_file()
    )


def read_best(run: Path) -> dict[str, Any]:
    """best.json: {"checkpoint": STEP or "average", metric: value}; {} where nothing is best yet."""
    try:
        best = json.loads((run / "best.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        best = None
    if not isinstance(best, dict):
        raise UserError(CHECKPOINT, f"{run}/best.json is damaged; give --checkpoint=latest")
    return best


def write_best(run: Path, best: dict[str, Any]) -> None:
    """Replace best.json at once."""
    write_whole(run / "best.json", json.dumps(best) + "\n")


def find_params(run: Path, checkpoint: str) -> Path:
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
    if checkpoint.isdigit() and int(checkpoint) in there:
        ema = run / "checkpoints" / checkpoint / "ema"
        return ema if ema.is_dir() else ema.with_name("params")
    raise UserError(
        CHECKPOINT, f"no checkpoint {checkpoint!r} in {run}; there are the steps {known}"
        + (" and the average" if average.is_dir() else "")
    )


def check_run(run: Path, checkpoint: str) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """The config and tokenizers of a run that has the checkpoint; touches no device."""
    config = load_config(run / "config.json")
    find_params(run, checkpoint)
    tokenizers = load_tokenizers(str(run / "vocab"))
    expected = config.model.source_vocab_size, config.model.target_vocab_size
    got = tuple(tokenizer.size for tokenizer in tokenizers)
    same = "+".join(map(fingerprint, tokenizers)) == config.data.vocab_sha256
    if got != expected or not same:
        raise UserError(
            CHECKPOINT, f"the vocabulary in {run}/vocab does not fit the checkpoint: expected "
            f"{expected[0]} source and {expected[1]} target tokens, got {got[0]} and {got[1]}"
            + ("" if got != expected else ", but other ones")
        )
    return config, tokenizers


def load_params(run: Path, checkpoint: str) -> Any:
    """The parameters of `checkpoint` (see `find_params`) as NumPy arrays, for the host alone."""
    path = find_params(run.absolute(), checkpoint)
    try:
        with ocp.StandardCheckpointer(multiprocessing_options=alone()) as checkpointer:
            shapes = checkpointer.metadata(path).item_metadata.tree
            like = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), shapes)
            return checkpointer.restore(path, like)
    except (ValueError, KeyError, OSError, AttributeError) as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {str(error)[:200]}") from None

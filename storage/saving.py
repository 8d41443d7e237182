"""Saving and resuming: Orbax arrays and JSON, the last k and the best kept, an average at the end.

What lies where is in storage/checkpoint.py. One idea to know: a checkpoint is written under
another name, with the hashes of its files, and appears by rename.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from runtime import processes
from runtime.devices import replicated
from runtime.errors import CHECKPOINT, DIVERGED, OUTPUT, UserError
from runtime.files import delete_directory, publish_directory
from storage.checkpoint import alone, read_best, restore_params, steps, write_best
from storage.manifest import damage, quarantine, write_manifest
from storage.migration import FORMAT_VERSION, migrate


class Checkpoints:
    """The checkpoints of one run directory, each with a manifest of its files.

    A checkpoint appears by rename, when all of it is on the disk: what is there is whole, or was
    damaged later.
    """

    def __init__(self, run: Path, keep: int, every: int, log: Callable[[str], None]):
        self.run, self.keep, self.every, self._log = run.absolute(), keep, every, log
        self._directory = self.run / "checkpoints"
        self._directory.mkdir(exist_ok=True)
        options = ocp.CompositeOptions(multiprocessing_options=alone())
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        self._orbax = ocp.Checkpointer(handler, multiprocessing_options=alone())
        if processes.is_first():
            self._clean()

    def save(self, state: Any, data: dict[str, Any]) -> None:
        """Write step `state.step`, then best.json, then drop what is neither last k nor best.

        data["best"] says which checkpoint did best: {"checkpoint": STEP, metric: value} or {}.
        Raises UserError(DIVERGED) for numbers that are not finite and UserError(OUTPUT) where the
        disk does not take them; what was there before stays, and a later save may succeed.
        """
        step = int(state.step)
        check_finite(state, step)
        arrays = as_items(jax.device_get(state))  # Orbax refuses those of one process of several
        items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        items["data"] = ocp.args.JsonSave({"format_version": FORMAT_VERSION, **data})
        self._write(self._directory / str(step), items, state)
        self._write_best(data["best"])
        for old in set(steps(self.run)) - {*self._last(), data["best"].get("checkpoint")}:
            self._drop(self._directory / str(old))
        self._log(f"saved step {step}")

    def _write_best(self, best: dict[str, Any]) -> None:
        try:
            write_best(self.run, best)
        except OSError as error:
            raise UserError(
                OUTPUT,
                f"{self.run}/best.json could not be written: {error.strerror}; it is as it was",
            ) from None

    def _write(self, path: Path, items: dict[str, Any], tree: Any) -> None:
        temporary = self._directory / f"{path.name}.tmp"
        try:
            self._orbax.save(temporary, args=ocp.args.Composite(**items))
            write_manifest(temporary)
            self._drop(path)
            publish_directory(temporary, path)
        except (OSError, ValueError) as error:  # TensorStore's errors are ValueErrors
            for _ in range(20):  # threads of Orbax may write on for a while
                self._clean()
                time.sleep(0.1)
            raise UserError(
                OUTPUT,
                f"{path} could not be saved: it needs {megabytes(num_bytes(tree))}, "
                f"{megabytes(shutil.disk_usage(self.run).free)} are free ({str(error)[-200:]}); "
                "earlier checkpoints are as they were",
            ) from None

    def _drop(self, path: Path) -> None:
        """Delete by rename first, so that no half of a checkpoint is ever left under its name."""
        if path.is_dir():
            delete_directory(path, self._directory / f"{path.name}.old.tmp")

    def _clean(self) -> None:
        """Delete what a save that did not end has left."""
        for left in self._directory.glob("*tmp"):
            shutil.rmtree(left, ignore_errors=True)

    def _last(self) -> list[int]:
        """The last k regular steps. One saved at an interruption counts while it is the latest,
        so that interruptions change neither what is kept nor what is averaged."""
        there = steps(self.run)
        return [s for s in there if s % self.every == 0 or s == there[-1]][-self.keep :]

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest state that is whole, placed as the TrainState `like`, and its data.

        Damaged ones that are newer are renamed STEP.corrupt, with a warning. None in a new run.
        Raises UserError(CHECKPOINT) where there were checkpoints and none is left.
        """
        step = self._newest_whole()
        if step is None:
            return None
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated()), like
        )
        items = {name: ocp.args.StandardRestore(tree) for name, tree in as_items(like).items()}
        try:
            composite = ocp.args.Composite(**items, data=ocp.args.JsonRestore())
            found = self._orbax.restore(self._directory / str(step), args=composite)
        except (ValueError, KeyError, OSError) as error:
            raise UserError(
                CHECKPOINT,
                f"{self.run}/checkpoints/{step} cannot be restored: "
                f"{str(error)[:200]}; train with --overwrite to begin anew",
            ) from None
        data = migrate(found["data"], self._directory / str(step))
        if (best := data["best"].get("checkpoint")) not in {None, *steps(self.run)}:
            self._log(f"warning: the best checkpoint, {best}, is gone; the next evaluation is best")
            data["best"] = {}
        if processes.is_first() and not self._best_is_there():
            write_best(self.run, data["best"])
        ema = found["ema"] if like.ema is not None else None
        return type(like)(params=found["params"], ema=ema, **found["rest"]), data

    def _best_is_there(self) -> bool:
        """Whether best.json can be read, and names what is there or nothing."""
        try:
            best = read_best(self.run).get("checkpoint")
        except UserError:
            self._log(
                f"warning: {self.run}/best.json is damaged; it is restored from the checkpoint"
            )
            return False
        return best in {None, *steps(self.run)} or (best == "average" and self.complete)

    def _newest_whole(self) -> int | None:
        damaged = {}
        for step in reversed(steps(self.run)):
            if why := damage(self._directory / str(step)):
                damaged[step] = why
                continue
            for bad, why in damaged.items():
                place = quarantine(self._directory / str(bad))
                self._log(
                    f"warning: checkpoint {bad} is damaged: {why}; it is now {place.name}, "
                    f"and training goes on from step {step}"
                )
            return step
        before = self._directory.glob("*.corrupt*")
        damaged |= {path.name: "found damaged before" for path in before}
        if damaged or (self.run / "best.json").exists():  # which the first save has written
            tried = "; ".join(f"{name}: {why}" for name, why in damaged.items()) or "it is empty"
            raise UserError(
                CHECKPOINT,
                f"no checkpoint in {self._directory} can be used: {tried}; "
                "bring one back, or train with --overwrite to begin anew",
            )
        return None

    def average(self) -> Any:
        """The mean of the parameters of the last k checkpoints, without those that are damaged."""
        total, count = None, 0
        for step in self._last():
            try:
                params = restore_params(self.run, str(step))
            except UserError as error:
                self._log(f"warning: not averaged: {error}")
                continue
            params = jax.tree.map(lambda x: x.astype(np.float64), params)
            total = params if total is None else jax.tree.map(np.add, total, params)
            count += 1
        return jax.tree.map(lambda x: (x / count).astype(np.float32), total)

    @property
    def complete(self) -> bool:
        """Whether training has come to its end: the average is there, whose saving comes last."""
        return (self.run / "average").is_dir()

    def save_average(self, params: Any, best: dict[str, Any]) -> None:
        """Write best.json and average/, both or none. Raises UserError(OUTPUT)."""
        before = read_best(self.run)
        self._write_best(best)
        try:
            self._write(self.run / "average", {"params": ocp.args.StandardSave(params)}, params)
        except UserError:
            self._write_best(before)
            raise

    def goes_on(self, best: dict[str, Any]) -> None:
        """Training goes beyond what there is: `best` is best now, and the average is no more."""
        self._write_best(best)
        self._drop(self.run / "average")

    def close(self) -> None:
        self._orbax.close()


def forecast(run: Path, state: Any, keep: int) -> tuple[str, bool]:
    """What the checkpoints of a run will take of the disk, and whether there is so much."""
    there = next(parent for parent in (run, *run.parents) if parent.exists())
    size, free = num_bytes(state), shutil.disk_usage(there).free
    most = size * (keep + 2) + num_bytes(state.params)  # the best, one being written, the average
    ours = sum(path.stat().st_size for path in run.glob("checkpoints/**/*") if path.is_file())
    return (
        f"checkpoints: {megabytes(size)} each, {keep} kept, {megabytes(most)} at most; "
        f"{megabytes(free)} free"
    ), most <= free + ours


def num_bytes(tree: Any) -> int:
    """What the arrays of a tree take."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def megabytes(count: int) -> str:
    """1,234.5 MB"""
    return f"{count / 1e6:,.1f} MB"


@jax.jit
def finite(tree: Any) -> Any:
    """Of each array, whether all its numbers are finite."""
    return jax.tree.map(lambda x: jnp.isfinite(x).all(), tree)


def check_finite(state: Any, step: int) -> None:
    """UserError(DIVERGED), which names the first, if any array has numbers that are not finite."""
    for path, good in jax.tree_util.tree_leaves_with_path(jax.device_get(finite(state))):
        if not good:
            raise UserError(
                DIVERGED,
                f"step {step} is not saved: {jax.tree_util.keystr(path)} has "
                "numbers that are not finite; lower training.learning_rate, and go on "
                "from the last checkpoint",
            )


def as_items(state: Any) -> dict[str, Any]:
    """What a checkpoint keeps apart: parameters, their moving average if there is one, the rest."""
    rest = state._asdict()
    items = {name: rest.pop(name) for name in ("params", "ema")}
    return {name: tree for name, tree in items.items() if tree is not None} | {"rest": rest}

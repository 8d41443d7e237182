"""Checkpoints of a training: saved and restored; the last k, the best and an average are kept.

run_files.py lists the files; best_checkpoint.py is about the best one. The one idea: a checkpoint
is written to a temporary directory, with the hashes of its files, and then renamed.

Orbax writes and reads the arrays. Its CheckpointManager (0.12.8, measured) is not used:

                      CheckpointManager                 here
    a flipped bit     restored without an error, at     found by MANIFEST.sha256; the checkpoint is
                      39 of 40 places                   quarantined, and the one before is used
    a save            files, rename, deletions          files, hashes, sync, rename, best.json,
                                                        deletions, upload
    a failed save     its files stay                    deleted; the best score is taken back
    NaN               saved                             refused: the training ends
    step 9            an empty directory 9 is step 9    a directory with files
    a deletion        in place: a kill leaves a part    renamed before
    the last k        of all saves                      an interruption changes neither what is kept
                                                        nor the average of the last k
    the best          of the saved steps                the average too; of equals the lower loss
    an upload         the step may be deleted           the step is kept until it is uploaded
    processes         all take part in each save        process 0 writes

What it could replace (names of steps, the thread, the last k) is about 40 lines, and it writes no
hashes before the rename.
"""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from seq2seq.config.migration import FORMAT_VERSION, migrate
from seq2seq.files.output_files import publish_directory
from seq2seq.files.temporaries import (
    delete_abandoned,
    delete_directory,
    delete_temporary,
    is_temporary,
    temporary_directory,
)
from seq2seq.model.mesh import Placer, local_mesh
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CHECKPOINT, OUTPUT, UserError
from seq2seq.storage.best_checkpoint import read_best, repair_best, without_missing, write_best
from seq2seq.storage.manifest import quarantine, write_manifest
from seq2seq.storage.newest_step import newest_intact_step
from seq2seq.storage.orbax_files import (
    MALFORMED,
    composite_checkpointer,
    delete_late_files,
    reason_of,
)
from seq2seq.storage.replicas.replica import Replica
from seq2seq.storage.run_files import mean_params, restore_params, steps
from seq2seq.storage.saved_state import check_finite, checkpoint_items, host_copy
from seq2seq.storage.sizes import megabytes, num_bytes


class Checkpoints:
    """The checkpoints of one run directory, each with a manifest of its files.

    A checkpoint is renamed to its final name when all its files are on the disk, so a directory of
    that name is intact, or was damaged later.
    """

    def __init__(
        self,
        run: Path,
        keep: int,
        every: int,
        log: Callable[[str], None],
        replica: Replica | None = None,
    ):
        """The `replica` is uploaded after each save."""
        self.run, self.keep, self.every, self._log = run.absolute(), keep, every, log
        self._replica = replica
        self._directory = self.run / "checkpoints"
        self._directory.mkdir(exist_ok=True)
        self._orbax = composite_checkpointer()
        self._thread = ThreadPoolExecutor(1, "checkpoint")  # joined at the exit of the process
        self._saving: Future[None] | None = None
        if processes.is_first():
            self._delete_temporaries()

    def start_save(self, state: Any, stored: dict[str, Any]) -> None:
        """Copy the state to the host; a thread then writes the checkpoint `state.step` and
        best.json, and deletes the old checkpoints. `wait` waits for it and comes before the next
        save.

        `stored` is what a checkpoint has besides arrays; its "best" is the content of best.json
        (BestCheckpoint.entry). Raises UserError(DIVERGED) if an array is not finite.
        """
        check_finite(state, int(state.step))
        self._saving = self._thread.submit(self._save, host_copy(state), stored)

    def wait(self) -> None:
        """Wait until the save that was started is complete.

        Raises UserError(OUTPUT) if writing failed; earlier checkpoints then stay, and a later save
        may succeed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _save(self, state: Any, stored: dict[str, Any]) -> None:
        step, arrays = int(state.step), checkpoint_items(state)
        items = {name: ocp.args.StandardSave(tree) for name, tree in arrays.items()}
        items["data"] = ocp.args.JsonSave({"format_version": FORMAT_VERSION, **stored})
        self._write(self._directory / str(step), items, state)
        write_best(self.run, stored["best"])
        kept = self._delete_outdated(stored["best"])
        self._log(f"saved step {step}")
        if self._replica is not None:
            self._replica.start_upload(kept)

    def _delete_outdated(self, best: dict[str, Any]) -> set[int]:
        """Delete the steps that are neither kept nor being uploaded; returns those that are
        kept."""
        existing = set(steps(self.run))
        kept = existing & {*self._last_steps(), best.get("checkpoint")}
        in_use = self._replica.steps_in_use() if self._replica is not None else set()
        for old in existing - kept - in_use:
            self._delete_old(self._directory / str(old))
        return kept

    def _write(self, path: Path, items: dict[str, Any], tree: Any) -> None:
        try:
            with temporary_directory(path) as temporary:
                written = temporary / path.name
                self._orbax.save(written, args=ocp.args.Composite(**items))
                write_manifest(written)
                self._delete(path)
                publish_directory(written, path)
        except (OSError, ValueError) as error:  # TensorStore raises ValueError
            delete_late_files(self._delete_temporaries)
            free = shutil.disk_usage(self._directory).free
            raise UserError(
                OUTPUT,
                f"{path} could not be saved: it needs {megabytes(num_bytes(tree))}, "
                f"{megabytes(free)} are free ({reason_of(error)}); "
                "earlier checkpoints are unchanged",
            ) from None

    def _delete(self, path: Path) -> None:
        """Rename, then delete: a partly deleted checkpoint never has the name of a checkpoint."""
        if path.is_dir() and (left := delete_directory(path)):
            self._log(f"warning: {left}")

    def _delete_old(self, path: Path) -> None:
        """Delete a checkpoint that is no longer needed; the next save tries again if it fails."""
        try:
            self._delete(path)
        except OSError as error:
            self._log(f"warning: {path} could not be deleted: {error.strerror}")

    def _delete_temporaries(self) -> None:
        """Delete what saves that failed or were killed have left: the run is locked, so no other
        process writes here. checkpoints/ may be a link to a directory with files of others."""
        for path in temporaries(self._directory):
            delete_temporary(path)
        delete_abandoned(self.run / "average")

    def _last_steps(self) -> list[int]:
        """The last `keep` steps that are multiples of `every`, to keep and to average.

        Another step, saved at an interruption, counts only while it is the latest: interruptions
        change neither the kept checkpoints nor the average.
        """
        saved = steps(self.run)
        return [step for step in saved if step % self.every == 0 or step == saved[-1]][-self.keep :]

    def restore(self, like: Any, model_parallel: int = 1) -> tuple[Any, dict[str, Any]] | None:
        """The newest intact state, of the shapes of the TrainState `like`, on every copy of the
        model of this process; and its data.

        None in a new run. Newer damaged checkpoints are quarantined (renamed STEP.corrupt) with a
        warning. stored["best"] and best.json name an existing checkpoint or none. Raises
        UserError(CHECKPOINT) if all checkpoints are damaged or lost.
        """
        step = self._newest_intact_step()
        if step is None:
            return None
        like = Placer(local_mesh(model_parallel)).shapes(like)
        trees = checkpoint_items(like)
        items = {name: ocp.args.StandardRestore(tree) for name, tree in trees.items()}
        try:
            composite = ocp.args.Composite(**items, data=ocp.args.JsonRestore())
            restored = self._orbax.restore(self._directory / str(step), args=composite)
        except MALFORMED as error:
            raise UserError(
                CHECKPOINT,
                f"{self.run}/checkpoints/{step} cannot be restored: {str(error)[:200]}; run the "
                "same command again; if it fails again, start over with --overwrite",
            ) from None
        stored = migrate(restored["data"], self._directory / str(step))
        existing = set(steps(self.run))
        stored["best"] = without_missing(stored["best"], existing, self._log)
        if processes.is_first():
            averages = {"average"} if self.complete else set()
            repair_best(self.run, stored["best"], existing | averages, self._log)
        ema = restored["ema"] if like.ema is not None else None
        state = type(like)(params=restored["params"], ema=ema, **restored["rest"])
        return state, stored

    def _newest_intact_step(self) -> int | None:
        step, damaged = newest_intact_step(self.run)
        for damaged_step, reason in damaged.items():
            path = quarantine(self._directory / str(damaged_step))
            self._log(
                f"warning: checkpoint {damaged_step} is damaged: {reason}; it was renamed to "
                f"{path.name}, and training resumes from step {step}"
            )
        return step

    def average(self) -> Any:
        """The mean of the parameters of the last `keep` checkpoints, without damaged ones."""
        return mean_params(self._last_params())

    def _last_params(self) -> Iterator[Any]:
        for step in self._last_steps():
            try:
                yield restore_params(self.run, str(step))
            except UserError as error:
                self._log(f"warning: not averaged: {error}")

    @property
    def complete(self) -> bool:
        """Whether training has ended: its last action is to save the average."""
        return (self.run / "average").is_dir()

    def save_average(self, params: Any, best: dict[str, Any]) -> None:
        """Write best.json and average/, both or neither."""
        previous = read_best(self.run)
        if self._replica is not None:
            self._replica.wait()
            self._delete_outdated(previous)
        write_best(self.run, best)
        try:
            self._write_params(self.run / "average", params)
        except UserError:
            write_best(self.run, previous)
            raise

    def save_named_average(self, name: str, params: Any) -> None:
        """Write or replace the checkpoint `name`, which training ignores."""
        self._write_params(self._directory / name, params)

    def _write_params(self, path: Path, params: Any) -> None:
        self._write(path, {"params": ocp.args.StandardSave(params)}, params)

    def discard_results(self, best: dict[str, Any]) -> None:
        """Delete scores.json and the average, which further training makes outdated, after writing
        best.json."""
        write_best(self.run, best)
        (self.run / "scores.json").unlink(missing_ok=True)
        self._delete(self.run / "average")

    def close(self) -> None:
        self._thread.shutdown()
        self._orbax.close()


def temporaries(directory: Path) -> list[Path]:
    """The files and directories in checkpoints/ that an unfinished save or deletion has left."""
    return sorted(path for path in directory.glob("*") if is_temporary(path.name))

"""The replica of a run directory in object storage, which survives the machine.

The run directory itself is local, the working copy, so everything that holds for a local run holds
for it. The replica has the same files at the same names. A checkpoint is uploaded when it is
complete: its files first and its manifest last, so it exists in the replica if and only if its
manifest does. Its objects do not change. Other files, such as train.log, are replaced as a whole.

    RUN/LOCK/…                 the lock of the process that trains (seq2seq/files/remote_lock.py)
    RUN/checkpoints/STEP/…     and all other files of `RUN_FILES`
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path

from seq2seq.files import remote
from seq2seq.files.remote_lock import RemoteLock
from seq2seq.files.temporaries import temporary_directory
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from seq2seq.runtime.logs import Log
from seq2seq.storage.manifest import NAME as MANIFEST
from seq2seq.storage.manifest import listed_files
from seq2seq.storage.newest_step import newest_intact_step
from seq2seq.storage.replicas.download import download
from seq2seq.storage.replicas.names import (
    RESULT_FILES,
    Objects,
    complete_directories,
    directories_of,
    files_of,
    is_of_run,
    is_replaced,
    steps_among,
)
from seq2seq.storage.run_files import LEFT_BY_FAILED_START, steps
from seq2seq.storage.run_json import parsed_facts

PAUSES = (10.0, 30.0)  # seconds before an upload that failed is tried again
PENDING = 2  # uploads; a further one waits for the first of them


class Replica:
    """The replica of one run directory; a thread uploads. `start` comes first, `close` last."""

    def __init__(self, url: str, local: Path, log: Log):
        self.url, self.local, self._log = url.rstrip("/"), local, log
        self._lock: RemoteLock | None = None
        self._accepted = False  # whether the replica may become equal to the working copy
        self._thread = ThreadPoolExecutor(1, "upload")  # joined at the exit of the process
        self._pending: list[tuple[Future[None], list[str]]] = []  # uploads, of these directories
        self._same: set[str] = set()  # checkpoints that are known to be those of the replica
        self._versions: dict[str, tuple[int, int]] = {}  # (size, time) of each file uploaded last
        self._failure = ""  # of the last upload

    def start(self, overwrite: bool) -> None:
        """Lock the replica, and make the working copy the newer one of both sides.

        With `overwrite`, which deletes the run later (`clear`), nothing is downloaded. It is an
        error if another training holds the lock, or if the working copy is that of another run.
        """
        self._log(f"working copy: {self.local}")
        try:
            self._lock = RemoteLock(
                f"{self.url}/LOCK",
                f"{self.url} is in use by another training",
                "stop it or choose another --workdir",
                self._log,
            )
            objects = remote.list_files(self.url)
            if overwrite:
                self._check_clearable(objects)
            else:
                self._fetch_if_newer(objects)
                self._accepted = True
        except OSError as error:
            raise UserError(
                OUTPUT,
                f"{self.url} cannot be used: {error}; check the bucket and the credentials",
            ) from error

    def _check_clearable(self, objects: Objects) -> None:
        of_run = {name.partition("/")[0] for name in objects if is_of_run(name)}
        if "config.json" not in of_run and of_run - LEFT_BY_FAILED_START:
            raise UserError(
                OUTPUT,
                f"{self.url} holds objects but no run: expected the config.json of a run; "
                "--overwrite deletes nothing here, choose another --workdir",
            )

    def _fetch_if_newer(self, objects: Objects) -> None:
        """Download the replica unless the working copy has its newest checkpoint or a newer one."""
        remote_steps = steps_among(directories_of(objects))
        if "config.json" not in objects:
            if remote_steps:
                raise UserError(
                    CHECKPOINT,
                    f"{self.url} has checkpoints but no config.json; restore config.json, or "
                    "choose another --workdir",
                )
            if steps(self.local):
                self._log(f"{self.url} holds no run: the working copy is used")
            return
        self._check_identity(objects)
        try:
            newest, _ = newest_intact_step(self.local)
        except UserError:  # all are damaged; Checkpoints.restore quarantines them
            newest = None
        if newest is None or remote_steps and newest < remote_steps[-1]:
            self._same |= download(self.url, self.local, objects, self._log)

    def _check_identity(self, objects: Objects) -> None:
        """UserError(CONFIGURATION) if both sides are runs that were not started together."""
        if not (self.local / "run.json").exists() or "run.json" not in objects:
            return
        sides = []
        with temporary_directory(self.local / "run.json") as directory:
            remote.download(f"{self.url}/run.json", directory / "run.json")
            for path in (self.local / "run.json", directory / "run.json"):
                try:
                    facts = parsed_facts(path)
                except (ValueError, RecursionError):  # damaged: Run quarantines it
                    return
                sides.append([facts.get(name) for name in ("started", "host", "seed")])
        if sides[0] != sides[1]:
            raise UserError(
                CONFIGURATION,
                f"the working copy {self.local} is that of another run than {self.url}: delete it, "
                "or choose another --local_dir",
            )

    def fetch(self) -> None:
        """Download what other processes than the first one read: checkpoints, config, vocabulary.

        Raises UserError(CHECKPOINT) if the storage cannot be read.
        """
        try:
            objects = remote.list_files(self.url)
            download(self.url, self.local, objects, self._log, records=False)
        except OSError as error:
            raise UserError(CHECKPOINT, f"{self.url} cannot be read: {error}") from error

    def clear(self) -> None:
        """Delete the run: first what makes its checkpoints complete, config.json last, so that a
        deletion that failed can be repeated. Raises UserError(OUTPUT) if it fails."""
        try:
            objects = [name for name in remote.list_files(self.url) if is_of_run(name)]
            order = {MANIFEST: 0, "config.json": 2}
            for name in sorted(objects, key=lambda name: order.get(name.rpartition("/")[2], 1)):
                remote.delete(f"{self.url}/{name}")
        except OSError as error:
            raise UserError(OUTPUT, f"{self.url} could not be deleted: {error}") from error
        self._same.clear()
        self._accepted = True

    def start_upload(self, kept: set[int] | None = None) -> None:
        """Upload what has changed, in a thread; of the steps, those that are `kept` (None: all).
        Waits only if PENDING uploads have not ended."""
        self._pending = [upload for upload in self._pending if not upload[0].done()]
        if len(self._pending) >= PENDING:
            self._pending[0][0].result()
        names = [
            name
            for name in complete_directories(self.local)
            if kept is None or kept.issuperset(steps_among([name]))
        ]
        self._pending.append((self._thread.submit(self._upload, names), names))

    def wait(self) -> None:
        """Wait for the end of all uploads."""
        for upload, _ in self._pending:
            upload.result()

    def steps_in_use(self) -> set[int]:
        """The steps that are being uploaded, or will be: they must not be deleted."""
        names = (names for upload, names in self._pending if not upload.done())
        return set(steps_among(chain.from_iterable(names)))

    def upload(self) -> None:
        """Upload what has changed, and wait. Raises UserError(OUTPUT) if it fails."""
        self.start_upload()
        self.wait()
        if self._failure:
            raise UserError(
                OUTPUT,
                f"{self.url} is not up to date: {self._failure}; {self.local} holds the run: "
                "resume it on this machine, without --overwrite",
            )

    def try_upload(self) -> None:
        """Upload what has changed; a failure is ignored. Does nothing if `start` failed, or before
        `clear` if that follows: the replica may be another run, or the run to be deleted."""
        if self._accepted:
            self.wait()
            with suppress(UserError, OSError):
                self._mirror(complete_directories(self.local))

    def check_lock(self) -> None:
        """Raise UserError(OUTPUT) if another training has taken over the lock."""
        if self._lock is not None:
            self._lock.check()

    def close(self) -> None:
        """Wait for the uploads, and give the lock back."""
        self._thread.shutdown()
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                lock.release()
            except OSError as error:
                self._log(f"warning: the lock of {self.url} could not be deleted: {error}")

    def _upload(self, names: list[str]) -> None:
        """`_mirror`, tried again if it fails; the last failure is stored and logged."""
        for pause in (*PAUSES, None):
            try:
                self._mirror(names)
                self._failure = ""
                return
            except UserError as error:  # another training writes now
                self._failure = str(error)
                return
            except Exception as error:  # noqa: BLE001 – it would be lost in this thread
                self._failure = f"{type(error).__name__}: {error}"
            again = "with the next checkpoint" if pause is None else f"in {pause:g} s"
            self._log(
                f"warning: the upload to {self.url} failed: {self._failure}; it is tried again "
                f"{again}"
            )
            if pause is not None:
                time.sleep(pause)

    def _mirror(self, names: list[str]) -> None:
        """Make the replica equal to the working copy, of whose checkpoints it gets those of these
        `names`. First the files without which a checkpoint is of no use, config.json last of them;
        then the checkpoints, the steps in order; then the files that name one; then deletions."""
        if self._lock is not None:
            self._lock.verify()
        objects = remote.list_files(self.url)
        files = list(files_of(self.local))
        for name in files:
            if name not in RESULT_FILES:
                self._upload_file(name)
        for name in names:
            self._upload_directory(name, objects)
        for name in RESULT_FILES & set(files):
            self._upload_file(name)
        if self._is_newest(names, objects):
            self._delete_outdated(names, objects)

    def _is_newest(self, names: list[str], objects: Objects) -> bool:
        """Whether the working copy is still there, with the newest checkpoint of both sides."""
        newest = max(steps_among(directories_of(objects)), default=-1)
        uploaded = max(steps_among(names), default=-1)
        return (self.local / "config.json").exists() and newest <= uploaded

    def _delete_outdated(self, names: list[str], objects: Objects) -> None:
        """Delete steps, the average and results that the working copy no longer has. Nothing else
        is deleted: it may be of the user."""
        for name in directories_of(objects, complete=False):
            if is_replaced(name) and name not in names:
                self._delete_directory(name, objects)
        for name in RESULT_FILES & set(objects):
            if not (self.local / name).exists():
                remote.delete(f"{self.url}/{name}")

    def _upload_directory(self, name: str, objects: Objects) -> None:
        """Upload a checkpoint unless the replica has it."""
        manifest = (self.local / name / MANIFEST).read_bytes()
        try:
            files = listed_files(manifest)
        except ValueError as error:
            self._log(f"warning: {self.local / name} is damaged and is not uploaded: {error}")
            return
        existing = f"{self.url}/{name}/{MANIFEST}"
        if f"{name}/{MANIFEST}" in objects:
            if name in self._same or remote.read(existing) == manifest:
                self._same.add(name)
                return
            remote.delete(existing)  # of an earlier average, or of a damaged checkpoint
        for file in files:
            remote.upload(self.local / name / file, f"{self.url}/{name}/{file}")
        remote.write(existing, manifest)
        self._same.add(name)

    def _upload_file(self, name: str) -> None:
        """Upload a file that has changed since it was uploaded by this process. One that has been
        deleted in the meantime is not needed any more."""
        try:
            stat = (self.local / name).stat()
            version = stat.st_size, stat.st_mtime_ns
            if self._versions.get(name) != version:
                remote.upload(self.local / name, f"{self.url}/{name}")
                self._versions[name] = version
        except FileNotFoundError:
            if (self.local / name).exists():
                raise

    def _delete_directory(self, name: str, objects: Objects) -> None:
        """Delete a checkpoint, its manifest first."""
        self._same.discard(name)
        remote.delete(f"{self.url}/{name}/{MANIFEST}")
        for file in objects:
            if file.startswith(f"{name}/"):
                remote.delete(f"{self.url}/{file}")

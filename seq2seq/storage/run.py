"""The run directory as a training uses it: one process writes it, the others read it.

What is written and how is described where it is done:

    run_log.py        train.log            metrics.py        metrics.jsonl and tensorboard/
    run_json.py       run.json             checkpoints.py    checkpoints/, average/ and best.json
    resume_policy.py  what may change      deletion.py       what --overwrite deletes
    replicas/         the copy in object storage
"""

import errno
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TextIO

from seq2seq.config.tree import Config, save_config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import save_tokenizers
from seq2seq.files.locks import lock_file
from seq2seq.files.output_files import write_atomic
from seq2seq.runtime import processes
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.storage.deletion import check_deletable, delete_run_files
from seq2seq.storage.metrics import Metrics
from seq2seq.storage.replicas.replica import Replica
from seq2seq.storage.resume_policy import check_same_data, resumed_config, stored_config
from seq2seq.storage.run_json import read_facts, record_start
from seq2seq.storage.run_log import RunLog
from seq2seq.storage.writes import refuse_link, warn_on_write_error

P = ParamSpec("P")


def by_writer(
    method: "Callable[Concatenate[Run, P], None]",
) -> "Callable[Concatenate[Run, P], None]":
    """The method in the process that writes the run; in the others it does nothing."""

    @wraps(method)
    def guarded(self: "Run", *args: P.args, **kwargs: P.kwargs) -> None:
        if self.writes:
            method(self, *args, **kwargs)

    return guarded


class Run:
    """The directory of one training run, and its replica if the run is in object storage.

    Process 0 locks and writes it. The other processes take no lock, write no file and log nothing:
    in them the methods that are marked `by_writer` do nothing.
    """

    def __init__(self, path: Path, url: str = "", is_dry: bool = False):
        """Create or reopen and lock the directory, the working copy of a run in object storage if
        there is a `url`. A dry run (`is_dry`) only reads the directory.

        Raises UserError(OUTPUT) if it cannot be written or is in use.
        """
        self.path = path.expanduser().absolute()
        self.name = url or str(self.path)  # for messages
        self.writes = processes.is_first() and not is_dry
        self.resumed = False  # whether the directory holds a run; set by `resume_config`
        self.init_from = ""  # what a new run starts from, with its commit; set by `find_tokenizers`
        if url and not self.writes:  # another host has another disk
            self.path = self.path.with_name(f"{self.path.name}-process-{processes.index()}")
        self.replica = Replica(url, self.path, self.log) if url else None
        self._log = RunLog(self.path)
        self._metrics: Metrics | None = None  # made by `open_metrics`
        self._lock: TextIO | None = None
        self._lock_directory()

    @by_writer
    def _lock_directory(self) -> None:
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

    @by_writer
    def close(self) -> None:
        """Unlock the directory."""
        self.progress("")
        if self.replica is not None:
            self.replica.close()
        if self._lock is not None:
            self._lock.close()

    # The start of a run

    def resume_config(self, config: Config) -> Config:
        """The config with which the run in the directory continues (`resumed_config`); `config`
        itself if there is no run (`stored_config`)."""
        previous = stored_config(self.path)
        self.resumed = previous is not None
        return config if previous is None else resumed_config(config, previous, self.path, self.log)

    @by_writer
    def clear(self) -> None:
        """Delete the run in this directory and its replica; other files stay."""
        check_deletable(self.path)
        if self.replica is not None:
            self.replica.clear()
        delete_run_files(self.path)

    @by_writer
    def save_vocabulary(self, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
        """Write vocab/ of a new run. UserError(OUTPUT) if it is a link to another directory."""
        refuse_link(self.path / "vocab", "choose another --workdir")
        save_tokenizers(str(self.path / "vocab"), *tokenizers)

    @by_writer
    def check_and_record(self, config: Config, data: dict[str, str]) -> None:
        """Compare the data with that of a resumed run, then write config.json and run.json.

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
        record_start(path, previous, config.training.seed, data, self.init_from)

    # Log, metrics and results

    @by_writer
    def log(self, line: str) -> None:
        """Write a line to stderr and train.log."""
        self._log.log(line)

    @by_writer
    def note(self, line: str) -> None:
        """Write a line to train.log only."""
        self._log.note(line)

    @by_writer
    def progress(self, line: str) -> None:
        """Replace the progress line if stderr is a terminal."""
        self._log.progress(line)

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

    @by_writer
    def open_metrics(self, step: int, last: Mapping[str, int]) -> None:
        """Open metrics.jsonl and TensorBoard at `step`, without later entries (`Metrics`)."""
        self._metrics = Metrics(self.path, step, last, self.log)

    @by_writer
    def record(self, step: int, metrics: dict[str, float]) -> None:
        """Append a line to metrics.jsonl and points to TensorBoard."""
        assert self._metrics is not None, "record needs open_metrics"
        self._metrics.record(step, metrics)

    @by_writer
    def write_samples(self, name: int | str, lines: list[str]) -> None:
        """Write samples/NAME.txt."""
        text = "".join(line + "\n" for line in lines)
        with warn_on_write_error("samples"):
            directory = self.path / "samples"
            if directory.is_symlink():
                raise OSError(errno.ELOOP, f"{directory} is a symbolic link")
            directory.mkdir(exist_ok=True)
            write_atomic(directory / f"{name}.txt", text)

    @by_writer
    def write_scores(self, scores: dict[str, Any]) -> None:
        """Write scores.json: the checkpoint and, by name of the held-out data, its scores."""
        with warn_on_write_error("scores.json"):
            write_atomic(self.path / "scores.json", json.dumps(scores, indent=2) + "\n")

    # The replica in object storage. A run without one needs only the synchronisation.

    def open_replica(self, overwrite: bool) -> None:
        """Lock the replica, download what is newer there, and give all processes the same files.

        With `overwrite`, which deletes the run later (`clear`), nothing is downloaded.
        """
        first = processes.first_process_first if overwrite else self.first_process_first
        with first("the start of the run"):
            if self.replica is None:
                return
            if self.writes:
                self.replica.start(overwrite)
            elif overwrite:
                delete_run_files(self.path)

    @contextmanager
    def first_process_first(self, name: str) -> Iterator[None]:
        """Run the block in process 0 before the others, which find the files that it has written.

        Of a run in object storage each process has a working copy: process 0 uploads its own, and
        the others download it.
        """
        shared = self.replica if processes.count() > 1 else None
        with processes.first_process_first(name):
            if shared is not None and not self.writes:
                shared.fetch()
            yield
            if shared is not None and self.writes:
                shared.upload()

    def share_files(self, name: str) -> None:
        """Wait until process 0 has come here, and make its files those of all processes."""
        with self.first_process_first(name):
            pass

    @by_writer
    def check_replica(self) -> None:
        """Raise UserError(OUTPUT) if another training has taken over the replica."""
        if self.replica is not None:
            self.replica.check_lock()

    @by_writer
    def finish_upload(self) -> None:
        """Upload the run and wait. Raises UserError(OUTPUT) if it fails."""
        if self.replica is not None:
            self.replica.upload()

    @by_writer
    def try_upload(self) -> None:
        """Upload a run that ends with an error, above all its log, if that is possible
        (`Replica.try_upload`)."""
        if self.replica is not None:
            self.replica.try_upload()

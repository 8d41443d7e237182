"""ReadOnlyRun: the run directory in all processes but process 0, which read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.runtime import processes
from seq2seq.runtime.logs import no_log
from seq2seq.storage.replicas.replica import Replica
from seq2seq.storage.run import Run


class ReadOnlyRun(Run):
    """A Run that reads config.json, and takes no lock, writes no file and logs nothing.

    Methods that do nothing are those of process 0. Of a run in object storage it downloads a
    working copy of its own.
    """

    def __init__(self, path: Path, url: str = ""):
        self.path = path.expanduser().absolute()
        self.name = url or str(self.path)
        self.replica = None
        if url:  # each process has a working copy: another host has another disk
            self.path = self.path.with_name(f"{self.path.name}-process-{processes.index()}")
            self.replica = Replica(url, self.path, no_log)

    def open_replica(self, overwrite: bool) -> None:
        if not overwrite:
            self.receive_files()
        elif self.replica is not None:
            self.delete_files()

    def send_files(self) -> None: ...

    def receive_files(self) -> None:
        if self.replica is not None:
            self.replica.fetch()

    def check_replica(self) -> None: ...

    def finish_upload(self) -> None: ...

    def try_upload(self) -> None: ...

    def clear(self) -> None: ...

    def save_vocabulary(self, tokenizers: tuple[Tokenizer, Tokenizer]) -> None: ...

    def check_and_record(self, config: Config, data: dict[str, str]) -> None: ...

    def log(self, line: str) -> None: ...

    def note(self, line: str) -> None: ...

    def progress(self, line: str) -> None: ...

    def record(self, step: int, metrics: dict[str, float]) -> None: ...

    def open_metrics(self, step: int, last: Mapping[str, int]) -> None: ...

    def write_samples(self, name: int | str, lines: list[str]) -> None: ...

    def write_scores(self, scores: dict[str, Any]) -> None: ...

    def close(self) -> None: ...

"""ReadOnlyRun: the run directory in all processes but process 0, which read it."""

from pathlib import Path
from typing import Any

from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.storage.config import Config
from seq2seq.storage.run import Run


class ReadOnlyRun(Run):
    """A Run that reads config.json, and takes no lock, writes no file and logs nothing.

    The methods below do nothing: process 0 does it.
    """

    def __init__(self, path: Path):
        self.path = path.expanduser().absolute()

    def clear(self) -> None: ...

    def save_vocabulary(self, tokenizers: tuple[Tokenizer, Tokenizer]) -> None: ...

    def check_and_record(self, config: Config, data: dict[str, str]) -> None: ...

    def log(self, line: str) -> None: ...

    def note(self, line: str) -> None: ...

    def progress(self, line: str) -> None: ...

    def record(self, step: int, metrics: dict[str, float]) -> None: ...

    def open_metrics(self, step: int) -> None: ...

    def write_samples(self, name: int | str, lines: list[str]) -> None: ...

    def write_scores(self, scores: dict[str, Any]) -> None: ...

    def close(self) -> None: ...

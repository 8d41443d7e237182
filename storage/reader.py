"""The run directory as every process but the first sees it: it reads, process 0 alone writes."""

from pathlib import Path

from storage.config import Config
from storage.run import Run


class Reader(Run):
    """A Run that takes no lock, writes nothing and says nothing."""

    def __init__(self, path: Path):
        self.path = path.expanduser().absolute()

    def clear(self) -> None: ...

    def describe(self, config: Config, data: dict[str, str]) -> None: ...

    def log(self, line: str) -> None: ...

    def note(self, line: str) -> None: ...

    def progress(self, line: str) -> None: ...

    def record(self, step: int, metrics: dict[str, float]) -> None: ...

    def go_on_from(self, step: int) -> None: ...

    def write_samples(self, step: int | str, lines: list[str]) -> None: ...

    def close(self) -> None: ...

"""The log of a training: lines on stderr and in train.log."""

import shutil
import sys
from pathlib import Path

from seq2seq.runtime.streams import write_stderr
from seq2seq.storage.writes import append_line


class RunLog:
    """Writes the lines of a training to stderr and to train.log of its run directory."""

    def __init__(self, run: Path):
        self._path = run / "train.log"
        self._terminal = sys.stderr.isatty()

    def log(self, line: str) -> None:
        """Write a line to both."""
        write_stderr(f"{line}\n")
        self.note(line)

    def note(self, line: str) -> None:
        """Write a line to train.log only."""
        append_line(self._path, line)

    def progress(self, line: str) -> None:
        """Replace the progress line if stderr is a terminal."""
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            write_stderr(line[:width])

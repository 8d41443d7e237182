"""Several processes of one job on this machine, for tests."""

import os
import socket
import tempfile
import time
from pathlib import Path

from tests.support.forked import Process, environment_of
from tests.support.tiny import tiny_flags, write_corpus

ROOT = Path(__file__).parents[2]


class Job:
    """`processes` processes of one command, with `devices` CPU devices each."""

    def __init__(self, path, processes, devices, *command, apart=()):
        """`apart` are additional flags of the last process."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        logs = Path(tempfile.mkdtemp(dir=path))
        self._names = [[logs / f"{kind}{i}" for i in range(processes)] for kind in ("out", "err")]
        self.processes = []
        for i in range(processes):
            flags = (
                [
                    f"--coordinator=127.0.0.1:{port}",
                    f"--num_processes={processes}",
                    f"--process_id={i}",
                    "--process_timeout=20",
                ]
                if processes > 1
                else []
            )
            more = apart if i == processes - 1 else ()
            files = self._names[0][i], self._names[1][i]
            for file in files:
                file.touch()
            self.processes.append(
                Process([*command, *flags, *more], environment_of(devices), (os.devnull, *files))
            )

    def texts(self, kind):
        """The text of each process on stdout (0) or stderr (1)."""
        return [name.read_text(encoding="utf-8") for name in self._names[kind]]

    def wait_for(self, words):
        """Wait until stderr of process 0 contains `words`; fails if a process ends before."""
        while words not in self.texts(1)[0]:
            assert all(process.poll() is None for process in self.processes), self.texts(1)
            time.sleep(0.02)

    def codes(self):
        """The exit codes of all processes, after their end."""
        try:
            return [process.wait(timeout=240) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()


def write_data(path):
    """Write a training and a validation corpus into the directory `path`, which is returned."""
    write_corpus(path / "pairs.tsv", 61)
    write_corpus(path / "valid.tsv", 7, seed=1)
    return path


def training(path, processes, devices, run, *flags, config=None, num_steps=4, apart=()):
    """A `Job` that trains on the data of `write_data` in the run directory `run`.

    `config` is the path of a config file. Its flag must precede those of single fields.
    """
    return Job(
        path,
        processes,
        devices,
        ROOT / "train.py",
        *([f"--config={config}"] if config else []),
        *tiny_flags(),
        f"--workdir={run}",
        f"--config.data.corpus=tsv:{path / 'pairs.tsv'}",
        f"--config.training.num_steps={num_steps}",
        *flags,
        apart=apart,
    )

"""train.py and decode.py with a tiny model: for rows 22 to 36.

A command is a process of its own, except with `here`: then it runs in that of the test, on its
devices, which is faster and shows the same results, messages and exit code.
"""

import os
import tempfile
from functools import cache
from pathlib import Path

import seq2seq.decode
import seq2seq.train
from tests.support import forked
from tests.support.forked import call_forked
from tests.support.in_process import call_in_process
from tests.support.tiny import tiny_flags, write_corpus

ROOT = Path(__file__).parent.parent.parent
TRAIN, DECODE = str(ROOT / "train.py"), str(ROOT / "decode.py")
MODULES = {TRAIN: seq2seq.train, DECODE: seq2seq.decode}
TINY = [*tiny_flags(), "--config.training.num_steps=4", "--config.training.log_every=100"]
ENVIRONMENT = {**os.environ, "NPROC": "16", "XLA_FLAGS": ""}


class Done(forked.Done):
    """The result of a command."""

    @property
    def error(self) -> str:
        """The error message, without 'error: '; fails if there is a traceback."""
        assert not any("Traceback" in line for line in self.err), self.err
        assert self.err and self.err[-1].startswith("error: "), self.err
        return self.err[-1].removeprefix("error: ")


def call(script, *flags, stdin=b"", devices=1, cwd=ROOT, environment=(), here=False) -> Done:
    """Run a Python script; with 0 `devices`, any use of a device is an error. With `here`,
    `devices` and `environment` cannot be set."""
    if here:
        assert devices == 1 and not environment
        return Done(*call_in_process(MODULES[script], *flags, stdin=stdin, cwd=cwd))
    return Done(*call_forked([script, *flags], stdin, cwd, devices, environment))


@cache
def scratch() -> Path:
    """A directory for the trained run, which all tests of this process share."""
    place = tempfile.TemporaryDirectory(prefix="acceptance_")
    scratch.kept = place  # removed with the process
    return Path(place.name)


def train(corpus: str, workdir: Path, *flags, first=(), **options) -> Done:
    """Run train.py with tiny sizes; the flags `first` precede those of the config."""
    return call(
        TRAIN,
        *first,
        *TINY,
        f"--config.data.corpus={corpus}",
        f"--workdir={workdir}",
        *flags,
        **options,
    )


def decode(run: Path, *flags, script=DECODE, **options) -> Done:
    """Run decode.py on a run."""
    return call(script, f"--workdir={run}", *flags, **options)


@cache
def trained() -> Path:
    """A run of train.py, whose model has learnt enough to give different translations. Tests must
    not change it."""
    path = scratch() / "trained"
    path.mkdir()
    valid = write_corpus(path / "valid.tsv", 11, seed=1)
    done = train(
        write_corpus(path / "pairs.tsv", 113),
        path / "run",
        f"--config.data.valid={valid}",
        "--config.training.schedule=constant",
        "--config.training.learning_rate=0.02",
        "--config.training.num_steps=200",
        "--config.training.eval_every=200",
        "--config.training.checkpoint_every=100",
        here=True,
    )
    assert done.code == 0, done.err
    return path / "run"

"""train.py and decode.py as processes: a tiny run, injected faults, and files left on the disk.

A training without a fault can also run in the process of the test, on as many devices and with the
same bits: it shares its programs with the others there.
"""

import hashlib
import json
import signal
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

import seq2seq.train
from seq2seq.files.temporaries import is_temporary
from seq2seq.storage.run_files import steps
from tests.acceptance.injection import POINTS
from tests.support.forked import call_forked, environment_of, start_with_stderr
from tests.support.in_process import call_in_process
from tests.support.tiny import tiny_flags

ROOT = Path(__file__).parent.parent.parent
FAULTY = Path(__file__).parent / "faulty.py"
DEVICES = 4  # as in the process of the tests


class Bench:
    """Runs of one corpus."""

    def __init__(self, path: Path, corpus: str):
        self.path, self.corpus = path, corpus

    def command(self, run, *flags, fault=()):
        """train.py and its flags with the tiny model, optionally with a fault of faulty.py."""
        script = [FAULTY, *fault, "--"] if fault else [ROOT / "train.py"]
        return [
            *script,
            *tiny_flags(),
            f"--config.data.corpus={self.corpus}",
            f"--workdir={run}",
            *flags,
        ]

    def train_here(self, run, *flags, cwd=ROOT):
        """(exit code, lines of stderr) of a training in the process of the test."""
        done = call_in_process(seq2seq.train, *self.command(run, *flags)[1:], cwd=cwd)
        return done.code, done.err

    def train(self, run, *flags, fault=(), devices=DEVICES, cwd=ROOT):
        """(exit code, lines of stderr) at the end of the process."""
        done = call_forked(self.command(run, *flags, fault=fault), cwd=cwd, devices=devices)
        return done.code, done.err

    def start(self, run, *flags, fault=()):
        """The process, with stderr as lines to read."""
        return start_with_stderr(self.command(run, *flags, fault=fault), environment_of(DEVICES))

    def decode(self, run, *flags, stdin="eins zwei\n", devices=DEVICES):
        """(exit code, stdout, lines of stderr) of decode.py."""
        command = ROOT / "decode.py", f"--workdir={run}", *flags
        return call_forked(command, stdin.encode(), devices=devices)[:3]


def unfinished(run):
    """The steps of the checkpoints that were not written completely."""
    names = (path.name for path in (run / "checkpoints").iterdir())
    return [name.split(".")[0] for name in names if is_temporary(name)]


def at(point, call, name):
    """The fault that sends a signal before a call (from 1) of an injection point."""
    assert point in POINTS, f"{point!r} is not in tests/acceptance/injection.py"
    return "signal", point, str(call), name


def last_step(lines, prefix):
    """The number after a prefix in the last line that has it; 0 without such a line."""
    steps = [line.removeprefix(prefix).split()[0] for line in lines if line.startswith(prefix)]
    return int(steps[-1].split("/")[0]) if steps else 0


def error_of(lines):
    """The single error line, without 'error: '; fails if there is a traceback."""
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and not any("Traceback" in line for line in lines), lines
    return errors[0].removeprefix("error: ")


def arrays(directory):
    """Name → sha256 of dtype, shape and bytes, of each array in a directory of Orbax."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(directory).item_metadata.tree
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        restored = checkpointer.restore(directory, restore_args=plain)
    hashes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(restored):
        leaf = np.asarray(leaf)
        digest = hashlib.sha256(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        hashes[f"{directory.name}{jax.tree_util.keystr(path)}"] = digest.hexdigest()
    return hashes


def final_state(run):
    """The final state: each array of the last checkpoint (parameters, optimizer, key) and of the
    average, step, data position, best, the loss of each step, and the results of evaluations; fails
    if a step was recorded twice or never."""
    last = run / "checkpoints" / str(steps(run)[-1])
    state = {"step": last.name, **arrays(last / "params"), **arrays(last / "rest")}
    state |= arrays(run / "average" / "params")
    state["data"] = json.loads((last / "data" / "metadata").read_text())
    del state["data"]["seconds"]  # of training
    state["best"] = (run / "best.json").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
    assert [step for step, _ in losses] == list(range(1, int(last.name) + 1))
    evaluations = [line for line in lines if "valid_loss" in line]
    for line in evaluations:
        del line["time"]
    return state | {"losses": losses, "evaluations": evaluations}


def contents(run):
    """Path → bytes of every file of a run directory except logs."""
    logs = {"train.log", "run.json", "LOCK"}
    return {
        path: path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in logs and "tensorboard" not in path.parts
    }


def batches_of(lines):
    """The lines with the hash of each batch, of a training with the fault `watch`."""
    return [line for line in lines if line.startswith("batch ") and len(line) == 70]


def wait_for(process, prefix):
    """Read stderr up to a line with this prefix; returns the lines."""
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if line.startswith(prefix):
            return lines
    raise AssertionError(lines)


def ended(process, lines, number=None):
    """(exit code, all lines) of a process after an optional signal."""
    if number is not None:
        process.send_signal(number)
    lines += process.stderr.read().splitlines()
    return process.wait(timeout=500), lines


KILLED = -signal.SIGKILL

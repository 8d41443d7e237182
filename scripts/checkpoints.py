"""The checkpoints of a run: list them, verify that they are as they were saved, prune old ones.

python scripts/checkpoints.py list --workdir=RUN
python scripts/checkpoints.py verify --workdir=RUN
python scripts/checkpoints.py prune --workdir=RUN --keep=2
"""

import sys
import time
from functools import partial
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from runtime.command import run_command
from runtime.errors import CHECKPOINT, CONFIGURATION, UserError
from runtime.files import delete_directory
from runtime.path_flags import define_path
from storage.checkpoint import read_best, steps
from storage.config import load_config
from storage.manifest import damage
from storage.run import Run


def list_checkpoints(run: Path, _: flags.FlagValues) -> None:
    """A line each: step, when, size, and whether it is the best or the latest."""
    best = ""
    try:
        best = str(read_best(run).get("checkpoint", ""))
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
    latest = str(max(steps(run), default=None))
    for path in checkpoints(run):
        marks = ["best"] * (path.name == best)
        marks += ["latest"] * (path.name == latest)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
        size = sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        print(f"{path.name:>10}  {when}  {size / 1e6:9,.1f} MB  {' '.join(marks)}".rstrip())


def verify(run: Path, _: flags.FlagValues) -> None:
    """A line each: whole, or what is wrong. Raises UserError(CHECKPOINT) if any is not whole."""
    found = {path.name: damage(path) for path in checkpoints(run)}
    for name, wrong in found.items():
        print(f"{name:>10}  {wrong or 'whole'}")
    if damaged := [name for name, wrong in found.items() if wrong]:
        raise UserError(
            CHECKPOINT, f"{len(damaged)} of {len(found)} are damaged: {', '.join(damaged)}"
        )


def prune(run: Path, f: flags.FlagValues) -> None:
    """Delete what is not among the newest --keep whole ones or the best, and what saves and
    damage have left. Damaged ones that nothing has set aside yet stay."""
    keep = load_config(run / "config.json").training.keep if f.keep is None else f.keep
    held = Run(run)  # no training may be writing here
    try:
        directory = run / "checkpoints"
        whole = [step for step in steps(run) if not damage(directory / str(step))]
        old = set(whole[:-keep]) - {read_best(run).get("checkpoint")}
        left = [
            path
            for path in directory.glob("*")
            if path.match("*.corrupt*") or path.name.endswith("tmp")
        ]
        unneeded = [*(directory / str(step) for step in sorted(old)), *sorted(left)]
        for path in unneeded:
            delete(path)
            print(f"deleted {path}")
        if not unneeded:
            print(f"nothing to delete (whole checkpoints: {len(whole)}, --keep={keep})")
    finally:
        held.close()


def checkpoints(run: Path) -> list[Path]:
    """The directories of all steps, and of the average if there is one."""
    average = run / "average"
    there = [run / "checkpoints" / str(step) for step in steps(run)]
    return there + [average] * average.is_dir()


def delete(path: Path) -> None:
    """Delete a directory, or a link but not where it leads; by rename first, so that a kill in the
    middle leaves no half of a checkpoint under its name."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        delete_directory(path, path.with_name(f"{path.name}.old.tmp"))


COMMANDS = {"list": list_checkpoints, "verify": verify, "prune": prune}


def main(command: str) -> None:
    f = flags.FLAGS
    if command not in COMMANDS or not f.workdir:
        raise UserError(CONFIGURATION, f"say {', '.join(COMMANDS)}, then --workdir=RUN")
    run = Path(f.workdir).expanduser().absolute()
    load_config(run / "config.json")  # a run directory
    COMMANDS[command](run, f)


def define_flags() -> None:
    define_path("workdir", "", "The run directory that train.py wrote.")
    flags.DEFINE_integer(
        "keep",
        None,
        "prune: whole checkpoints to keep besides the best one; config.training.keep by default.",
        lower_bound=1,
    )


if __name__ == "__main__":
    first = sys.argv.pop(1) if sys.argv[1:] and not sys.argv[1].startswith("-") else ""
    run_command(define_flags, partial(main, first))

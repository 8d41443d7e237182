"""List, verify, prune and average the checkpoints of a run.

python scripts/checkpoints.py list --workdir=RUN
python scripts/checkpoints.py verify --workdir=RUN
python scripts/checkpoints.py prune --workdir=RUN --keep=2
python scripts/checkpoints.py average --workdir=RUN --steps=1000,2000,3000 --output=avg3
"""

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import refuse_flags, run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.config.tree import load_config
from seq2seq.files.temporaries import delete_directory, delete_temporary, is_temporary
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.checkpoints import Checkpoints, temporaries
from seq2seq.storage.manifest import CORRUPT, damage
from seq2seq.storage.run import Run
from seq2seq.storage.run_files import (
    AVERAGE_NAME,
    RESERVED_NAMES,
    mean_params,
    named_averages,
    restore_params,
    steps,
)


def list_checkpoints(run: Path, _: flags.FlagValues) -> None:
    """Print a line for each checkpoint: step, date, size, and whether it is the best or latest."""
    best = ""
    try:
        best = str(read_best(run).get("checkpoint", ""))
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
    latest = str(max(steps(run), default=None))
    for path in checkpoints(run):
        marks = [mark for mark, name in (("best", best), ("latest", latest)) if name == path.name]
        with suppress(FileNotFoundError):  # a training has deleted it meanwhile
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            print(f"{path.name:>10}  {when}  {size / 1e6:9,.1f} MB  {' '.join(marks)}".rstrip())


def verify(run: Path, _: flags.FlagValues) -> None:
    """Print a line for each checkpoint: intact, or the damage.

    Raises UserError(CHECKPOINT) if one is damaged.
    """
    damages = {}
    for path in checkpoints(run):
        description = damage(path)
        if path.exists():  # else a training has deleted it meanwhile
            damages[path.name] = description
    for name, description in damages.items():
        print(f"{name:>10}  {description or 'intact'}")
    if damaged := [name for name, description in damages.items() if description]:
        raise UserError(
            CHECKPOINT,
            f"{len(damaged)} of {len(damages)} checkpoints are damaged: {', '.join(damaged)}",
        )


def prune(run: Path, f: flags.FlagValues) -> None:
    """Delete all but the newest --keep intact steps, the best one and averages, and leftovers.

    Leftovers are directories of interrupted saves and quarantined checkpoints. A damaged checkpoint
    that is not quarantined yet is kept.
    """
    keep = load_config(run / "config.json").training.keep if f.keep is None else f.keep
    lock = Run(run)  # fails while a training uses the directory
    try:
        directory = run / "checkpoints"
        intact = [step for step in steps(run) if not damage(directory / str(step))]
        old = set(intact[:-keep]) - {read_best(run).get("checkpoint")}
        corrupt = [path for path in directory.glob("*") if CORRUPT.fullmatch(path.name)]
        leftovers = sorted([*corrupt, *temporaries(directory)])
        unneeded = [*(directory / str(step) for step in sorted(old)), *leftovers]
        for path in unneeded:
            delete(path)
            print(f"deleted {path}")
        if not unneeded:
            print(f"nothing to delete (intact checkpoints: {len(intact)}, --keep={keep})")
    finally:
        lock.close()


def average(run: Path, f: flags.FlagValues) -> None:
    """Write the mean of the parameters of --steps as the checkpoint --output.

    A moving average takes the place of the parameters, as in evaluation. Raises
    UserError(CHECKPOINT) for a missing or damaged step.
    """
    check_average_flags(run, f)
    training = load_config(run / "config.json").training
    lock = Run(run)  # fails while a training uses the directory
    try:
        prepare_jax("off", 1)
        params = mean_params(restore_params(run, step) for step in f.steps)
        stored = Checkpoints(run, training.keep, training.checkpoint_every, print)
        stored.save_named_average(f.output, params)
        stored.close()
        print(
            f"translate with: python decode.py --workdir={quote(str(run))} --checkpoint={f.output}"
        )
    finally:
        lock.close()


def check_average_flags(run: Path, f: flags.FlagValues) -> None:
    """UserError for --steps that the run does not have, or an --output that cannot be written."""
    existing = list(map(str, steps(run)))
    if missing := [step for step in f.steps if step not in existing]:
        raise UserError(
            CHECKPOINT,
            f"--steps: {run} has no checkpoint {', '.join(missing)}: expected some of "
            f"{', '.join(existing) or 'none'}",
        )
    if not f.steps or len(set(f.steps)) < len(f.steps):
        raise UserError(
            CONFIGURATION,
            f"--steps must be different steps, as in --steps=1000,2000, got {','.join(f.steps)!r}",
        )
    if not re.fullmatch(AVERAGE_NAME, f.output) or f.output in RESERVED_NAMES:
        raise UserError(
            CONFIGURATION,
            "--output must be a name of letters, digits, - and _ that starts with a letter, other "
            f"than {', '.join(RESERVED_NAMES)}, got {f.output!r}",
        )
    if f.output in named_averages(run) and not f.overwrite:
        raise UserError(
            OUTPUT, f"{run} has a checkpoint {f.output} already; set --overwrite to replace it"
        )


def checkpoints(run: Path) -> list[Path]:
    """The directories of all steps, of the named averages, and of the average of the run."""
    names = [*map(str, steps(run)), *named_averages(run)]
    of_run = [run / "average"] if (run / "average").is_dir() else []
    return [run / "checkpoints" / name for name in names] + of_run


def delete(path: Path) -> None:
    """Delete a file, a directory, or a link (not its target).

    A directory is renamed first, so a kill leaves no partial checkpoint under its final name.
    """
    if is_temporary(path.name):
        delete_temporary(path)
    elif path.is_symlink() or not path.is_dir():
        path.unlink()
    elif left := delete_directory(path):
        print(f"warning: {left}", file=sys.stderr)


COMMANDS = {"list": list_checkpoints, "verify": verify, "prune": prune, "average": average}
COMMAND_OF = {"keep": "prune", "steps": "average", "output": "average", "overwrite": "average"}


def main(command: str = "") -> None:
    f = flags.FLAGS
    if command not in COMMANDS or not f.workdir:
        raise UserError(
            CONFIGURATION,
            f"the command is incomplete: expected one of {', '.join(COMMANDS)} and --workdir, "
            f"got {command!r} and --workdir={f.workdir!r}",
        )
    for name, used_by in COMMAND_OF.items():
        if command != used_by:
            refuse_flags([name], f"on {command}: expected it with {used_by}")
    run = Path(f.workdir).expanduser().absolute()
    load_config(run / "config.json")  # raises UserError if this is not a run directory
    COMMANDS[command](run, f)


def define_flags() -> None:
    define_path("workdir", "", "The run directory, written by train.py.")
    flags.DEFINE_integer(
        "keep",
        None,
        "prune: intact checkpoints to keep besides the best one; default: config.training.keep.",
        lower_bound=1,
    )
    flags.DEFINE_list("steps", [], "average: the steps whose parameters are averaged.")
    flags.DEFINE_string("output", "", "average: the name of the new checkpoint.")
    flags.DEFINE_bool("overwrite", False, "average: replace an existing checkpoint of that name.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main, arguments=1)


if __name__ == "__main__":
    run()

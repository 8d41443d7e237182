"""The names of what a run directory and its replica in object storage consist of."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from seq2seq.files.remote import RemoteFile
from seq2seq.files.temporaries import is_temporary
from seq2seq.storage.manifest import NAME as MANIFEST
from seq2seq.storage.run_files import AVERAGE_NAME, RUN_FILES, named_averages, steps

# Files that name a checkpoint: they are uploaded after it, and deleted when training deletes them.
RESULT_FILES = {"best.json", "scores.json"}
CHECKPOINT_NAME = re.compile(rf"average|checkpoints/(\d+|{AVERAGE_NAME})")

Objects = dict[str, RemoteFile]  # by their names relative to the run


def complete_directories(run: Path) -> list[str]:
    """The names, relative to a local run, of its averages and checkpoints; the steps in order."""
    names = ["average", *(f"checkpoints/{name}" for name in [*named_averages(run), *steps(run)])]
    return [name for name in names if (run / name / MANIFEST).exists()]


def files_of(run: Path) -> Iterator[str]:
    """The names, relative to a local run, of its other files, config.json last."""
    for name in RUN_FILES:
        path = run / name
        if path.is_file():
            yield name
        elif path.is_dir() and not path.is_symlink() and not is_in_directory(f"{name}/"):
            for file in sorted(path.rglob("*")):
                if file.is_file() and not is_temporary(file.name):
                    yield file.relative_to(run).as_posix()


def directories_of(objects: Objects, complete: bool = True) -> list[str]:
    """The names of the averages and checkpoints of a replica, the steps last and in order;
    `complete`: of those that have a manifest."""
    directories: set[str] = set()
    for name in objects:
        depth = 1 if name.startswith("average/") else 2
        directory = "/".join(name.split("/")[:depth])
        if CHECKPOINT_NAME.fullmatch(directory) and (
            not complete or f"{directory}/{MANIFEST}" in objects
        ):
            directories.add(directory)
    return sorted(directories, key=lambda name: (steps_among([name]), name))


def steps_among(names: Iterable[str]) -> list[int]:
    """The steps among the names of `directories_of`, in ascending order."""
    last = (name.partition("/")[2] for name in names)
    return sorted(int(name) for name in last if name.isdecimal())


def is_replaced(name: str) -> bool:
    """Whether a directory is a step or the average, which training replaces. A named average is of
    the user."""
    return name == "average" or bool(steps_among([name]))


def is_of_run(name: str) -> bool:
    """Whether an object of this name is one of a run; others are neither read nor deleted."""
    parts = PurePosixPath(name).parts
    return parts[0] in RUN_FILES and ".." not in parts


def is_in_directory(name: str) -> bool:
    """Whether an object belongs to a checkpoint or an average."""
    return name.startswith(("checkpoints/", "average/"))

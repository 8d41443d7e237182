"""The download of a run from object storage into its working copy."""

from pathlib import Path

from seq2seq.files import remote
from seq2seq.files.output_files import publish_directory, write_atomic
from seq2seq.files.temporaries import delete_directory, temporary_directory, temporary_file
from seq2seq.runtime.logs import Log
from seq2seq.storage.manifest import NAME as MANIFEST
from seq2seq.storage.manifest import damage, listed_files, quarantine
from seq2seq.storage.replicas.names import (
    RESULT_FILES,
    Objects,
    complete_directories,
    directories_of,
    is_in_directory,
    is_of_run,
    is_replaced,
    steps_among,
)

# Without the records of a run, which process 0 may replace while the others read.
MODEL_FILES = {"config.json", "vocab", "best.json"}


def download(url: str, local: Path, objects: Objects, log: Log, records: bool = True) -> set[str]:
    """Make the working copy `local` equal to a replica with these objects, its newest step last:
    after an interruption the working copy is still the older side. Without `records`, of the files
    beside checkpoints only MODEL_FILES.

    Returns the names of the checkpoints that both have then. A damaged one is not downloaded, with
    a warning, and then nothing is deleted. OSError if the storage cannot be read.
    """
    local.mkdir(parents=True, exist_ok=True)
    for name in objects:
        wanted = records or name.partition("/")[0] in MODEL_FILES
        if wanted and is_of_run(name) and not is_in_directory(name):
            download_file(f"{url}/{name}", local / name)
    names, same = directories_of(objects), set[str]()
    for name in names:
        if reason := _download_checkpoint(f"{url}/{name}", local / name):
            log(f"warning: {url}/{name} is damaged and is not used: {reason}")
        else:
            same.add(name)
    if same.issuperset(names) and steps_among(names):
        _delete_others(local, names, objects)
    return same


def _delete_others(local: Path, names: list[str], objects: Objects) -> None:
    """Delete intact steps, the average and results that the replica does not have."""
    for name in complete_directories(local):
        if is_replaced(name) and name not in names and not damage(local / name):
            delete_directory(local / name)
    for name in RESULT_FILES - set(objects):
        (local / name).unlink(missing_ok=True)


def _download_checkpoint(url: str, target: Path) -> str:
    """Download a checkpoint unless it is there; it appears when it is complete and verified.
    Returns the damage, or ""."""
    reason = ""
    target.parent.mkdir(exist_ok=True)
    for _ in range(2):  # the bytes may have changed on their way
        try:
            manifest = remote.read(f"{url}/{MANIFEST}")
            if is_intact_copy(target, manifest):
                return ""
            with temporary_directory(target) as directory:
                download_listed(url, manifest, directory / "new")
                reason = damage(directory / "new")
                if not reason:
                    if target.exists() and damage(target):
                        quarantine(target)
                    elif target.exists():  # an earlier average
                        delete_directory(target)
                    publish_directory(directory / "new", target)
                    return ""
        except (FileNotFoundError, ValueError) as error:
            reason = str(error)
    return reason


def download_listed(
    url: str, manifest: bytes, directory: Path, parts: tuple[str, ...] = ("",)
) -> None:
    """Download the files that the manifest of a checkpoint lists, of these parts (the starts of
    their names). ValueError if the manifest is damaged."""
    for file in listed_files(manifest):
        if file.startswith(parts):
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            remote.download(f"{url}/{file}", directory / file)
    write_atomic(directory / MANIFEST, manifest)


def download_file(url: str, path: Path) -> None:
    """Download a file, which appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(path) as (temporary, _):
        remote.download(url, temporary)
        Path(temporary).replace(path)


def is_intact_copy(directory: Path, manifest: bytes, parts: tuple[str, ...] = ("",)) -> bool:
    """Whether a local checkpoint has this manifest, and no damage in these parts."""
    path = directory / MANIFEST
    is_copy = path.exists() and path.read_bytes() == manifest
    return is_copy and not any(damage(directory, part) for part in parts)

"""Models in object storage: of a run with a checkpoint, or a directory of another project's model
family, what decoding reads is downloaded and nothing else."""

import json
import shutil
from pathlib import Path

from seq2seq.files import remote
from seq2seq.files.locks import waiting_for_lock
from seq2seq.files.output_files import publish_directory, write_atomic
from seq2seq.files.temporaries import delete_directory, temporary_directory
from seq2seq.files.weight_names import ADAPTER_FILES, weight_names
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.runtime.logs import no_log
from seq2seq.runtime.paths import working_copy
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.manifest import NAME as MANIFEST
from seq2seq.storage.manifest import damage
from seq2seq.storage.replicas.download import download_file, download_listed, is_intact_copy
from seq2seq.storage.replicas.names import Objects, directories_of, steps_among

VERSIONS = ".objects.json"  # in the local copy: name → version of the object that was downloaded
PARTS = "params", "ema"  # of a checkpoint
# Of the files beside checkpoints, those that a model consists of, besides weights.
NEEDED = {".json", ".model", ".spm", ".vocab", ".txt"}


def local_model(url: str, checkpoint: str, local_dir: str) -> Path:
    """The local copy, below --local_dir, of a model with its `checkpoint` (`params_directory`).

    Files that have not changed are not downloaded again. Raises UserError(CHECKPOINT) if there is
    no such model or checkpoint, or if it cannot be read.
    """
    local = working_copy(url, local_dir)
    local = local.with_name(f"{local.name}-model")  # training has another, with whole checkpoints
    url = url.rstrip("/")
    try:
        objects = remote.list_files(url)
        if not {"config.json", "adapter_config.json"} & objects.keys():
            raise UserError(
                CHECKPOINT, f"{url} holds no model: expected the config.json of a run or model"
            )
        local.mkdir(parents=True, exist_ok=True)
        with waiting_for_lock(f"{local}.lock", f"downloads {url}", no_log):
            _download_files(url, local, objects)
            if names := directories_of(objects):
                for path in local.glob("checkpoints/*"):
                    if f"checkpoints/{path.name}" not in names:
                        shutil.rmtree(path, ignore_errors=True)
                _download_params(url, local, _directory_of(checkpoint, url, local, names))
        return local
    except OSError as error:
        raise UserError(CHECKPOINT, f"{url} cannot be read: {error}") from error


def _download_files(url: str, local: Path, objects: Objects) -> None:
    """Download the files beside checkpoints that are new or have changed."""
    versions: dict[str, list[int | str]] = {}
    known = local / VERSIONS
    if known.exists():
        versions = json.loads(known.read_bytes())
    weights = {*weight_names(objects), *weight_names(objects, ADAPTER_FILES)}
    for name, version in objects.items():
        path = Path(name)
        is_beside = len(path.parts) == 1 or path.parts[:-1] == ("vocab",)
        is_needed = path.suffix in NEEDED or name in weights
        if not is_needed or not is_beside:
            continue
        if versions.get(name) != list(version) or not (local / name).exists():
            download_file(f"{url}/{name}", local / name)
            versions[name] = list(version)
    for name in set(versions) - set(objects):  # such as a best.json that was deleted
        (local / name).unlink(missing_ok=True)
        del versions[name]
    write_atomic(known, json.dumps(versions))


def _directory_of(checkpoint: str, url: str, local: Path, names: list[str]) -> str:
    """The one of `names`, directories relative to the run, that is the checkpoint."""
    if checkpoint == "best":
        checkpoint = str(read_best(local).get("checkpoint", "latest"))
    if checkpoint == "latest" and (steps := steps_among(names)):
        checkpoint = str(steps[-1])
    name = "average" if checkpoint == "average" else f"checkpoints/{checkpoint}"
    if name not in names:
        existing = ", ".join(name.removeprefix("checkpoints/") for name in names)
        raise UserError(
            CHECKPOINT, f"no checkpoint {checkpoint!r} in {url}: expected one of {existing}"
        )
    return name


def _download_params(url: str, local: Path, name: str) -> None:
    """Download the parameters of a checkpoint, and their moving average if it has one, unless they
    are there. UserError(CHECKPOINT) if they are damaged."""
    target = local / name
    manifest = remote.read(f"{url}/{name}/{MANIFEST}")
    if is_intact_copy(target, manifest, PARTS):
        return
    if target.exists():
        delete_directory(target)
    target.parent.mkdir(exist_ok=True)
    with temporary_directory(target) as directory:
        new = directory / "new"
        try:
            download_listed(f"{url}/{name}", manifest, new, tuple(f"{part}/" for part in PARTS))
            reason = next(filter(None, (damage(new, part) for part in PARTS)), "")
        except ValueError as error:  # of the manifest
            reason = str(error)
        if reason:
            raise UserError(CHECKPOINT, f"{url}/{name} is damaged: {reason}")
        publish_directory(new, target)

"""MANIFEST.sha256: what a finished directory holds, so that damage is seen before it is used.

Orbax restores a flipped bit without a word. The lines are those of sha256sum, and the first one
holds the hash of the others: `cd checkpoints/STEP && sha256sum -c MANIFEST.sha256`.
"""

import hashlib
from pathlib import Path

from runtime.files import file_sha256, sync_to_disk, write_atomic

NAME = "MANIFEST.sha256"
FIRST = "# sha256 of the lines below: {}\n"


def write_manifest(directory: Path) -> None:
    """Put all files of `directory` safely on the disk, then their hashes beside them."""
    lines = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            lines.append(f"{file_sha256(path)}  {path.relative_to(directory).as_posix()}\n")
        sync_to_disk(path)
    below = "".join(lines)
    write_atomic(directory / NAME, FIRST.format(hashlib.sha256(below.encode()).hexdigest()) + below)
    sync_to_disk(directory)


def damage(directory: Path, part: str = "") -> str:
    """What is wrong with a directory, or with its part (a name inside it): "" if nothing is.

    Files that the manifest does not know are not looked at.
    """
    try:
        first, _, below = (directory / NAME).read_bytes().partition(b"\n")
    except OSError as error:
        return f"{NAME}: {error.strerror}"
    if first + b"\n" != FIRST.format(hashlib.sha256(below).hexdigest()).encode():
        return f"{NAME} does not match its own hash"
    for line in below.decode().splitlines():
        expected, name = line.split("  ", 1)
        if ".." in Path(name).parts or Path(name).is_absolute():
            return f"{NAME} names {name!r}, outside its directory"
        if name.startswith(f"{part}/" if part else ""):
            try:
                if file_sha256(directory / name) != expected:
                    return f"{name} does not match its hash in {NAME}"
            except OSError as error:
                return f"{name}: {error.strerror}"
    return ""


def holds(directory: Path, part: str) -> bool:
    """Whether the manifest of a directory names files of this part."""
    try:
        return f"  {part}/" in (directory / NAME).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def quarantine(directory: Path) -> Path:
    """Rename a damaged directory to NAME.corrupt, or .corrupt-2, …; returns its new path."""
    place, number = directory.with_name(f"{directory.name}.corrupt"), 1
    while place.exists():
        number += 1
        place = place.with_name(f"{directory.name}.corrupt-{number}")
    return directory.rename(place)

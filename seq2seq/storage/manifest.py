"""MANIFEST.sha256: the hashes of a checkpoint's files, to detect damage before use.

Orbax does not detect a flipped bit. The format is that of sha256sum (`cd checkpoints/STEP &&
sha256sum -c MANIFEST.sha256`); the first line is a comment with the hash of the others.
"""

import hashlib
import re
from functools import partial
from pathlib import Path

from seq2seq.files.output_files import file_sha256, retried, sync_to_disk, write_atomic

NAME = "MANIFEST.sha256"
FIRST = "# sha256 of the lines below: {}\n"
CORRUPT = re.compile(r"[0-9]+\.corrupt(-[0-9]+)?")  # names that `quarantine` gives checkpoints


def write_manifest(directory: Path) -> None:
    """Sync all files of `directory` to the disk, then write their hashes."""
    lines = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            lines.append(f"{file_sha256(path)}  {path.relative_to(directory).as_posix()}\n")
        sync_to_disk(path)
    below = "".join(lines)
    write_atomic(directory / NAME, FIRST.format(hashlib.sha256(below.encode()).hexdigest()) + below)
    sync_to_disk(directory)


def listed_files(content: bytes) -> dict[str, str]:
    """The files of a manifest with this content, and their hashes. ValueError if it is damaged."""
    first, _, below = content.partition(b"\n")
    if first + b"\n" != FIRST.format(hashlib.sha256(below).hexdigest()).encode():
        raise ValueError(f"{NAME} does not match its own hash")
    files: dict[str, str] = {}
    for line in below.decode().splitlines():
        expected, name = line.split("  ", 1)
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(f"{NAME} names {name!r}, outside its directory")
        files[name] = expected
    return files


def damage(directory: Path, part: str = "") -> str:
    """A description of the damage to a directory or one `part` (subdirectory) of it; "" if none.

    Files that the manifest does not list are ignored.
    """
    try:
        files = listed_files(retried((directory / NAME).read_bytes))
    except OSError as error:
        return f"{NAME}: {error.strerror}"
    except ValueError as error:
        return str(error)
    for name, expected in files.items():
        if name.startswith(f"{part}/" if part else ""):
            try:
                if retried(partial(file_sha256, directory / name)) != expected:
                    return f"{name} does not match its hash in {NAME}"
            except OSError as error:
                return f"{name}: {error.strerror}"
    return ""


def has_part(directory: Path, part: str) -> bool:
    """Whether the manifest of a directory lists files of this part."""
    try:
        return f"  {part}/" in (directory / NAME).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def quarantine(path: Path) -> Path:
    """Rename a damaged file or directory to NAME.corrupt (or .corrupt-2, …); return the path."""
    target, number = path.with_name(f"{path.name}.corrupt"), 1
    while target.exists():
        number += 1
        target = target.with_name(f"{path.name}.corrupt-{number}")
    return path.rename(target)

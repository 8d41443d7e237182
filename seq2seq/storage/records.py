"""Records of a run: run.json and metrics.jsonl. Resuming does not depend on them."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from seq2seq.files.locks import no_follow
from seq2seq.runtime.jax_settings import FIXED
from seq2seq.storage.manifest import quarantine

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")


def append(path: Path, content: bytes) -> None:
    """Append to a file that is no symbolic link all of `content`, or nothing and raise OSError: a
    part of it, from a disk that is full, would damage the next entry."""
    with open(path, "ab", buffering=0, opener=no_follow) as file:
        size, rest = file.tell(), memoryview(content)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)
            raise


def start_facts(seed: int, data: dict[str, str]) -> dict[str, Any]:
    """The entry of run.json for this start: command, directory, time, host, versions, settings,
    commit, seed, data."""
    return {
        "command": sys.argv,
        "directory": os.getcwd(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "python": platform.python_version(),
        "jax_settings": FIXED,
        "versions": {name: version(name) for name in LIBRARIES},
        "commit": commit(Path(__file__)),
        "seed": seed,
        "data": data,
    }


def commit(file: Path) -> str:
    """The commit of the repository of which `file` is a tracked file; "" if there is none."""
    if not shutil.which("git"):
        return ""
    command = partial(subprocess.run, cwd=file.parent, capture_output=True, text=True, check=False)
    if command(["git", "ls-files", "--error-unmatch", file.name]).returncode:
        return ""
    return command(["git", "rev-parse", "HEAD"]).stdout.strip()


def read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """The content of run.json ({} if there is none), and a warning or "".

    A damaged file is quarantined: renamed to run.json.corrupt.
    """
    try:
        return parsed_facts(path), ""
    except (ValueError, RecursionError) as error:
        kept = quarantine(path)
        return {}, (
            f"{path.name} is damaged ({error}); it was renamed to {kept.name}, and a new "
            "one was started"
        )


def parsed_facts(path: Path) -> dict[str, Any]:
    """The content of run.json, {} if there is none. ValueError or RecursionError if it is
    damaged."""
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    shape = {"data": dict, "resumed": list}
    if not isinstance(facts, dict) or not all(
        isinstance(facts.get(name, kind()), kind) for name, kind in shape.items()
    ):
        raise ValueError("not the description of a run")
    return facts


def intact_facts(path: Path) -> dict[str, Any]:
    """The content of run.json, {} if there is none or it is damaged. Changes nothing."""
    with suppress(ValueError, RecursionError):
        return parsed_facts(path)
    return {}


def metrics_until(content: bytes, last: Mapping[str, int]) -> tuple[bytes, int]:
    """The lines of metrics.jsonl up to the `last` step of their kind (`step_and_kind`), and the
    number of damaged lines."""
    lines = [(line, step_and_kind(line)) for line in content.split(b"\n") if line]
    kept = [line for line, entry in lines if entry is not None and entry[0] <= last[entry[1]]]
    return b"".join(line + b"\n" for line in kept), sum(entry is None for _, entry in lines)


def step_and_kind(line: bytes) -> tuple[float, str] | None:
    """The step of a metrics line, and the start of the names of its metrics: train, average, or
    else valid. None for a damaged line, such as one truncated by a crash."""
    try:
        entry = json.loads(line)
        starts = {name.rpartition("/")[2].partition("_")[0] for name in entry}  # NAME/valid_bleu
        kind = next((kind for kind in ("train", "average") if kind in starts), "valid")
        return float(entry["step"]), kind
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None

"""run.json: how a run was started and resumed. Resuming does not depend on it."""

import json
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.jax_settings import FIXED
from seq2seq.storage.manifest import quarantine

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")


def record_start(
    path: Path, previous: dict[str, Any], seed: int, data: dict[str, str], init_from: str = ""
) -> None:
    """Write run.json: the facts of this start, and the `previous` ones if the run is resumed.

    `init_from` is the model that a new run starts from, with the commit of a repository.
    """
    facts = start_facts(seed, data)
    if init_from:
        facts["init_from"] = init_from
    if previous:
        resumed = [*previous.get("resumed", []), facts]
        facts = {**previous, "data": data, "resumed": resumed}
    write_atomic(path, json.dumps(facts, indent=2) + "\n")


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

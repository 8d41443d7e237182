"""Benchmark: training and decoding on the accelerator of this host, with installed peers.

    python benchmarks/accelerator.py [--minutes=10] [--parts=training,decoding:opus] [--results=DIR]

Measures the parts of benchmarks/parts/catalog.py, the most important first, and prints Markdown
tables for benchmarks/accelerator.md. The result of each part is stored as soon as it ends; another
run measures the parts that are missing and prints all. On a CPU the sizes are tiny: that shows
that the command works and measures nothing of interest.
"""

import json
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.paths import cache_directory, expand_path

LIBRARIES = "jax", "jaxlib", "flax", "torch", "transformers", "ctranslate2"


def main() -> None:
    # Imported after the flags are parsed: --help needs no jax.
    from benchmarks.parts import processes
    from benchmarks.parts.catalog import PARTS, chosen_parts
    from benchmarks.parts.results import Results
    from benchmarks.parts.sizes import SIZES
    from benchmarks.parts.tables import report

    f = flags.FLAGS
    parts = chosen_parts(f.parts)
    if not parts:
        names = ", ".join(part.name for part in PARTS)
        raise UserError(
            CONFIGURATION,
            f"--parts matches nothing: expected parts of {names}, got {','.join(f.parts)}",
        )
    if f.role:
        prepare_jax(f.compilation_cache, 1)
    if f.role == "describe":
        print(json.dumps(processes.own_devices()))
        return
    device = json.loads(f.device) if f.device else processes.found_devices()
    size = f.sizes or ("tiny" if device["platform"] == "cpu" else "full")
    setting = device | {"sizes": size}
    results = Results(results_directory(f.results, setting), setting, facts())
    if f.role == "parts":
        sizes = SIZES[size]._replace(platform=device["platform"])
        processes.run_here(parts, sizes, results, 60 * f.minutes, f.part_seconds)
        return
    processes.run_parts(parts, results, device, 60 * f.minutes)
    for line in report(parts, results, setting):
        print(line)


def results_directory(directory: str, setting: dict[str, Any]) -> Path:
    """--results, or a directory of this device in the user's cache directory."""
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, setting.values())).lower())
    return Path(expand_path(directory)) if directory else cache_directory() / "accelerator" / name


def facts() -> dict[str, Any]:
    """What is stored with each part: the versions of installed libraries, commit and time."""
    from seq2seq.storage.run_json import start_facts

    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    start = start_facts(0, {})
    return {"versions": versions} | {name: start[name] for name in ("commit", "started")}


def define_flags() -> None:
    flags.DEFINE_float("minutes", 10.0, "Time for all parts, compilation included.", 0.0)
    flags.DEFINE_list(
        "parts", [], "Only parts whose name contains one of these texts; empty: all parts."
    )
    define_path(
        "results",
        "",
        "Directory of the results; empty: one for each device in the user's cache directory.",
    )
    flags.DEFINE_enum(
        "sizes", "", ["", "full", "tiny"], "Empty: tiny on a CPU, full on an accelerator."
    )
    flags.DEFINE_enum(
        "role", "", ["", "describe", "parts"], "What a child process does (used internally)."
    )
    flags.DEFINE_string("device", "", "The device in JSON (used internally).")
    flags.DEFINE_float("part_seconds", 0.0, "Limit of a part in a child (used internally).", 0.0)


if __name__ == "__main__":
    run_command(define_flags, main)

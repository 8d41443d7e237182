"""The processes of benchmarks/accelerator.py: parts run in child processes, so that a crash, a hang
or a full device ends one part only.

The parent does not use a device. A child stores its results itself.
"""

import faulthandler
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from itertools import groupby
from typing import Any

import jax

from benchmarks.parts.catalog import Part
from benchmarks.parts.peers import missing_packages
from benchmarks.parts.results import RUNNING, Results
from benchmarks.parts.sizes import Sizes
from seq2seq.runtime.errors import CONFIGURATION, UserError

SHARE = 3  # one part may take at most 1/3 of the time
MEMORY_SHARE = "0.92"  # of a GPU for JAX: nothing else runs on it


def child_command(*arguments: str) -> list[str]:
    """This command with the `arguments`, --NAME=VALUE, in place of its flags of these names."""
    names = {argument.partition("=")[0].lstrip("-") for argument in arguments}
    command, words = [sys.executable], iter(sys.argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag.startswith("-") and flag.lstrip("-") in names:
            if not equals:
                next(words, None)  # its value
            continue
        command.append(word)
    return [*command, *arguments]


def own_devices() -> dict[str, Any]:
    """Platform, kind and number of the devices of this process."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "count": jax.local_device_count(),
    }


def found_devices() -> dict[str, Any]:
    """`own_devices` of a new process. UserError(CONFIGURATION) if it finds none."""
    done = subprocess.run(
        child_command("--role=describe"), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise UserError(
            CONFIGURATION,
            f"no device was found: expected one that JAX can use, got exit code {done.returncode}; "
            "its message is above",
        )
    return json.loads(done.stdout.splitlines()[-1])


def run_parts(parts: list[Part], results: Results, device: dict[str, Any], seconds: float) -> None:
    """Run the parts that are not done, those that failed earlier last, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    pending = [part for part in parts if can_run(part, results)]
    pending.sort(key=lambda part: results.get(part.name) is not None)
    while pending and time.monotonic() < deadline:
        _, group = next(iter(groupby(pending, lambda part: part.program)))
        ended = _run_child(list(group), results, device, deadline - time.monotonic())
        pending = [part for part in pending if part.name not in ended]


def can_run(part: Part, results: Results) -> bool:
    """Whether a part is not done and its packages are installed."""
    return not results.is_done(part.name) and not missing_packages(part.program)


def _run_child(
    parts: list[Part], results: Results, device: dict[str, Any], seconds: float
) -> set[str]:
    """Run parts of one program in one process; the names of those that it has tried."""
    names = [part.name for part in parts]
    before = {name: results.get(name) for name in names}
    limit = max(seconds / SHARE, 1.0)
    command = child_command(
        "--role=parts", f"--parts={','.join(names)}", f"--device={json.dumps(device)}",
        f"--minutes={seconds / 60}", f"--part_seconds={limit}",
    )  # fmt: skip
    reason, done = "out of time", None
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            stdout=sys.stderr,
            env=child_environment(parts[0], device),
            timeout=seconds,
            check=False,
        )
    if done is not None and done.returncode:
        reason = f"its process ended with exit code {done.returncode}, or after {limit:.0f} s"
    for name in names:
        if (results.get(name) or {}).get("state") == RUNNING:
            results.fail(name, reason)
    tried = {name for name in names if results.get(name) != before[name]}
    if not tried:
        results.fail(names[0], reason)
    return tried or {names[0]}


def child_environment(part: Part, device: dict[str, Any]) -> dict[str, str]:
    """JAX takes most of a GPU's memory when it starts; beside another program it uses the CPU.
    Programs for a CPU are compiled without most optimisations: that takes a third of the time."""
    if part.program != "JAX":
        return os.environ | {"JAX_PLATFORMS": "cpu"}
    ours = {"XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_SHARE}
    if device["platform"] == "cpu":
        ours["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    return ours | os.environ


def run_here(
    parts: list[Part], sizes: Sizes, results: Results, seconds: float, part_seconds: float
) -> None:
    """The work of a child process. A watchdog ends the process if a part exceeds its time, also in
    a call that Python cannot interrupt."""
    deadline = time.monotonic() + seconds
    for part in parts:
        start = time.monotonic()
        if start > deadline:
            return
        print(f"{part.name} …", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(part_seconds, exit=True)
        limit = min(deadline, start + part_seconds)
        results.run(part.name, part.rows(sizes, limit, *part.arguments))
        faulthandler.cancel_dump_traceback_later()
        took = time.monotonic() - start
        print(f"{part.name}: {took:.1f} s", file=sys.stderr, flush=True)

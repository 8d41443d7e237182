"""Benchmarks of variants: each measurement is a process of its own, and the variants alternate."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from seq2seq.runtime.errors import CONFIGURATION, UserError

Result = dict[str, object]


def measured(script: str, name: str, options: Iterable[str]) -> Result | None:
    """The JSON that `script --variant=NAME OPTIONS` prints last in a new process; None, with a
    message, if it fails."""
    done = subprocess.run(
        [sys.executable, script, f"--variant={name}", *options],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(script).parent.parent)},
    )
    if done.returncode:
        print(f"{name}: {done.stderr[-300:]}", file=sys.stderr)
        return None
    result = json.loads(done.stdout.splitlines()[-1])
    shown = {key: value for key, value in result.items() if key != "texts"}
    print(name, shown, file=sys.stderr, flush=True)
    return result


def peak_memory(process: int | str = "self") -> int:
    """The most bytes that a process has occupied; 0 if it has ended. (ru_maxrss would include those
    of the process that has started it.)"""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def chosen(variants: Iterable[str], parts: str) -> list[str]:
    """The variants whose name contains one of the parts, which are separated by semicolons.
    UserError(CONFIGURATION) if there are none."""
    variants = list(variants)
    names = [name for name in variants if any(part in name for part in parts.split(";"))]
    if not names:
        raise UserError(
            CONFIGURATION,
            f"--variants={parts} matches no variant: expected parts of {'; '.join(variants)}",
        )
    return names


def alternating(
    names: Iterable[str], rounds: int, measure: Callable[[str], Result | None]
) -> dict[str, list]:
    """The results of each variant in all rounds, without those of processes that failed."""
    results: dict[str, list] = {name: [] for name in names}
    for _ in range(rounds):
        for name, measurements in results.items():
            if result := measure(name):
                measurements.append(result)
    return results

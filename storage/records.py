"""run.json and metrics.jsonl: what a run records of itself. Resuming does not depend on them."""

import json
from pathlib import Path
from typing import Any

from storage.manifest import quarantine


def read_facts(path: Path) -> tuple[dict[str, Any], str]:
    """The content of run.json, {} where there is none, and a warning or "".

    A damaged file is renamed to run.json.corrupt.
    """
    try:
        facts = json.loads(path.read_bytes())
        shape = {"data": dict, "resumed": list}
        if not isinstance(facts, dict) or not all(
            isinstance(facts.get(name, kind()), kind) for name, kind in shape.items()
        ):
            raise ValueError("it is not the description of a run")
    except FileNotFoundError:
        return {}, ""
    except (ValueError, RecursionError) as error:
        kept = quarantine(path)
        return {}, (
            f"{path.name} is damaged ({error}); it is now {kept.name}, and a new one "
            "begins with this start"
        )
    return facts, ""


def metrics_until(content: bytes, step: int) -> tuple[bytes, int]:
    """The lines of metrics.jsonl up to a step, and the number of damaged lines among all."""
    found = [(line, step_of(line)) for line in content.split(b"\n") if line]
    kept = b"".join(line + b"\n" for line, at in found if at is not None and at <= step)
    return kept, sum(at is None for _, at in found)


def step_of(line: bytes) -> float | None:
    """The step of a metrics line; None for a damaged line, such as one cut off by a crash."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None

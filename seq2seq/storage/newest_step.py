"""The newest intact step of a run, from which training resumes, and the data stored with it.

Nothing in the run directory is changed.
"""

import json
from pathlib import Path
from shlex import quote
from typing import Any

from seq2seq.config.migration import migrate
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.manifest import damage
from seq2seq.storage.run_files import steps


def newest_intact_step(run: Path) -> tuple[int | None, dict[int, str]]:
    """The newest intact step of a run, None for a new run, and the damage of each newer one.

    Raises UserError(CHECKPOINT) if all checkpoints are damaged or lost.
    """
    directory, damaged = run / "checkpoints", dict[int, str]()
    for step in reversed(steps(run)):
        if reason := damage(directory / str(step)):
            damaged[step] = reason
            continue
        return step, damaged
    reasons = {str(step): reason for step, reason in damaged.items()}
    reasons |= {path.name: "quarantined earlier" for path in directory.glob("*.corrupt*")}
    # The first save writes best.json, so its presence means that there was a checkpoint.
    if not reasons and not (run / "best.json").exists():
        return None, {}
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    alternative = "start over with --overwrite"
    if not reasons and (run / "average").is_dir():  # the only model, which --overwrite deletes
        alternative = (
            "start a new run from the parameters of this one: another --workdir and "
            f"--config.training.init_from={quote(str(run))}"
        )
    raise UserError(
        CHECKPOINT,
        f"no checkpoint in {directory} can be used: {listed or 'it is empty'}; "
        f"restore one from a backup, or {alternative}",
    )


def stored_data(run: Path, step: int) -> dict[str, Any]:
    """The data that was saved with the state of a step: files, position, best checkpoint."""
    path = run / "checkpoints" / str(step)
    return migrate(json.loads((path / "data" / "metadata").read_bytes()), path)

"""Sizes of states and checkpoints, and the disk space that a run needs."""

import shutil
from pathlib import Path
from typing import Any

import jax


def disk_forecast(run: Path, state: Any, keep: int) -> tuple[str, bool]:
    """A message with the disk space that checkpoints need, and whether it is free."""
    checkpoints = run / "checkpoints"  # may be a link to another disk
    existing = next(path for path in (checkpoints, *checkpoints.parents) if path.exists())
    size, free = num_bytes(state), shutil.disk_usage(existing).free
    # `keep` checkpoints, the best one, the one that is being written, and the average.
    needed = size * (keep + 2) + num_bytes(state.params)
    used = sum(path.stat().st_size for path in checkpoints.glob("**/*") if path.is_file())
    return (
        f"checkpoints: {megabytes(size)} each, {keep} kept, {megabytes(needed)} at most; "
        f"{megabytes(free)} free"
    ), needed <= free + used


def num_bytes(tree: Any) -> int:
    """The size of the arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def megabytes(count: int) -> str:
    """1,234.5 MB"""
    return f"{count / 1e6:,.1f} MB"

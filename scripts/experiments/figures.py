"""The figures of the experiments: one style, curves with their spread, small SVG files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from seq2seq.files.output_files import write_atomic

if TYPE_CHECKING:  # matplotlib is optional: without it an experiment is measured, not drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BYTES = 100_000
STYLE = {
    "svg.fonttype": "none",  # text remains text: smaller, and any script is rendered
    "svg.hashsalt": "claims",  # the same ids in each run
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def panels(*titles: str, width: float = 3.6, height: float = 2.9) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each title, from left to right."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(cast(Any, STYLE))
    figure = Figure(figsize=(width * len(titles), height), layout="constrained")
    axes = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
    return figure, axes


def curve(axis: Axes, x: ArrayLike, runs: ArrayLike, label: str) -> None:
    """The mean of the runs, one for each seed, and the range from the lowest to the highest."""
    x, values = np.asarray(x), np.asarray(runs, float)
    (line,) = axis.plot(x, values.mean(axis=0), marker="o" if len(x) < 15 else None, ms=3)
    line.set_label(label)
    axis.fill_between(x, values.min(axis=0), values.max(axis=0), alpha=0.2, color=line.get_color())


def bars(axis: Axes, labels: Sequence[str], runs: Iterable[Sequence[float] | np.ndarray]) -> None:
    """One bar for each label: the mean of its numbers, and each of them as a dot."""
    for place, numbers in enumerate(runs):
        axis.bar(place, np.mean(numbers), width=0.6, alpha=0.7)
        axis.plot([place] * len(numbers), numbers, "k.", ms=4)
    axis.set_xticks(range(len(labels)), labels)


def smoothed(losses: Sequence[float] | np.ndarray, points: int = 50) -> list[float]:
    """The means of about `points` consecutive groups of a curve."""
    groups = np.array_split(np.asarray(losses), min(points, len(losses)))
    return [float(group.mean()) for group in groups]


def save_figure(figure: Figure, path: Path) -> None:
    """Write an SVG file without the time of writing. ValueError above MOST_BYTES."""
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    if len(content.getvalue()) > MOST_BYTES:
        raise ValueError(
            f"{path.name} must have at most {MOST_BYTES} bytes; got {len(content.getvalue())}"
        )
    write_atomic(path, content.getvalue())

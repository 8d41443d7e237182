"""Curves over the steps as inline SVG, drawn by Matplotlib in the colours of the page."""

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.scripts.pages.template import text

SERIES_COLORS = 6  # --series-0 … of page.css
DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
# Colours that stand for the variables of page.css in the SVG that Matplotlib writes.
VARIABLES = {"#000001": "--text", "#000002": "--line", "#000003": "--muted"} | {
    f"#0000{16 + i:02x}": f"--series-{i}" for i in range(SERIES_COLORS)
}
COLORS = {variable: color for color, variable in VARIABLES.items()}


class Curve(NamedTuple):
    """Values over steps; `color` and `dash` are numbers."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    color: int
    dash: int

    @property
    def variable(self) -> str:
        """The variable of page.css with its colour."""
        return f"--series-{self.color % SERIES_COLORS}"

    @property
    def style(self) -> Any:
        """Its line style in Matplotlib."""
        return DASHES[self.dash % len(DASHES)]


def chart(name: str, title: str, unit: str, curves: Sequence[Curve]) -> str:
    """A figure element with the curves and their legend. `name` is unique on the page.

    Raises UserError(CONFIGURATION) if Matplotlib is missing.
    """
    last = ", ".join(f"{curve.label}: {curve.values[-1]:.4g}" for curve in curves)
    legend = ""
    if len(curves) > 1:
        items = "".join(f"<li>{_line(curve)}{text(curve.label)}</li>" for curve in curves)
        legend = f'<ul class="legend">{items}</ul>'
    return (
        f'<figure class="chart"><figcaption>{text(title)} <span class="muted">{text(unit)}</span>'
        f'</figcaption>\n<div role="img" aria-label="{text(title)} over the steps; last values: '
        f'{text(last)}">\n{_drawing(name, curves)}</div>\n{legend}</figure>'
    )


def _line(curve: Curve) -> str:
    """A short line in the style of a curve, for the legend."""
    dashes = "" if curve.style == "-" else " ".join(str(2 * length) for length in curve.style[1])
    return (
        '<svg class="line" viewBox="0 0 28 8" aria-hidden="true"><path d="M0 4h28" '
        f'stroke="var({curve.variable})" stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
    )


def _drawing(name: str, curves: Sequence[Curve]) -> str:
    """The SVG of the curves. Its ids begin with `name`."""
    try:
        import matplotlib
    except ImportError:
        raise UserError(CONFIGURATION, "curves need Matplotlib; pip install -e '.[viz]'") from None
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.color": COLORS["--text"],
        "axes.edgecolor": COLORS["--muted"],
        "xtick.color": COLORS["--muted"],
        "ytick.color": COLORS["--muted"],
        "grid.color": COLORS["--line"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "font.size": 10,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(5.0, 2.8), layout="tight")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.grid(True)
        for curve in curves:
            marker = "o" if len(curve.values) < 12 else None
            style = {"color": COLORS[curve.variable], "linestyle": curve.style, "linewidth": 1.8}
            axes.plot(curve.steps, curve.values, marker=marker, markersize=4, **style)
        axes.set_xlabel("step", color=COLORS["--muted"])
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return _page_svg(name, content.getvalue())


def _page_svg(name: str, content: str) -> str:
    """An SVG of Matplotlib without its XML header and metadata, with the page's font and colours,
    and with ids that no other drawing has."""
    content = content[content.index("<svg") :]
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    content = re.sub(r' (?:width|height)="[\d.]+pt"', "", content, count=2)  # of the svg element
    content = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", content)
    content = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", content)
    for color, variable in VARIABLES.items():
        content = content.replace(color, f"var({variable})")
    return content

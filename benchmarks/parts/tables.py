"""The Markdown tables of benchmarks/accelerator.py."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.parts.catalog import Part
from benchmarks.parts.peak import BANDWIDTH
from benchmarks.parts.peers import missing_packages
from benchmarks.parts.processes import can_run
from benchmarks.parts.results import Results

Row = dict[str, Any]
# Table → the field of a row that is best at the best batch, and the title.
TITLES = {
    "peak": "Measured peaks",
    "training": "Training: the full step, numbers per device, the best batch of each program",
    "attention": "Attention, forward and backward, bfloat16",
    "decoding": "Decoding with forced output lengths",
    "operations": "A decode step in the program lowered for cuda",
}


def report(parts: list[Part], results: Results, setting: Row) -> Iterator[str]:
    """The lines of a report: the setting, the versions with their commits, and all tables."""
    yield from (", ".join(f"{name}: {value}" for name, value in setting.items()), "")
    stored = [result for part in parts if (result := results.get(part.name))]
    versions = {
        ", ".join(f"{name} {value}" for name, value in result["versions"].items())
        + f"; commit {result['commit'][:7] or 'unknown'}"
        for result in stored
    }
    yield from (*sorted(versions), "")
    yield from tables(parts, results)
    waiting = [part.name for part in parts if can_run(part, results)]
    if waiting:
        yield f"Not measured completely; run the command again: {', '.join(waiting)}"


def tables(parts: list[Part], results: Results) -> Iterator[str]:
    """The lines of all tables of the parts that have a result, or whose packages are missing."""
    peaks = {row["kind"]: row["rate"] for row in (results.get("peak") or {"rows": []})["rows"]}
    for name, title in TITLES.items():
        chosen = [part for part in parts if part.table == name]
        chosen.sort(key=lambda part: part.name.split(":")[1:3])  # a peer follows ours
        lines = [line for part in chosen for line in part_lines(part, results, peaks)]
        if lines:
            headers = COLUMNS[name][0]
            yield from (f"## {title}", "", f"| {' | '.join(headers)} |")
            yield from ("|" + "---|" * len(headers), *lines, "")


def part_lines(part: Part, results: Results, peaks: dict[str, float]) -> Iterator[str]:
    """The lines of one part in its table."""
    headers, cells = COLUMNS[part.table]
    result = results.get(part.name) or {"rows": [], "error": ""}
    for row in best_rows(result["rows"]) if part.table == "training" else result["rows"]:
        yield f"| {' | '.join(cells(row, peaks))} |"
    if missing := missing_packages(part.program):
        yield remark(part, f"not installed: {', '.join(missing)}", len(headers))
    elif result["error"]:
        yield remark(part, result["error"].replace("|", "/"), len(headers))


def remark(part: Part, text: str, columns: int) -> str:
    """A line with a text in place of numbers."""
    return f"| {part.name} | {text} |{' |' * (columns - 2)}"


def best_rows(rows: list[Row]) -> list[Row]:
    """The row of the best batch, if any, with the batches that were tried."""
    tried = [row["tokens"] for row in rows]
    return [
        row | {"tried": tried} for row in sorted(rows, key=lambda row: -row["tokens_per_second"])
    ][:1]


def share(value: float | None, peak: float | None) -> str:
    """A percentage, – if one of the numbers is missing."""
    return f"{value / peak:.1%}" if value and peak else "–"


def number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """A number with separators, – if it is missing."""
    return "–" if value is None else f"{value / scale:,.{digits}f}"


def peak_cells(row: Row, peaks: dict[str, float]) -> list[str]:
    scale, unit = (1e12, "TFLOP/s") if row["unit"] == "FLOP/s" else (1e9, "GB/s")
    return [row["kind"], f"{row['rate'] / scale:,.3f} {unit}"]


def training_cells(row: Row, peaks: dict[str, float]) -> list[str]:
    return [
        row["size"], row["program"], row["dtype"], number(row["tokens"]),
        number(row["tokens_per_second"]),
        share(row.get("flops"), peaks.get("bfloat16")),
        number(row["memory"], 1e9, 2), number(row.get("compile_seconds"), digits=1),
        ", ".join(map(number, row["tried"])),
    ]  # fmt: skip


def attention_cells(row: Row, peaks: dict[str, float]) -> list[str]:
    if "error" in row:
        rest = [row["error"].replace("|", "/").replace("\n", " "), "–", "–"]
    else:
        ratio = f"{row['ours'] / row['fused']:.2f}"
        rest = [number(row["fused"], 1e-3, 3), ratio, f"{row['difference']:.1e}"]
    return [row["shape"], row["mask"], number(row["ours"], 1e-3, 3), row["implementation"], *rest]


def decoding_cells(row: Row, peaks: dict[str, float]) -> list[str]:
    bandwidth = max((peaks.get(name, 0.0) for name in BANDWIDTH), default=0.0)
    needed = row["step_bytes"] / bandwidth if bandwidth and "step_bytes" in row else None
    refills = "–"
    if "refill_steps" in row:
        refills = f"{row['refill_steps']:.2f}, {row['refill_time']:.0%}"
    return [
        row["size"], number(row["beams"]), row["program"], row["dtype"], number(row["batch"]),
        number(row["sentences_per_second"], digits=1),
        number(row.get("varied_per_second"), digits=1),
        number(row.get("step_seconds"), 1e-3, 3), number(needed, 1e-3, 3),
        share(needed, row.get("step_seconds")), refills,
    ]  # fmt: skip


def operations_cells(row: Row, peaks: dict[str, float]) -> list[str]:
    return [
        row["size"], number(row["beams"]), row["dtype"], number(row["batch"]),
        number(row["operations"]), number(row["products"]), number(row["moves"]),
        number(row["in_branches"]), number(row["product_bytes"], 1e6, 2),
        number(row["convert_bytes"], 1e6, 2),
        number(row["must_read"], 1e6, 2),
    ]  # fmt: skip


# Table → its headers, and the function of a row that gives its cells.
COLUMNS: dict[str, tuple[list[str], Callable[[Row, dict[str, float]], list[str]]]] = {
    "peak": (["what", "measured"], peak_cells),
    "training": (
        ["size", "program", "dtype", "target tokens in a batch", "target tokens/s",
         "of the bfloat16 peak", "memory, GB", "compilation, s", "batches tried, tokens"],
        training_cells,
    ),
    "attention": (
        ["B × H × T × K", "mask", "ours, ms", "other", "other, ms", "ours / other",
         "largest relative difference"],
        attention_cells,
    ),
    "decoding": (
        ["size", "beams", "program", "dtype", "batch", "sentences/s",
         "sentences/s, varied lengths", "step, ms", "bandwidth limit, ms", "limit / step",
         "refills: per step, of time"],
        decoding_cells,
    ),
    "operations": (
        ["size", "beams", "dtype", "lanes", "operations", "products", "gathers and copies",
         "in branches", "read by products, MB", "read by conversions, MB", "must be read, MB"],
        operations_cells,
    ),
}  # fmt: skip

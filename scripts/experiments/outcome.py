"""The outcome of an experiment: results of arms and seeds, checks of a claim, and their JSON file.

An experiment is a module of this folder with
- a docstring: its title, then the claim with its source, the measurement and the rule,
- CLAIM, its sentence in the table,
- ARMS, the variants that are compared,
- measure(arm, seed, size): a dict of numbers and lists, for a size of SIZES,
- judge(results): the checks, decided by the rule of the docstring; one has the figure of the table,
- draw(results): a Matplotlib figure.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.errors import DATA, UserError

SIZES = ("tiny", "full")
Result = dict[str, Any]  # what one arm measured with one seed
Results = Mapping[str, Sequence[Result]]  # arm → a result of each seed


class Check(NamedTuple):
    """One part of a claim: what was measured, in words, and whether this part holds."""

    measured: str
    holds: bool
    figure: str = ""  # of the document's table: one check of an experiment has it


class Experiment(Protocol):
    """What a module of an experiment defines."""

    __name__: str
    __doc__: str | None
    CLAIM: str
    ARMS: tuple[str, ...]
    measure: Callable[[str, int, str], Result]
    judge: Callable[[Results], list[Check]]
    draw: Callable[[Results], Any]


def values(results: Results, arm: str, name: str) -> list[float]:
    """The number `name` of an arm, of each seed; NaN where it was not finite."""
    numbers = (result[name] for result in results[arm])
    return [math.nan if number is None else number for number in numbers]


def spread(numbers: Sequence[float], digits: int = 2) -> str:
    """The mean ± the sample standard deviation over the seeds; the mean alone of one seed."""
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return f"{mean} ± {np.std(numbers, ddof=1):.{digits}f}" if len(numbers) > 1 else mean


def verdict(checks: Sequence[Check]) -> str:
    """Whether a claim holds: "yes" if all its checks hold, "no" if none does, else "in part"."""
    held = sum(check.holds for check in checks)
    return "yes" if held == len(checks) else "in part" if held else "no"


class Outcome:
    """The results of one experiment in a JSON file, which grows by one arm and seed at a time."""

    def __init__(self, path: Path, size: str, digest: str):
        """Resumes from results of the same size that code of the same digest has measured."""
        self.path, self.size, self.digest = path, size, digest
        self.seconds, self.measured = 0.0, {}
        if path.exists():
            stored = read_outcome(path)
            if (stored["size"], stored["digest"]) == (size, digest):
                self.seconds, self.measured = stored["seconds"], stored["results"]

    def has(self, arm: str, seed: int) -> bool:
        return str(seed) in self.measured.get(arm, {})

    def add(self, arm: str, seed: int, result: Result, seconds: float) -> None:
        """Store the result of an arm and a seed, which took `seconds`."""
        self.measured.setdefault(arm, {})[str(seed)] = rounded(result)
        self.seconds += seconds
        content = {
            "size": self.size,
            "digest": self.digest,
            "seconds": round(self.seconds),
            "results": self.measured,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps(content, ensure_ascii=False) + "\n")

    @property
    def results(self) -> Results:
        return by_arm(self.measured)


def by_arm(measured: dict[str, dict[str, Result]]) -> Results:
    """The results of a file, without the numbers of the seeds."""
    return {arm: list(seeds.values()) for arm, seeds in measured.items()}


def is_complete(results: Results, arms: Sequence[str]) -> bool:
    """Whether all arms have results of the same number of seeds; not after an interruption."""
    counts = [len(results.get(arm, ())) for arm in arms]
    return min(counts) == max(counts) > 0


def read_outcome(path: Path) -> dict[str, Any]:
    """The content of a file of `Outcome`; the digest of files without one is "". Raises
    UserError(DATA) if it is damaged."""
    try:
        content = {"digest": ""} | json.loads(path.read_text(encoding="utf-8"))
        return {name: content[name] for name in ("size", "digest", "seconds", "results")}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            DATA,
            f"{path} is damaged: expected the results of scripts/claims.py, got {error!r}; "
            "delete it and run the experiment again",
        ) from None


def rounded(value: Any) -> Any:
    """A result as JSON: floats with six significant digits, None if they are not finite; arrays as
    lists."""
    if isinstance(value, dict):
        return {str(name): rounded(item) for name, item in value.items()}
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if hasattr(value, "tolist"):
        return rounded(value.tolist())
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if math.isfinite(value) else None

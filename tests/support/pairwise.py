"""Pairwise covering arrays: every pair of values of two factors occurs in at least one row."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def pairwise_rows(
    factors: Mapping[str, Sequence[Any]],
    valid: Callable[[Row], bool] = lambda row: True,
    seed: int = 0,
    tries: int = 5,
) -> list[Row]:
    """Few rows of a value per factor. Every pair of values that `valid` accepts occurs in one.

    `valid(row)` is also called with rows that lack factors and must then accept what can become
    valid. Until no pair is missing, the best of `tries` random rows that contain a missing pair is
    added. The same arguments give the same rows.
    """
    choose = random.Random(seed)

    def named(row: Mapping[str, int]) -> Row:
        return {name: factors[name][row[name]] for name in factors if name in row}

    def pairs(row: Mapping[str, int]) -> set:
        return set(combinations(sorted(row.items()), 2))

    def new_pairs(row: Mapping[str, int], name: str, value: int) -> int:
        """The missing pairs of `value` and a value of the row."""
        return sum(tuple(sorted((item, (name, value)))) in missing for item in row.items())

    def completed(row: dict[str, int]) -> dict[str, int] | None:
        """The row with all factors, each of the value that adds most pairs; None: impossible."""
        if len(row) == len(factors):
            return row
        name = choose.choice([name for name in factors if name not in row])
        values = list(range(len(factors[name])))
        choose.shuffle(values)
        values.sort(key=lambda value: new_pairs(row, name, value), reverse=True)
        longer = (row | {name: value} for value in values)
        rows = (completed(row) for row in longer if valid(named(row)))
        return next((row for row in rows if row), None)

    every_pair = [
        {f: a, g: b}
        for f, g in combinations(factors, 2)
        for a in range(len(factors[f]))
        for b in range(len(factors[g]))
    ]
    missing = set().union(*(pairs(pair) for pair in every_pair if valid(named(pair))))
    rows = []
    while missing:
        first = dict(min(missing))
        candidates = [row for _ in range(tries) if (row := completed(first))]
        if not candidates:
            raise ValueError(f"no valid row contains {named(first)}, which `valid` accepts")
        best = max(candidates, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append(named(best))
    return rows

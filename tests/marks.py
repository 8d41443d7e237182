"""Marks for parametrised tests."""

from collections.abc import Collection, Iterable

import pytest


def slow_except(fast: Collection[str], names: Iterable[str]) -> list:
    """`names` as parameters; those that are not in `fast` are slow."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]
